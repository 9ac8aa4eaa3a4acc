find_package(GTest REQUIRED)
add_custom_target(sherd_gpu_tests)
add_custom_target(sherd_torch_free_tests)
# Tests are compiled once and run for seconds: docs/design/tests.md has what their flags take and bring. Sanitizers look at the libraries
# for undefined behaviour, and at both for addresses.
add_library(sherd_test_flags INTERFACE)  # linked behind sherd_sanitizers, to stand behind their flags
target_compile_options(sherd_test_flags INTERFACE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O0>)
if(SHERD_SANITIZER)
  target_compile_options(sherd_test_flags INTERFACE -O0 -g0)
  if(SHERD_SANITIZER MATCHES "undefined")
    target_compile_options(sherd_test_flags INTERFACE -fno-sanitize=undefined)
  endif()
endif()
sherd_add_pch(sherd_test_pch ${PROJECT_SOURCE_DIR}/tests/support/pch.h
              DEPS sherd_error sherd::torch_cpu nlohmann_json::nlohmann_json GTest::gtest GTest::gmock)
sherd_add_pch(sherd_plain_test_pch ${PROJECT_SOURCE_DIR}/tests/support/plain_pch.h
              DEPS nlohmann_json::nlohmann_json GTest::gtest GTest::gmock)
foreach(pch sherd_test_pch sherd_plain_test_pch)
  target_include_directories(${pch} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${pch} PRIVATE sherd_test_flags)
endforeach()

# What plays a device runs for minutes under sanitizers, so it is optimised there too: docs/design/tests.md has the seconds.
function(sherd_optimize_under_sanitizers target)
  if(SHERD_SANITIZER)
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# sherd_set_costs(TEST…): ctest begins the tests that take longest first. tests/costs.txt has the seconds that each took, as
# scripts/test_times --costs prints them.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/costs.txt)
file(STRINGS ${PROJECT_SOURCE_DIR}/tests/costs.txt sherd_test_costs REGEX "^[0-9]")
function(sherd_set_costs)
  foreach(test IN LISTS ARGN)
    if(sherd_test_costs MATCHES "(^|;)([0-9]+)  ${test}(;|$)")
      set_tests_properties(${test} PROPERTIES COST ${CMAKE_MATCH_2})
    endif()
  endforeach()
endfunction()

# Cases of a test by which sanitizers find nothing more, since others take the same paths once: a build with sanitizers runs them as
# NAME_long, with the label `long`. FILTER is GoogleTest's, without a leading '-'.
function(sherd_long_under_sanitizers name filter)
  if(NOT SHERD_SANITIZER)
    return()
  endif()
  get_property(tests GLOBAL PROPERTY sherd_tests_of_${name})
  set_property(TEST ${tests} APPEND PROPERTY ENVIRONMENT "GTEST_FILTER=-${filter}")
  add_test(NAME ${name}_long COMMAND ${name} --gtest_filter=${filter})
  set_tests_properties(${name}_long PROPERTIES LABELS "ranks;long" TIMEOUT 7200 ENVIRONMENT "OMP_NUM_THREADS=1;MKL_NUM_THREADS=1")
endfunction()

# A GoogleTest program, run by ctest as NAME, or as NAME_0 … NAME_n-1: shares of its cases, which `ctest -j` runs side by side.
#   sherd_add_test(NAME [TORCH] [WAITS] [LONG] SOURCES a_test.cpp … DEPS target … [LABELS unit|ranks|e2e|gpu]
#                  [TIMEOUT seconds] [SHARDS n])
# ctest's processors are halves of a core, of which a test takes two; with WAITS, for one that mostly waits (for timeouts, a disk, a
# daemon's periods), one. Presets have six of them on two cores: ranks wait for each other much of the time.
# LONG: the label `long` as well, for a test that takes minutes: `make test-long` runs it, `make test` and CI do not.
# TORCH: its sources see LibTorch, all of it, and so use the precompiled header that has it; each test starts from one seed.
# LABELS gpu: built by the target sherd_gpu_tests too; ctest reports it as skipped where there is no GPU.
# Those that do not see LibTorch, and do not start the program, get the label torch_free and are built by the target
# sherd_torch_free_tests: what the thread sanitizer is for.
# SHERD_TEST_SOURCE_DIR and SHERD_TEST_BINARY_DIR tell it where tests/data and the programs lie.
function(sherd_add_test name)
  cmake_parse_arguments(ARG "TORCH;WAITS;LONG" "LABELS;TIMEOUT;SHARDS" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} sherd_files GTest::gtest GTest::gmock sherd_warnings sherd_sanitizers sherd_test_flags)
  set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 28)
  if(ARG_TORCH)
    sherd_reuse_pch(${name} sherd_test_pch)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:sherd_torch_main>)
  else()
    sherd_reuse_pch(${name} sherd_plain_test_pch)
    target_link_libraries(${name} PRIVATE nlohmann_json::nlohmann_json GTest::gtest_main)
  endif()
  if(SHERD_SANITIZER)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:sherd_sanitizer_options>)
  endif()
  target_compile_definitions(${name} PRIVATE
    SHERD_TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}" SHERD_TEST_BINARY_DIR="${PROJECT_BINARY_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  set(tests ${name})
  if("gpu" IN_LIST ARG_LABELS)
    add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/scripts/run_on_gpu $<TARGET_FILE:${name}>)
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
    add_dependencies(sherd_gpu_tests ${name})
  elseif(ARG_SHARDS)
    set(tests "")
    math(EXPR last "${ARG_SHARDS} - 1")
    foreach(shard RANGE ${last})
      add_test(NAME ${name}_${shard}
        COMMAND ${CMAKE_COMMAND} -E env GTEST_TOTAL_SHARDS=${ARG_SHARDS} GTEST_SHARD_INDEX=${shard} $<TARGET_FILE:${name}>)
      list(APPEND tests ${name}_${shard})
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TORCH AND NOT "e2e" IN_LIST ARG_LABELS)
    list(APPEND ARG_LABELS torch_free)
    add_dependencies(sherd_torch_free_tests ${name})
  endif()
  if(ARG_LONG)
    list(APPEND ARG_LABELS long)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(SHERD_SANITIZER)
    math(EXPR ARG_TIMEOUT "4 * ${ARG_TIMEOUT}")
  endif()
  set(processors 2)
  if(ARG_WAITS)
    set(processors 1)
  endif()
  sherd_set_costs(${tests})
  set_property(GLOBAL PROPERTY sherd_tests_of_${name} ${tests})
  # One thread a rank: results are then bitwise repeatable, and ranks do not fight for the cores.
  set_tests_properties(${tests} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${processors} ENVIRONMENT "OMP_NUM_THREADS=1;MKL_NUM_THREADS=1")
endfunction()
