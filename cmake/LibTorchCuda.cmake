# LibTorch's CUDA half as the imported target sherd::torch_cuda: libtorch_cuda, libc10_cuda, CUDA's runtime, NCCL's headers
# with USE_C10D_NCCL. Included after LibTorch.cmake, in Sherd's own build and beside SherdConfig.cmake.
#
# CUDA and NCCL are taken from NVIDIA's wheels beside the torch wheel (as scripts/setup --cuda and pip lay them), else from a
# toolkit of the system. To be loaded, libtorch_cuda needs more than to be linked: cuBLAS, cuDNN and so on. The torch folder
# of a Python environment (SHERD_TORCH_DIR) has all beside it.
# SHERD_TORCH_PROBLEM says afterwards what is missing; empty if nothing is.

# The CUDA is that of this LibTorch, by the runtime that it asks for.
set(sherd_cuda_major 13)
if(EXISTS ${SHERD_TORCH_DIR}/lib/libtorch_cuda.so AND CMAKE_READELF)
  execute_process(COMMAND ${CMAKE_READELF} -d ${SHERD_TORCH_DIR}/lib/libtorch_cuda.so OUTPUT_VARIABLE sherd_needed ERROR_QUIET)
  if(sherd_needed MATCHES "libcudart[.]so[.]([0-9]+)")
    set(sherd_cuda_major ${CMAKE_MATCH_1})
  endif()
endif()
get_filename_component(sherd_nvidia_wheels ${SHERD_TORCH_DIR}/../nvidia ABSOLUTE)
set(sherd_toolkits $ENV{CUDA_HOME} /usr/local/cuda)
find_path(SHERD_CUDA_INCLUDE_DIR cuda_runtime_api.h
  HINTS ${sherd_nvidia_wheels}/cu${sherd_cuda_major}/include ${sherd_nvidia_wheels}/cuda_runtime/include PATHS ${sherd_toolkits} PATH_SUFFIXES include)
find_path(SHERD_NCCL_INCLUDE_DIR nccl.h HINTS ${sherd_nvidia_wheels}/nccl/include PATHS ${sherd_toolkits} PATH_SUFFIXES include)
find_library(SHERD_CUDA_RUNTIME NAMES libcudart.so.${sherd_cuda_major}
  HINTS ${sherd_nvidia_wheels}/cu${sherd_cuda_major}/lib ${sherd_nvidia_wheels}/cuda_runtime/lib PATHS ${sherd_toolkits} PATH_SUFFIXES lib64)
mark_as_advanced(SHERD_CUDA_INCLUDE_DIR SHERD_NCCL_INCLUDE_DIR SHERD_CUDA_RUNTIME)

set(sherd_missing "")
if(NOT EXISTS ${SHERD_TORCH_DIR}/lib/libtorch_cuda.so)
  string(APPEND sherd_missing " libtorch_cuda.so in ${SHERD_TORCH_DIR}/lib;")
endif()
if(NOT SHERD_CUDA_INCLUDE_DIR OR NOT SHERD_CUDA_RUNTIME)
  string(APPEND sherd_missing " CUDA's cuda_runtime_api.h and libcudart.so.${sherd_cuda_major};")
else()
  file(STRINGS ${SHERD_CUDA_INCLUDE_DIR}/cuda_runtime_api.h sherd_cuda_version REGEX "define CUDART_VERSION ")
  string(REGEX MATCH "[0-9]+" sherd_cuda_version "${sherd_cuda_version}")  # 13000 is 13.0
  if(NOT sherd_cuda_version MATCHES "^${sherd_cuda_major}...$")
    string(APPEND sherd_missing " headers of CUDA ${sherd_cuda_major}, which this LibTorch is made with (those in \
${SHERD_CUDA_INCLUDE_DIR} say ${sherd_cuda_version});")
  endif()
endif()
if(NOT SHERD_NCCL_INCLUDE_DIR)
  string(APPEND sherd_missing " NCCL's nccl.h;")
endif()
if(sherd_missing)
  set(SHERD_TORCH_PROBLEM "Missing for CUDA:${sherd_missing} Sherd's scripts/setup --cuda fetches them; else set SHERD_TORCH_DIR to \
the torch folder of a Python environment that has torch ${SHERD_TORCH_VERSION} for CUDA 13, or with one for CUDA 12 put a toolkit of that version in CUDA_HOME.")
  return()
endif()

if(NOT TARGET sherd::torch_cuda)
  add_library(sherd::torch_cuda INTERFACE IMPORTED GLOBAL)
  target_include_directories(sherd::torch_cuda SYSTEM INTERFACE ${SHERD_CUDA_INCLUDE_DIR} ${SHERD_NCCL_INCLUDE_DIR})
  target_compile_definitions(sherd::torch_cuda INTERFACE USE_C10D_NCCL)
  # LibTorch's kernels for CUDA register themselves when the library is loaded, whether or not a symbol of it is used.
  target_link_libraries(sherd::torch_cuda INTERFACE
    -Wl,--push-state,--no-as-needed,${SHERD_TORCH_DIR}/lib/libtorch_cuda.so,${SHERD_TORCH_DIR}/lib/libc10_cuda.so,--pop-state
    ${SHERD_CUDA_RUNTIME} sherd::torch_cpu)
  # CMake keeps run paths of versioned names for none. In Sherd's own build Cuda.cmake sets it: a program that is installed
  # is to find the runtime beside itself.
  get_filename_component(sherd_cuda_runtime_dir ${SHERD_CUDA_RUNTIME} DIRECTORY)
  if(CMAKE_FIND_PACKAGE_NAME OR NOT PROJECT_IS_TOP_LEVEL)
    target_link_options(sherd::torch_cuda INTERFACE -Wl,-rpath,${sherd_cuda_runtime_dir})
  endif()
endif()
