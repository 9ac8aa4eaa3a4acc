#pragma once
// How fast this GPU runs the kernels of a step, for plans: `sherd bench --calibrate` on a GPU.

#include <cstdint>
#include <functional>
#include <string>

#include <c10/core/Device.h>

#include "llm/plan/gpu_rates.h"
#include "ops/backend.h"
#include "sherd/world.h"

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

/// Throws sherd::Error(Usage) for more than one rank: calibrate_kernels() measures one GPU.
void check_ranks_of_kernels(const sherd::World& world);

/// Measures each kernel of the table in bf16, with `backend` and LibTorch's operators, and returns
/// `shipped` with what was measured in its place. Attention by a kernel that `backend` does not use
/// when asked for it stays as shipped; `source` then says so. Memory: a few GiB at the sizes of a
/// GPU. Runs on any device that `backend` serves; on a CPU the figures show nothing. Not
/// collective. `say` is called with lines for people: what is measured next, and what is not.
[[nodiscard]] plan::GpuRates calibrate_kernels(const sherd::ops::Backend& backend,
                                               c10::Device device, const plan::GpuRates& shipped,
                                               const KernelSizes& sizes,
                                               const std::function<void(const std::string&)>& say);

}  // namespace llm::bench
