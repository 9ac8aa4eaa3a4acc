# A build with SHERD_CUDA: the language CUDA by the nvcc of NVIDIA's wheels or of the system, and sherd::torch_cuda.
include(LibTorchCuda)
if(SHERD_TORCH_PROBLEM)
  message(FATAL_ERROR "${SHERD_TORCH_PROBLEM}")
endif()
set(SHERD_PLUGIN_DIR ${PROJECT_BINARY_DIR}/lib)  # libraries that programs load by their run path
list(APPEND CMAKE_BUILD_RPATH ${sherd_cuda_runtime_dir} ${SHERD_PLUGIN_DIR})
# LibTorch's headers name types of CUDA libraries whose wheels, hundreds of megabytes, hold nothing else that is needed here.
if(NOT EXISTS ${SHERD_CUDA_INCLUDE_DIR}/cublas_v2.h)
  target_include_directories(sherd::torch_cuda SYSTEM INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/cmake/shim/cuda>)
endif()

find_program(SHERD_NVCC nvcc HINTS ${sherd_nvidia_wheels}/cu${sherd_cuda_major}/bin PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(NOT SHERD_NVCC)
  message(FATAL_ERROR "No nvcc, CUDA's compiler. Run scripts/setup --cuda, or put the nvcc of a CUDA ${sherd_cuda_major} toolkit in PATH.")
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${SHERD_NVCC})
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  # Turing (Volta, where this CUDA still has it) to Blackwell (Hopper, where it has none yet), and by the newest one's PTX what is
  # newer: what src/kernels/cuda/library.cpp says that it serves.
  set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real)
  if(sherd_cuda_version LESS 13000)
    list(PREPEND CMAKE_CUDA_ARCHITECTURES 70-real)
  endif()
  if(sherd_cuda_version LESS 12080)
    list(APPEND CMAKE_CUDA_ARCHITECTURES 90)
  else()
    list(APPEND CMAKE_CUDA_ARCHITECTURES 90-real 100-real 120)
  endif()
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # sherd::torch_cuda brings the one that LibTorch uses
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 and later have it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
