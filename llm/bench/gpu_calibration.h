#pragma once
// How fast this GPU runs the kernels of a step, for plans: `sherd bench --calibrate` on a GPU.

#include <cstdint>
#include <functional>
#include <string>

#include <c10/core/Device.h>

#include "llm/plan/gpu_rates.h"
#include "ops/backend.h"

namespace llm::bench {

/// The sizes that kernels are measured at: those of Llama-3-8B.
struct KernelSizes {
  std::int64_t tokens = 8192;
  std::int64_t width = 4096;
  std::int64_t inner = 14'336;
  std::int64_t heads = 32;
  std::int64_t key_heads = 8;
  std::int64_t head = 128;
  std::int64_t vocabulary = 128'256;
  std::int64_t logit_rows = 2048;
  std::int64_t copied_bytes = std::int64_t{1} << 30;
};

/// Measures each kernel of the table in bf16, with `backend` and LibTorch's operators, and returns
/// `shipped` with what was measured in its place: all but `source`. Memory: a few GiB at the sizes
/// of a GPU. Runs on any device that `backend` serves; on a CPU the figures show nothing. Not
/// collective. `say` is called with what is measured next.
[[nodiscard]] plan::GpuRates calibrate_kernels(const sherd::ops::Backend& backend,
                                               c10::Device device, const plan::GpuRates& shipped,
                                               const KernelSizes& sizes,
                                               const std::function<void(const std::string&)>& say);

}  // namespace llm::bench
