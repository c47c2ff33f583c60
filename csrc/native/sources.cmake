# The native kernels' sources, for the including target; it links OpenMP. The kernels are one source
# (kernels.inl and what it includes), built once per instruction set by a file of two lines each.
set(ONEDSL_NATIVE_DIR ${CMAKE_CURRENT_LIST_DIR})
set(ONEDSL_NATIVE_ISAS baseline avx2 avx512 avx512_bf16)
set(ONEDSL_NATIVE_SOURCES
    ${ONEDSL_NATIVE_DIR}/cpu.cpp
    ${ONEDSL_NATIVE_DIR}/summation_order.cpp
    ${ONEDSL_NATIVE_DIR}/relu.cpp
    ${ONEDSL_NATIVE_DIR}/run.cpp
    ${ONEDSL_NATIVE_DIR}/schedule.cpp
    ${ONEDSL_NATIVE_DIR}/task.cpp
    ${ONEDSL_NATIVE_DIR}/triad.cpp)

# Contraction is off so that an element's bits do not depend on which loop wrote it.
set(ONEDSL_NATIVE_OPTIONS_baseline -fno-math-errno -ffp-contract=off)
set(ONEDSL_NATIVE_OPTIONS_avx2 ${ONEDSL_NATIVE_OPTIONS_baseline} -mavx2 -mfma -mf16c)
set(ONEDSL_NATIVE_OPTIONS_avx512
    ${ONEDSL_NATIVE_OPTIONS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
set(ONEDSL_NATIVE_OPTIONS_avx512_bf16 ${ONEDSL_NATIVE_OPTIONS_avx512} -mavx512bf16)

foreach(isa IN LISTS ONEDSL_NATIVE_ISAS)
  set(kernels ${ONEDSL_NATIVE_DIR}/kernels_${isa}.cpp)
  set_source_files_properties(${kernels} PROPERTIES
    COMPILE_OPTIONS "${ONEDSL_NATIVE_OPTIONS_${isa}}")
  list(APPEND ONEDSL_NATIVE_SOURCES ${kernels})
endforeach()
