# The sources of the native kernels. The including target links OpenMP. kernels.inl, with what it
# includes, is compiled once per instruction set by kernels_*.cpp.
set(ONEDSL_NATIVE_DIR ${CMAKE_CURRENT_LIST_DIR})
set(ONEDSL_NATIVE_ISAS baseline avx2 avx512 avx512_bf16)
set(ONEDSL_NATIVE_SOURCES
    ${ONEDSL_NATIVE_DIR}/plan/cpu.cpp
    ${ONEDSL_NATIVE_DIR}/loops.cpp
    ${ONEDSL_NATIVE_DIR}/plan/plan.cpp
    ${ONEDSL_NATIVE_DIR}/plan/order.cpp
    ${ONEDSL_NATIVE_DIR}/kernels/relu.cpp
    ${ONEDSL_NATIVE_DIR}/run.cpp
    ${ONEDSL_NATIVE_DIR}/run_call.cpp
    ${ONEDSL_NATIVE_DIR}/plan/schedule.cpp)

# Without contraction, an element has the same bits in every loop that can write it. The kernels raise
# no exceptions, so they need no tables to unwind the stack.
set(ONEDSL_NATIVE_OPTIONS_baseline
    -fno-math-errno -ffp-contract=off -fno-exceptions -fno-asynchronous-unwind-tables)
set(ONEDSL_NATIVE_OPTIONS_avx2 ${ONEDSL_NATIVE_OPTIONS_baseline} -mavx2 -mfma -mf16c)
set(ONEDSL_NATIVE_OPTIONS_avx512
    ${ONEDSL_NATIVE_OPTIONS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
set(ONEDSL_NATIVE_OPTIONS_avx512_bf16 ${ONEDSL_NATIVE_OPTIONS_avx512} -mavx512bf16)

foreach(isa IN LISTS ONEDSL_NATIVE_ISAS)
  set(kernels ${ONEDSL_NATIVE_DIR}/kernels/kernels_${isa}.cpp)
  set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS "${ONEDSL_NATIVE_OPTIONS_${isa}}")
  list(APPEND ONEDSL_NATIVE_SOURCES ${kernels})
endforeach()
# -O3 is up to a sixth faster than -O2 on tensors in cache. Few CPUs lack AVX2: for them small code,
# which compiles in a third of the time, at about 0.9 of the speed.
if(NOT ONEDSL_SANITIZE)
  foreach(isa IN LISTS ONEDSL_NATIVE_ISAS)
    set(optimize -O3)
    if(isa STREQUAL baseline)
      set(optimize -Os)
    endif()
    set_property(SOURCE ${ONEDSL_NATIVE_DIR}/kernels/kernels_${isa}.cpp APPEND PROPERTY
      COMPILE_OPTIONS $<$<CONFIG:Release>:${optimize}>)
  endforeach()
endif()
