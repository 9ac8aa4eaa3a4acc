#pragma once
// NVIDIA's driver, asked without any library of CUDA: what is here, before anything large is
// loaded.

#include <string>
#include <vector>

#include "sherd/backend.h"

namespace sherd::detail {

// The build sets it where LibTorch is made with another CUDA than 13 (cmake/Cuda.cmake).
#ifndef SHERD_NEEDED_CUDA
#define SHERD_NEEDED_CUDA 13000
#endif

/// The CUDA version that LibTorch's part for GPUs needs of the driver: 13000 is 13.0.
inline constexpr int kNeededCuda = SHERD_NEEDED_CUDA;

/// The GPUs that the driver shows, or why it shows none: it is missing, too old, or fails.
[[nodiscard]] Gpus ask_nvidia_driver();

/// Takes hold of a GPU, as CUDA does at its first use: throws Error(Unavailable) where another
/// process has it for itself or its memory is full, and says so.
void take_gpu(int number, const Gpu& gpu);

/// Sentences about one of them: its number, name and UUID.
[[nodiscard]] std::string text_of(int number, const Gpu& gpu);

}  // namespace sherd::detail
