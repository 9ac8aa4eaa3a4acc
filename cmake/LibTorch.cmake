# LibTorch 2.11.0 as the imported target sherd::torch_cpu, in Sherd's own build and, installed beside SherdConfig.cmake,
# in that of a project that uses Sherd.
#
# The wheel's own TorchConfig.cmake demands a whole CUDA toolkit, so the target is defined here: libtorch_cpu and libc10
# alone. The library finds the two NVIDIA wheels it needs to be loaded (runtime, cupti) by its own run path.
# SHERD_TORCH_DIR: the folder that holds include/ and lib/ (of the wheel: <site-packages>/torch); a variable of CMake or of
# the environment, else the includer's SHERD_DEFAULT_TORCH_DIR.
# SHERD_TORCH_PROBLEM says afterwards what is wrong, for the includer to report; empty if nothing is.

set(SHERD_TORCH_VERSION 2.11.0)
set(SHERD_TORCH_PROBLEM "")
if(NOT SHERD_TORCH_DIR AND DEFINED ENV{SHERD_TORCH_DIR})
  set(SHERD_TORCH_DIR $ENV{SHERD_TORCH_DIR})
endif()
set(SHERD_TORCH_DIR "${SHERD_TORCH_DIR}" CACHE PATH "LibTorch ${SHERD_TORCH_VERSION}: the folder with include/ and lib/")
if(NOT SHERD_TORCH_DIR)
  set(SHERD_TORCH_DIR ${SHERD_DEFAULT_TORCH_DIR})
endif()

set(sherd_version_header ${SHERD_TORCH_DIR}/include/torch/headeronly/version.h)
if(NOT EXISTS ${sherd_version_header} OR NOT EXISTS ${SHERD_TORCH_DIR}/lib/libtorch_cpu.so)
  set(SHERD_TORCH_PROBLEM "No LibTorch in ${SHERD_TORCH_DIR}. Sherd's scripts/setup unpacks LibTorch ${SHERD_TORCH_VERSION} into \
.deps/libtorch; name another place with -DSHERD_TORCH_DIR=<folder with include/ and lib/>.")
  return()
endif()
file(STRINGS ${sherd_version_header} sherd_version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX MATCHALL "[0-9]+" sherd_version_parts "${sherd_version_lines}")
list(JOIN sherd_version_parts "." sherd_found_version)
if(NOT sherd_found_version VERSION_EQUAL SHERD_TORCH_VERSION)
  set(SHERD_TORCH_PROBLEM "LibTorch in ${SHERD_TORCH_DIR} is ${sherd_found_version}, and Sherd needs ${SHERD_TORCH_VERSION}: it uses \
interfaces of LibTorch that change between releases. Sherd's scripts/setup gets that version; else set SHERD_TORCH_DIR.")
  return()
endif()

if(NOT TARGET sherd::torch_cpu)
  add_library(sherd::torch_cpu SHARED IMPORTED GLOBAL)
  set_target_properties(sherd::torch_cpu PROPERTIES IMPORTED_LOCATION ${SHERD_TORCH_DIR}/lib/libtorch_cpu.so)
  target_include_directories(sherd::torch_cpu SYSTEM INTERFACE
    ${SHERD_TORCH_DIR}/include ${SHERD_TORCH_DIR}/include/torch/csrc/api/include)
  target_compile_definitions(sherd::torch_cpu INTERFACE AT_PER_OPERATOR_HEADERS FMT_HEADER_ONLY=1)
  target_link_libraries(sherd::torch_cpu INTERFACE ${SHERD_TORCH_DIR}/lib/libc10.so)
  # at::parallel_for is a template: without OpenMP it compiles to a loop on one thread. Its threads are to be LibTorch's, so
  # the OpenMP library is LibTorch's own, which GCC's code fits and Clang's does not.
  file(GLOB sherd_openmp ${SHERD_TORCH_DIR}/lib/libgomp*.so*)
  if(sherd_openmp AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(GET sherd_openmp 0 sherd_openmp)
    target_compile_options(sherd::torch_cpu INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
    target_link_libraries(sherd::torch_cpu INTERFACE ${sherd_openmp})
  endif()
  target_link_options(sherd::torch_cpu INTERFACE -Wl,--allow-shlib-undefined)
endif()
