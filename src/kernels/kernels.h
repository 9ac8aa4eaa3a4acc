#pragma once
// The loops over flat shards for CPUs, and the table of kernels that do the same on another device.
// Free of LibTorch and of CUDA.

#include <cstdint>
#include <variant>
#include <vector>

#include "bits.h"
#include "random.h"

namespace sherd::kernels {

/// Where values lie: fp32, or bf16 as its bits.
using Values = std::variant<float*, uint16_t*>;
using ConstValues = std::variant<const float*, const uint16_t*>;
/// Where each rank's values lie, all in fp32, bf16 or fp16.
using Sources = std::variant<std::vector<const float*>, std::vector<const uint16_t*>,
                             std::vector<const Float16*>>;

/// Sums gradients in rank order, in fp32: out (+)= scale × sources[0], += scale × sources[1], …
/// With `accumulate` it adds to `out`, else it overwrites it. One order for ranks and micro-batches
/// alike, so the result does not depend on how a batch is cut. A sum in bf16 is rounded to nearest
/// once per call. Returns sum_of_squares(out), without another pass.
double sum_in_rank_order(Values out, bool accumulate, float scale, const Sources& sources,
                         int64_t numel);

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
/// Restores what split() was given, except values that it moves; NaN stays NaN.
void join(SplitMaster master, float* out, int64_t numel);

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
  /// Masters lie in one of four ways: `master` alone; with its rounding to bf16, `travelling`; as
  /// halves, `travelling` and `low` (see [Note: Masters in two halves]); or as `travelling` alone,
  /// rounded at random.
  float* master = nullptr;
  uint16_t* travelling = nullptr;
  int16_t* low = nullptr;
  /// In bf16 rounded at random: to nearest would swallow nearly all that beta2 = 0.999 adds.
  Values exp_avg = {};
  Values exp_avg_sq = {};
  ConstValues gradient = {};
  uint64_t first_element = 0;  ///< number of the first one in its parameter, for the noise
  [[nodiscard]] AdamWShards from(int64_t element) const;
};

/// Updates masters and moments, and writes what travels, in one pass. Whole masters whose rounding
/// travels are settled, so halves have the same bits.
/// Paper: arXiv:1711.05101, algorithm 2, in the order of operations of torch.optim.AdamW.
void adamw(const AdamWShards& shards, int64_t numel, const AdamWStep& step);

/// Copies to memory that nobody reads soon, past the caches if the processor has such stores. Other
/// threads see the bytes after end_of_stream() and whatever orders plain stores.
void stream(const void* from, void* to, int64_t bytes);
void end_of_stream();

/// CUDA's cudaStream_t.
using Stream = void*;

/// Output and workspace of sums of squares, on the device.
struct Squares {
  static constexpr int64_t kParts = 8192;
  double* sum = nullptr;    ///< one
  double* parts = nullptr;  ///< [kParts], to work in
};

/// The same work as kernels of a device, each put into a stream. All pointers but those to the
/// lists themselves are the device's. Arrays that begin at multiples of 16 bytes are fastest. The
/// bits are those of the loops, except that sums of squares are added in double, in an order that
/// the count decides, and that a NaN may be another NaN.
struct DeviceKernels {
  /// More than 128 sources lie at equal distances, as in a receive buffer.
  void (*sum_in_rank_order)(Values out, bool accumulate, float scale, const Sources& sources,
                            int64_t numel, Stream stream) = nullptr;
  void (*sum_of_squares)(ConstValues values, int64_t numel, const Squares& squares,
                         Stream stream) = nullptr;
  /// *factor = max_norm ÷ (√squares + 1e-6) if that is below 1, else 1.
  void (*clip_factor)(const double* squares, double max_norm, float* factor,
                      Stream stream) = nullptr;
  void (*scale_in_place)(Values values, float factor, int64_t numel, Stream stream) = nullptr;
  void (*to_bfloat16)(const float* values, uint16_t* out, int64_t numel, Stream stream) = nullptr;
  void (*split)(const float* values, SplitMaster out, int64_t numel, Stream stream) = nullptr;
  void (*join)(SplitMaster master, float* out, int64_t numel, Stream stream) = nullptr;
  /// `grad_scale`: one float, used instead of the step's unless null; NaN: nothing is written.
  void (*adamw)(const AdamWShards& shards, int64_t numel, const AdamWStep& step,
                const float* grad_scale, Stream stream) = nullptr;
  /// `out` begins at a multiple of 16 bytes. Logarithm, sine and cosine are the device's: they
  /// differ from the CPU's in the last places of a double.
  void (*fill_random)(float* out, uint64_t first_block, int64_t blocks, const RandomWords& words,
                      const Distribution& distribution, Stream stream) = nullptr;
};

}  // namespace sherd::kernels

namespace sherd::cuda {

/// Launches on the calling thread's current GPU. In libsherd_cuda.so.
[[nodiscard]] const kernels::DeviceKernels& device_kernels();

}  // namespace sherd::cuda
