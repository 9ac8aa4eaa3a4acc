find_package(GTest REQUIRED)

# A GoogleTest program, run once by ctest as NAME.
#   sherd_add_test(NAME [TORCH] SOURCES a_test.cpp … DEPS target … [LABELS unit|ranks|e2e|gpu] [TIMEOUT seconds])
# TORCH: its sources see LibTorch, and so use the project's precompiled header.
# SHERD_TEST_SOURCE_DIR and SHERD_TEST_BINARY_DIR tell it where tests/data and the programs lie.
function(sherd_add_test name)
  cmake_parse_arguments(ARG "TORCH" "LABELS;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main sherd_warnings sherd_sanitizers)
  if(ARG_TORCH)
    sherd_reuse_pch(${name})
  endif()
  target_compile_definitions(${name} PRIVATE
    SHERD_TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}" SHERD_TEST_BINARY_DIR="${PROJECT_BINARY_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  # One thread a rank: results are then bitwise repeatable, and ranks do not fight for the cores.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "OMP_NUM_THREADS=1;MKL_NUM_THREADS=1")
endfunction()
