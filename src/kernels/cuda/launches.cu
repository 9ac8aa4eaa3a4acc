// Launches: which kernel, how the range is cut, how many blocks.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/kernels/adamw.cuh"
#include "kernels/cuda/kernels/random.cuh"
#include "kernels/cuda/kernels/sums.cuh"
#include "sherd/error.h"

namespace sherd::cuda {

namespace {

using kernels::AdamWShards;
using kernels::AdamWStep;
using kernels::ConstValues;
using kernels::DeviceKernels;
using kernels::Distribution;
using kernels::RandomWords;
using kernels::SplitMaster;
using kernels::Squares;
using kernels::Values;

constexpr int kThreads = 256;

// Which of an array's first elements lie at multiples of 16 bytes: a bit for each. Of none, all.
template <class T>
unsigned aligned(const T* array) {
  unsigned elements = 0;
  for (unsigned i = 0; i < kPacked; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(array) + i * sizeof(T);
    elements |= (array == nullptr || address % sizeof(Pack<T>) == 0 ? 1U : 0U) << i;
  }
  return elements;
}
template <class... T>
unsigned aligned(const std::variant<T...>& array) {
  return std::visit([](const auto* typed) { return aligned(typed); }, array);
}

// Where no element is aligned in all arrays, single ones are all there is.
Flat cut(int64_t numel, unsigned aligned_in_all) {
  const int64_t head =
      aligned_in_all == 0 ? numel : std::min<int64_t>(numel, std::countr_zero(aligned_in_all));
  return {numel, head, (numel - head) / kPacked};
}

// A pack for each thread, for kernels without sums.
int64_t blocks_of_one_pack(int64_t numel) {
  constexpr int64_t kOfABlock = int64_t{kThreads} * kPacked;
  return std::min<int64_t>((numel + kOfABlock - 1) / kOfABlock, std::numeric_limits<int>::max());
}

// At most as many blocks as a sum has parts: so sums are the same on every GPU.
int64_t blocks_for(int64_t numel) {
  return std::min(blocks_of_one_pack(numel), Squares::kParts);
}

template <class... Parameters, class... Arguments>
void launch(const char* name, kernels::Stream stream, const Flat& flat,
            void (*kernel)(Flat, Parameters...), const Arguments&... arguments) {
  gpu::launch<kThreads>(name, gpu::stream_at(stream), blocks_for(flat.numel), kernel, flat,
                        arguments...);
}

// Of more sources than the kernel has pointers for.
template <class In>
std::ptrdiff_t distance_between(const std::vector<const In*>& sources) {
  const std::ptrdiff_t distance = sources[1] - sources[0];
  for (size_t i = 2; i < sources.size(); ++i) {
    if (sources[i] - sources[i - 1] != distance) {
      throw Error(ExitCode::Usage, "[sum_in_rank_order] " + std::to_string(sources.size()) +
                                       " ranks' gradients on a GPU must lie at equal distances: "
                                       "receive them into one buffer");
    }
  }
  return distance;
}

void sum_in_order(Values out, bool accumulate, float scale, const kernels::Sources& sources,
                  int64_t numel, kernels::Stream stream) {
  const auto sum = [&]<class Out, class In>(Out* typed_out, const std::vector<const In*>& typed) {
    Sources<In> all;
    unsigned aligned_in_all = aligned(typed_out);
    for (const In* source : typed) {
      if (all.count < kMaxSources) {
        all.all[all.count] = source;
      }
      ++all.count;
      aligned_in_all &= aligned(source);
    }
    all.distance = all.count > kMaxSources ? distance_between(typed) : 0;
    launch("sum_in_rank_order", stream, cut(numel, aligned_in_all),
           sum_in_rank_order<Out, In, kThreads>, typed_out, accumulate, scale, all);
  };
  std::visit(sum, out, sources);
}

void sum_squares(ConstValues values, int64_t numel, const Squares& squares,
                 kernels::Stream stream) {
  std::visit(
      [&]<class T>(const T* typed) {
        launch("squares_of", stream, cut(numel, aligned(typed)), squares_of<T, kThreads>, typed,
               squares.parts);
      },
      values);
  gpu::launch<kThreads>("sum_parts", gpu::stream_at(stream), 1, sum_parts<kThreads>, squares.parts,
                        blocks_for(numel), squares.sum);
}

void find_clip_factor(const double* squares, double max_norm, float* factor,
                      kernels::Stream stream) {
  gpu::launch<gpu::kWarp>("clip_factor", gpu::stream_at(stream), 1, clip_factor<gpu::kWarp>,
                          squares, max_norm, factor);
}

void scale(Values values, float factor, int64_t numel, kernels::Stream stream) {
  std::visit(
      [&]<class T>(T* typed) {
        launch("scale_in_place", stream, cut(numel, aligned(typed)), scale_in_place<T, kThreads>,
               typed, factor);
      },
      values);
}

void round_to_bfloat16(const float* values, uint16_t* out, int64_t numel, kernels::Stream stream) {
  launch("to_bfloat16", stream, cut(numel, aligned(values) & aligned(out)), to_bfloat16<kThreads>,
         values, out);
}

void split_all(const float* values, SplitMaster out, int64_t numel, kernels::Stream stream) {
  const unsigned aligned_in_all = aligned(values) & aligned(out.travelling) & aligned(out.low);
  launch("split", stream, cut(numel, aligned_in_all), split<kThreads>, values, out.travelling,
         out.low);
}

void join_all(SplitMaster master, float* out, int64_t numel, kernels::Stream stream) {
  const unsigned aligned_in_all = aligned(master.travelling) & aligned(master.low) & aligned(out);
  launch("join", stream, cut(numel, aligned_in_all), join<kThreads>, master.travelling, master.low,
         out);
}

// Calls fn(masters), in the way that they lie.
template <class Fn>
void with_masters(const AdamWShards& shards, const Fn& fn) {
  if (shards.low != nullptr) {
    fn(MastersInHalves{shards.travelling, shards.low});
  } else if (shards.master == nullptr) {
    fn(NarrowMasters{shards.travelling});
  } else if (shards.travelling != nullptr) {
    fn(RoundedMasters{shards.master, shards.travelling});
  } else {
    fn(WholeMasters{shards.master});
  }
}

void update_all(const AdamWShards& shards, int64_t numel, const AdamWStep& step,
                const float* grad_scale, kernels::Stream stream) {
  const unsigned aligned_in_all = aligned(shards.master) & aligned(shards.travelling) &
                                  aligned(shards.low) & aligned(shards.exp_avg) &
                                  aligned(shards.exp_avg_sq) & aligned(shards.gradient);
  const auto update = [&]<class M, class G, class Masters>(M* exp_avg, const G* gradient,
                                                           const Masters& masters) {
    const AdamWArrays<Masters, M, G> arrays{masters, exp_avg, std::get<M*>(shards.exp_avg_sq),
                                            gradient, shards.first_element};
    gpu::launch<kThreads>("adamw", gpu::stream_at(stream), blocks_of_one_pack(numel),
                          adamw<Masters, M, G, kThreads>, cut(numel, aligned_in_all), arrays,
                          AdamWNumbers{step, 1.0F / step.bias_correction2_sqrt}, grad_scale);
  };
  with_masters(shards, [&](const auto& masters) {
    std::visit([&](auto* exp_avg, const auto* gradient) { update(exp_avg, gradient, masters); },
               shards.exp_avg, shards.gradient);
  });
}

void fill_random(float* out, uint64_t first_block, int64_t blocks, const RandomWords& words,
                 const Distribution& distribution, kernels::Stream stream) {
  constexpr int64_t kMostBlocks = 4096;  // each thread walks over the rest
  const RandomBlocks of{out, first_block, blocks, words};
  std::visit(
      [&]<class Of>(const Of& typed) {
        gpu::launch<kThreads>("random_elements", gpu::stream_at(stream),
                              std::min((blocks + kThreads - 1) / kThreads, kMostBlocks),
                              random_elements<Of, kThreads>, of, typed);
      },
      distribution);
}

}  // namespace

const DeviceKernels& device_kernels() {
  static constexpr DeviceKernels kKernels = {.sum_in_rank_order = sum_in_order,
                                             .sum_of_squares = sum_squares,
                                             .clip_factor = find_clip_factor,
                                             .scale_in_place = scale,
                                             .to_bfloat16 = round_to_bfloat16,
                                             .split = split_all,
                                             .join = join_all,
                                             .adamw = update_all,
                                             .fill_random = fill_random};
  return kKernels;
}

}  // namespace sherd::cuda
