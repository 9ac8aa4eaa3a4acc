#pragma once
// How fast kinds of GPUs run the kernels of a step: what was measured, and what follows for others.

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "llm/model/decoder_config.h"
#include "llm/plan/device.h"
#include "llm/plan/operator_watch.h"
#include "llm/plan/planned_run.h"
#include "ops/attention_kernel.h"

namespace llm::plan {

/// A product [m, k] · [k, n] that was measured.
struct ProductFigure {
  double m = 0, n = 0, k = 0;
  double teraflops = 0;
};

/// Causal attention over documents of `tokens` that was measured, TFLOP/s: of 4 operations per
/// pair, head and value forward, and of 10 backward.
struct AttentionFigure {
  double tokens = 0;
  double forward = 0;
  double backward = 0;
};

/// The table of one kind of GPU.
struct GpuRates {
  std::string source = {};                      ///< for people: where the figures are from
  double copy_bytes_per_second = 0;             ///< read and written
  std::map<Kernel, double> share_of_copy = {};  ///< of kernels that move bytes; else 1
  std::map<Kernel, ProductFigure> products = {};
  /// By length, the shortest first. `Plain` has none: it is products and passes over scores.
  std::map<sherd::ops::AttentionKernel, std::vector<AttentionFigure>> attention = {};
  double launch_seconds = 0;  ///< a kernel takes at least, unless it is in a captured graph
  double pinned_bytes_per_second = 0;  ///< of the link to the host, each way at once

  /// What an operator's kernels take, one after the other.
  [[nodiscard]] double seconds(const OperatorCall& call) const;
  /// What one call of a kernel takes, but attention's. Products take their operations at the rate
  /// that the measured one had beside its own bytes, and then each matrix once at the copy's rate.
  [[nodiscard]] double seconds(const KernelCall& call) const;
  /// Of attention by `kernel`, Cudnn or Flash. Between two lengths in proportion; beyond them as
  /// the nearest, but for the half-empty tiles on the diagonal, which are more of a short document.
  [[nodiscard]] double attention_rate(sherd::ops::AttentionKernel kernel, double document_tokens,
                                      bool is_backward) const;
};

/// Constants of an H200's table that no kernel was measured for: they are computed from whole
/// steps, so that a plan of such a step is no proof of itself.
enum class StepConstant : std::uint8_t {
  AdamWShare,  ///< from the optimizer's phase of "all bf16, 1 × 8192"
  LaunchCost,  ///< from BLOOM-560M without and with CUDA graphs
  LinkToHost,  ///< from the optimizer's phase of "masters and moments on the host"
};

/// The H200's table, without `left_out`: AdamW then runs at the copy's rate, launches cost nothing,
/// and the link has 50 GB/s, as was assumed before.
[[nodiscard]] GpuRates h200_rates(const std::vector<StepConstant>& left_out = {});

/// The table that is shipped for a device: the H200's, which is scaled for others by what each may
/// reach of products and of memory.
[[nodiscard]] GpuRates shipped_rates_of(const Device& device);

/// Returns the kernel that computes attention over `batch` of `shape` in `dtype` on `device`, for
/// `asked`: as ops/cuda chooses. Heads are multiples of 8. cuDNN serves heads of up to 128 without
/// ALiBi, documents of one length, and no `deterministic` run; layers with a window are flash
/// attention's in its place. Only matrix products serve a soft cap.
[[nodiscard]] sherd::ops::AttentionKernel attention_on(
    const Device& device, sherd::ops::AttentionKernel asked, const model::DecoderConfig& shape,
    c10::ScalarType dtype, const MicroBatch& batch, bool deterministic = false);

[[nodiscard]] nlohmann::ordered_json json_of(const GpuRates& rates);
/// Throws nlohmann::json::exception for another form.
[[nodiscard]] GpuRates gpu_rates_of_json(const nlohmann::json& file);

}  // namespace llm::plan
