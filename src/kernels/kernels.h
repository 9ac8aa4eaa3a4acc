#pragma once
// The loops over flat shards, free of LibTorch. Each is compiled for several instruction sets and
// chosen at run time.

#include <cstdint>
#include <span>
#include <variant>

#include "bits.h"

namespace sherd::kernels {

/// Where values lie: fp32, or bf16 as its bits.
using Values = std::variant<float*, uint16_t*>;
using ConstValues = std::variant<const float*, const uint16_t*>;

/// Sums gradients in rank order, in fp32: out (+)= scale × sources[0], += scale × sources[1], …
/// With `accumulate` the first addition is to what `out` holds, without it out is overwritten. One
/// order for ranks and micro-batches alike, so the result does not depend on how a batch is cut. A
/// sum in bf16 is rounded to nearest once a call. Returns sum_of_squares(out) of the result,
/// without another pass over it.
double sum_in_rank_order(Values out, bool accumulate, float scale,
                         std::span<const float* const> sources, int64_t numel);
double sum_in_rank_order(Values out, bool accumulate, float scale,
                         std::span<const uint16_t* const> sources, int64_t numel);

/// Sum of squares: floats within short blocks, doubles over them.
[[nodiscard]] double sum_of_squares(ConstValues values, int64_t numel);

void scale_in_place(Values values, float factor, int64_t numel);

/// Rounds to the nearest bf16, ties to even; NaN stays NaN.
void to_bfloat16(const float* values, uint16_t* out, int64_t numel);

/// Where masters lie in halves, see [Note: Masters in two halves].
struct SplitMaster {
  uint16_t* travelling = nullptr;  ///< bf16, as bits
  int16_t* low = nullptr;
  [[nodiscard]] SplitMaster from(int64_t element) const {
    return {travelling + element, low + element};
  }
};
void split(const float* values, SplitMaster out, int64_t numel);
/// What split() was given, but for values that it moves; NaN stays NaN.
void join(SplitMaster master, float* out, int64_t numel);
/// Moves whole masters where split() would.
void settle(float* master, int64_t numel);

/// The numbers of one AdamW step that are the same for a whole group.
struct AdamWStep {
  float keep = 1;             ///< 1 − lr × weight_decay
  float step_size = 0;        ///< lr ÷ (1 − beta1^t)
  float one_minus_beta1 = 0;  ///< differences are taken in double, and rounded once
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float bias_correction2_sqrt = 1;  ///< sqrt(1 − beta2^t)
  float eps = 0;
  float grad_scale = 1;  ///< the clip factor
  uint32_t number = 0;   ///< of the step, for the noise
};

/// What an AdamW step reads and writes, all of one length.
struct AdamWShards {
  /// Masters lie in one of four ways: `master` alone, which travels in fp32; with its rounding to
  /// bf16, `travelling`; as halves, `travelling` and `low` (see [Note: Masters in two halves]); or
  /// as `travelling` alone, rounded at random.
  float* master = nullptr;
  uint16_t* travelling = nullptr;
  int16_t* low = nullptr;
  /// Of one dtype. In bf16 they are rounded at random: rounding to nearest would swallow every
  /// change below 1/256 of a moment, and with it nearly all of what beta2 = 0.999 adds.
  Values exp_avg = {};
  Values exp_avg_sq = {};
  ConstValues gradient = {};
  uint64_t first_element = 0;  ///< number of the first one in its parameter, for the noise
  [[nodiscard]] AdamWShards from(int64_t element) const;
};

/// One pass: reads gradients, updates masters and moments, and writes what travels. Whole masters
/// whose rounding travels are settled, so that halves have the same bits. What is rounded at random
/// keeps its expectation, on any number of ranks with the same bits.
/// Paper: arXiv:1711.05101, algorithm 2, in the order of operations of torch.optim.AdamW.
void adamw(const AdamWShards& shards, int64_t numel, const AdamWStep& step);

}  // namespace sherd::kernels
