#include "tests/fake_device/shard_kernels.h"

#include <cmath>
#include <functional>
#include <variant>

#include "tests/fake_device/captures.h"
#include "tests/fake_device/streams.h"

namespace sherd::fake {
namespace {

using kernels::AdamWShards;
using kernels::AdamWStep;
using kernels::DeviceKernels;

template <class T>
Range range_of(const T* first, int64_t numel) {
  const auto begin = reinterpret_cast<std::uintptr_t>(first);
  return first == nullptr ? Range{}
                          : Range{begin, begin + static_cast<std::size_t>(numel) * sizeof(T)};
}
template <class... T>
Range range_of(const std::variant<T*...>& first, int64_t numel) {
  return std::visit([&](const auto* typed) { return range_of(typed, numel); }, first);
}

// Unlike an operator, a kernel keeps no tensors: it has run when this returns. The host waits for
// that, uncounted. In a capture it runs with each launch.
void launch(const char* name, const TouchedRanges& touched, const std::function<void()>& work) {
  const c10::Stream stream = current_stream({kDevice, current_device()});
  issue(stream, name, touched, work);
  const auto capture = capture_with(stream);
  if (capture == nullptr) {
    drain(stream);
  } else if (capture->owns(touched)) {
    work();  // what is computed from it meanwhile finds values
  }
}

void sum_in_rank_order(kernels::Values out, bool accumulate, float scale,
                       const kernels::Sources& sources, int64_t numel, kernels::Stream /*stream*/) {
  TouchedRanges touched{{}, {range_of(out, numel)}};
  std::visit(
      [&](const auto& typed) {
        for (const auto* source : typed) {
          touched.reads.push_back(range_of(source, numel));
        }
      },
      sources);
  launch("sum in rank order", touched,
         [=] { kernels::sum_in_rank_order(out, accumulate, scale, sources, numel); });
}

void sum_of_squares(kernels::ConstValues values, int64_t numel, const kernels::Squares& squares,
                    kernels::Stream /*stream*/) {
  launch("sum of squares",
         {{range_of(values, numel)},
          {range_of(squares.sum, 1), range_of(squares.parts, kernels::Squares::kParts)}},
         [=] { *squares.sum = kernels::sum_of_squares(values, numel); });
}

void clip_factor(const double* squares, double max_norm, float* factor,
                 kernels::Stream /*stream*/) {
  launch("clip factor", {{range_of(squares, 1)}, {range_of(factor, 1)}}, [=] {
    const double wanted = max_norm / (std::sqrt(*squares) + 1e-6);
    *factor = wanted < 1.0 ? static_cast<float>(wanted) : 1.0F;
  });
}

void scale_in_place(kernels::Values values, float factor, int64_t numel,
                    kernels::Stream /*stream*/) {
  launch("scale in place", {{}, {range_of(values, numel)}},
         [=] { kernels::scale_in_place(values, factor, numel); });
}

void to_bfloat16(const float* values, uint16_t* out, int64_t numel, kernels::Stream /*stream*/) {
  launch("to bf16", {{range_of(values, numel)}, {range_of(out, numel)}},
         [=] { kernels::to_bfloat16(values, out, numel); });
}

void split(const float* values, kernels::SplitMaster out, int64_t numel,
           kernels::Stream /*stream*/) {
  launch("split",
         {{range_of(values, numel)}, {range_of(out.travelling, numel), range_of(out.low, numel)}},
         [=] { kernels::split(values, out, numel); });
}

void join(kernels::SplitMaster master, float* out, int64_t numel, kernels::Stream /*stream*/) {
  launch(
      "join",
      {{range_of(master.travelling, numel), range_of(master.low, numel)}, {range_of(out, numel)}},
      [=] { kernels::join(master, out, numel); });
}

void adamw(const AdamWShards& shards, int64_t numel, const AdamWStep& step, const float* grad_scale,
           kernels::Stream /*stream*/) {
  const TouchedRanges touched{{range_of(shards.gradient, numel), range_of(grad_scale, 1)},
                              {range_of(shards.master, numel), range_of(shards.travelling, numel),
                               range_of(shards.low, numel), range_of(shards.exp_avg, numel),
                               range_of(shards.exp_avg_sq, numel)}};
  launch("adamw", touched, [=] {
    AdamWStep scaled = step;
    scaled.grad_scale = grad_scale != nullptr ? *grad_scale : step.grad_scale;
    if (!std::isnan(scaled.grad_scale)) {
      kernels::adamw(shards, numel, scaled);
    }
  });
}

void fill_random(float* out, uint64_t first_block, int64_t blocks,
                 const kernels::RandomWords& words, const kernels::Distribution& distribution,
                 kernels::Stream /*stream*/) {
  launch("random elements", {{}, {range_of(out, blocks * kernels::RandomWords::kPerBlock)}},
         [=] { kernels::fill_random(out, first_block, blocks, words, distribution); });
}

}  // namespace

const DeviceKernels* fake_kernels() {
  static constexpr DeviceKernels kKernels = {.sum_in_rank_order = sum_in_rank_order,
                                             .sum_of_squares = sum_of_squares,
                                             .clip_factor = clip_factor,
                                             .scale_in_place = scale_in_place,
                                             .to_bfloat16 = to_bfloat16,
                                             .split = split,
                                             .join = join,
                                             .adamw = adamw,
                                             .fill_random = fill_random};
  return &kKernels;
}

}  // namespace sherd::fake
