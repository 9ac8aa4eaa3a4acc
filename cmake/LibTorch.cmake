# LibTorch 2.11.0 as the imported target sherd::torch_cpu.
#
# The wheel's own TorchConfig.cmake demands a whole CUDA toolkit, so the target is defined here: libtorch_cpu and libc10
# alone. The library finds the two NVIDIA wheels it needs to be loaded (runtime, cupti) by its own run path.
# SHERD_TORCH_DIR: the folder that holds include/ and lib/ (of the wheel: <site-packages>/torch).

set(SHERD_TORCH_VERSION 2.11.0)
if(NOT SHERD_TORCH_DIR AND DEFINED ENV{SHERD_TORCH_DIR})
  set(SHERD_TORCH_DIR $ENV{SHERD_TORCH_DIR})
endif()
set(SHERD_TORCH_DIR "${SHERD_TORCH_DIR}" CACHE PATH "LibTorch ${SHERD_TORCH_VERSION}: the folder with include/ and lib/")
if(NOT SHERD_TORCH_DIR)
  set(SHERD_TORCH_DIR ${PROJECT_SOURCE_DIR}/.deps/libtorch/torch)
endif()

set(version_header ${SHERD_TORCH_DIR}/include/torch/headeronly/version.h)
if(NOT EXISTS ${version_header} OR NOT EXISTS ${SHERD_TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "No LibTorch in ${SHERD_TORCH_DIR}. Run scripts/setup, which unpacks LibTorch "
    "${SHERD_TORCH_VERSION} into .deps/libtorch, or name your own with -DSHERD_TORCH_DIR=<folder with include/ and lib/>.")
endif()
file(STRINGS ${version_header} version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX MATCHALL "[0-9]+" version_parts "${version_lines}")
list(JOIN version_parts "." found_version)
if(NOT found_version VERSION_EQUAL SHERD_TORCH_VERSION)
  message(FATAL_ERROR "LibTorch in ${SHERD_TORCH_DIR} is ${found_version}, and Sherd needs ${SHERD_TORCH_VERSION}: "
    "it uses interfaces of LibTorch that change between releases. Run scripts/setup to get that version.")
endif()

add_library(sherd_torch_cpu SHARED IMPORTED GLOBAL)
add_library(sherd::torch_cpu ALIAS sherd_torch_cpu)
set_target_properties(sherd_torch_cpu PROPERTIES IMPORTED_LOCATION ${SHERD_TORCH_DIR}/lib/libtorch_cpu.so)
target_include_directories(sherd_torch_cpu SYSTEM INTERFACE
  ${SHERD_TORCH_DIR}/include ${SHERD_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(sherd_torch_cpu INTERFACE AT_PER_OPERATOR_HEADERS FMT_HEADER_ONLY=1)
target_link_libraries(sherd_torch_cpu INTERFACE ${SHERD_TORCH_DIR}/lib/libc10.so)
target_link_options(sherd_torch_cpu INTERFACE -Wl,-rpath,${SHERD_TORCH_DIR}/lib -Wl,--allow-shlib-undefined)
