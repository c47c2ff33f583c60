# The native kernels' sources, for the including target; it links OpenMP. The kernels are one source
# (kernels.inl), built once per instruction set by a file of two lines each.
set(ONEDSL_NATIVE_DIR ${CMAKE_CURRENT_LIST_DIR})
set(ONEDSL_NATIVE_SOURCES
    ${ONEDSL_NATIVE_DIR}/native.cpp
    ${ONEDSL_NATIVE_DIR}/kernels_avx512.cpp
    ${ONEDSL_NATIVE_DIR}/kernels_avx512_bf16.cpp
    ${ONEDSL_NATIVE_DIR}/kernels_avx2.cpp
    ${ONEDSL_NATIVE_DIR}/kernels_baseline.cpp)

# Contraction is off so that an element's bits do not depend on which loop wrote it.
set(ONEDSL_NATIVE_FLAGS -fno-math-errno -ffp-contract=off)
set(ONEDSL_NATIVE_AVX512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
set_source_files_properties(${ONEDSL_NATIVE_DIR}/kernels_avx512.cpp PROPERTIES COMPILE_OPTIONS
    "${ONEDSL_NATIVE_FLAGS};${ONEDSL_NATIVE_AVX512}")
set_source_files_properties(${ONEDSL_NATIVE_DIR}/kernels_avx512_bf16.cpp PROPERTIES COMPILE_OPTIONS
    "${ONEDSL_NATIVE_FLAGS};${ONEDSL_NATIVE_AVX512};-mavx512bf16")
set_source_files_properties(${ONEDSL_NATIVE_DIR}/kernels_avx2.cpp PROPERTIES COMPILE_OPTIONS
    "${ONEDSL_NATIVE_FLAGS};-mavx2;-mfma;-mf16c")
set_source_files_properties(${ONEDSL_NATIVE_DIR}/kernels_baseline.cpp PROPERTIES COMPILE_OPTIONS
    "${ONEDSL_NATIVE_FLAGS}")
