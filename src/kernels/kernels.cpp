#include "kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

// Sanitizers start before the choice of a clone can run.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SHERD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SHERD_CLONES
#endif

namespace sherd::kernels {

namespace {

// Stays in the first-level cache while every rank's part is added to it.
constexpr int64_t kBlock = 2048;

template <class T>
SHERD_CLONES void assign(float* out, float scale, const T* source, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    out[i] = scale * widened(source[i]);
  }
}
template <class T>
SHERD_CLONES void add(float* out, float scale, const T* source, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    out[i] += scale * widened(source[i]);
  }
}

// True if so many results would have left the caches before they are read again.
template <class T>
bool is_streamed(int64_t numel) {
  return numel * int64_t{sizeof(T)} >= int64_t{1} << 20;
}

template <class T>
void sum_block(float* out, bool accumulate, float scale, const std::vector<const T*>& sources,
               int64_t begin, int64_t size) {
  for (size_t rank = 0; rank < sources.size(); ++rank) {
    if (rank == 0 && !accumulate) {
      assign(out, scale, sources[rank] + begin, size);
    } else {
      add(out, scale, sources[rank] + begin, size);
    }
  }
}

SHERD_CLONES double block_sum_of_squares(const float* values, int64_t numel) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += values[i + lane] * values[i + lane];
    }
  }
  double sum = 0;
  for (const float lane : lanes) {
    sum += lane;
  }
  for (; i < numel; ++i) {
    sum += double{values[i]} * values[i];
  }
  return sum;
}

SHERD_CLONES void widen_all(const uint16_t* halves, float* out, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    out[i] = widened(halves[i]);
  }
}

SHERD_CLONES void narrow_all(const float* values, uint16_t* out, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    out[i] = narrowed(values[i]);
  }
}

template <class T>
double sum_blocks(float* out, bool accumulate, float scale, const std::vector<const T*>& sources,
                  int64_t numel) {
  const bool streamed = !accumulate && is_streamed<float>(numel);
  std::array<float, kBlock> room;
  double squares = 0;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t size = std::min(kBlock, numel - begin);
    float* sums = streamed ? room.data() : out + begin;
    sum_block(sums, accumulate, scale, sources, begin, size);
    squares += block_sum_of_squares(sums, size);
    if (streamed) {
      stream(sums, out + begin, size * int64_t{sizeof(float)});
    }
  }
  end_of_stream();
  return squares;
}

template <class T>
double sum_blocks(uint16_t* out, bool accumulate, float scale, const std::vector<const T*>& sources,
                  int64_t numel) {
  std::array<float, kBlock> sums;
  double squares = 0;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t size = std::min(kBlock, numel - begin);
    if (accumulate) {
      widen_all(out + begin, sums.data(), size);
    }
    sum_block(sums.data(), accumulate, scale, sources, begin, size);
    narrow_all(sums.data(), out + begin, size);
    widen_all(out + begin, sums.data(), size);  // what is there afterwards
    squares += block_sum_of_squares(sums.data(), size);
  }
  return squares;
}

// Both moments of an element: the lower half of the noise is the first one's.
inline void store_moments(float& exp_avg, float& exp_avg_sq, float m, float v, uint64_t /*element*/,
                          uint32_t /*step*/) {
  exp_avg = m;
  exp_avg_sq = v;
}
inline void store_moments(uint16_t& exp_avg, uint16_t& exp_avg_sq, float m, float v,
                          uint64_t element, uint32_t step) {
  const uint32_t noise = rounding_noise(element, step);
  exp_avg = narrowed_at_random(m, noise);
  exp_avg_sq = narrowed_at_random(v, noise >> 16);
}

template <class Moment>
SHERD_CLONES void adamw_update(float* master, Moment* exp_avg, Moment* exp_avg_sq,
                               const float* gradient, int64_t numel, const AdamWStep& s,
                               uint64_t first_element) {
  for (int64_t i = 0; i < numel; ++i) {
    const float g = gradient[i] * s.grad_scale;
    const float old_m = widened(exp_avg[i]);
    const float m = old_m + s.one_minus_beta1 * (g - old_m);
    const float v = s.beta2 * widened(exp_avg_sq[i]) + s.one_minus_beta2 * g * g;
    store_moments(exp_avg[i], exp_avg_sq[i], m, v, first_element + static_cast<uint64_t>(i),
                  s.number);
    const float denominator = std::sqrt(v) / s.bias_correction2_sqrt + s.eps;
    master[i] = master[i] * s.keep - s.step_size * (m / denominator);
  }
}

SHERD_CLONES void narrow_all_at_random(const float* values, uint16_t* out, int64_t numel,
                                       uint64_t first_element, uint32_t number) {
  for (int64_t i = 0; i < numel; ++i) {
    const uint32_t noise = rounding_noise(first_element + static_cast<uint64_t>(i), number);
    out[i] = narrowed_at_random(values[i], noise);
  }
}

SHERD_CLONES void settle_all(float* values, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    values[i] = settled(values[i]);
  }
}

SHERD_CLONES void split_all(const float* values, uint16_t* high, int16_t* low, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    const Halves halves = in_halves(values[i]);
    high[i] = halves.travelling;
    low[i] = halves.low;
  }
}

SHERD_CLONES void join_all(const uint16_t* high, const int16_t* low, float* out, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    out[i] = joined({high[i], low[i]});
  }
}

void narrow_block(const float* values, uint16_t* out, int64_t numel, bool streamed) {
  std::array<uint16_t, kBlock> halves;
  narrow_all(values, streamed ? halves.data() : out, numel);
  if (streamed) {
    stream(halves.data(), out, numel * int64_t{sizeof(uint16_t)});
  }
}

// fn(begin, numel) for each block.
template <class Fn>
void for_blocks(int64_t numel, const Fn& fn) {
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    fn(begin, std::min(kBlock, numel - begin));
  }
}

// A block of values as floats: where they lie, or widened into `room`.
const float* as_floats(ConstValues values, float* room, int64_t numel) {
  if (const auto* floats = std::get_if<const float*>(&values)) {
    return *floats;
  }
  widen_all(std::get<const uint16_t*>(values), room, numel);
  return room;
}

// Of a block: the masters as floats, where they lie or in `room`.
float* open_masters(const AdamWShards& block, float* room, int64_t numel) {
  if (block.master == nullptr) {
    block.low != nullptr ? join_all(block.travelling, block.low, room, numel)
                         : widen_all(block.travelling, room, numel);
    return room;
  }
  if (block.travelling != nullptr) {
    settle_all(block.master, numel);
  }
  return block.master;
}

// The way back.
void close_masters(const AdamWShards& block, float* masters, int64_t numel, uint32_t step,
                   bool streamed) {
  if (block.low != nullptr) {
    split_all(masters, block.travelling, block.low, numel);
  } else if (block.master == nullptr) {
    narrow_all_at_random(masters, block.travelling, numel, block.first_element,
                         masters_number(step));
  } else if (block.travelling != nullptr) {
    settle_all(masters, numel);
    narrow_block(masters, block.travelling, numel, streamed);
  }
}

void update_block(const AdamWShards& block, float* masters, const float* gradient, int64_t numel,
                  const AdamWStep& step) {
  std::visit(
      [&]<class Moment>(Moment* exp_avg) {
        adamw_update(masters, exp_avg, std::get<Moment*>(block.exp_avg_sq), gradient, numel, step,
                     block.first_element);
      },
      block.exp_avg);
}

SHERD_CLONES void multiply_all(float* values, float factor, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    values[i] *= factor;
  }
}

using Words = std::array<uint32_t, RandomWords::kPerBlock>;

void write_block(float* out, const Words& words, const Uniform& of) {
  for (size_t i = 0; i < words.size(); ++i) {
    out[i] = static_cast<float>(of.low + (of.high - of.low) * half_open_unit(words[i]));
  }
}

void write_block(float* out, const Words& words, const Normal& of) {
  for (size_t i = 0; i < words.size(); i += 2) {
    const double radius = std::sqrt(-2.0 * std::log(open_unit(words[i])));
    const double angle = 2.0 * std::numbers::pi * open_unit(words[i + 1]);
    out[i] = static_cast<float>(of.mean + of.std * radius * std::cos(angle));
    out[i + 1] = static_cast<float>(of.mean + of.std * radius * std::sin(angle));
  }
}

}  // namespace

double sum_in_rank_order(Values out, bool accumulate, float scale, const Sources& sources,
                         int64_t numel) {
  return std::visit(
      [&](auto* sums, const auto& typed) {
        return sum_blocks(sums, accumulate, scale, typed, numel);
      },
      out, sources);
}

double sum_of_squares(ConstValues values, int64_t numel) {
  std::array<float, kBlock> room;
  double sum = 0;
  for_blocks(numel, [&](int64_t begin, int64_t size) {
    const ConstValues block =
        std::visit([&](const auto* all) { return ConstValues(all + begin); }, values);
    sum += block_sum_of_squares(as_floats(block, room.data(), size), size);
  });
  return sum;
}

void scale_in_place(Values values, float factor, int64_t numel) {
  if (auto* const* floats = std::get_if<float*>(&values)) {
    return multiply_all(*floats, factor, numel);
  }
  std::array<float, kBlock> room;
  auto* halves = std::get<uint16_t*>(values);
  for_blocks(numel, [&](int64_t begin, int64_t size) {
    widen_all(halves + begin, room.data(), size);
    multiply_all(room.data(), factor, size);
    narrow_all(room.data(), halves + begin, size);
  });
}

void to_bfloat16(const float* values, uint16_t* out, int64_t numel) {
  narrow_all(values, out, numel);
}

void split(const float* values, SplitMaster out, int64_t numel) {
  split_all(values, out.travelling, out.low, numel);
}

void join(SplitMaster master, float* out, int64_t numel) {
  join_all(master.travelling, master.low, out, numel);
}

AdamWShards AdamWShards::from(int64_t element) const {
  const auto place = [element](auto* all) { return all == nullptr ? nullptr : all + element; };
  return {
      .master = place(master),
      .travelling = place(travelling),
      .low = place(low),
      .exp_avg = std::visit([&](auto* all) { return Values(place(all)); }, exp_avg),
      .exp_avg_sq = std::visit([&](auto* all) { return Values(place(all)); }, exp_avg_sq),
      .gradient = std::visit([&](const auto* all) { return ConstValues(place(all)); }, gradient),
      .first_element = first_element + static_cast<uint64_t>(element)};
}

void adamw(const AdamWShards& shards, int64_t numel, const AdamWStep& step) {
  const bool streamed = is_streamed<uint16_t>(numel);
  for_blocks(numel, [&](int64_t begin, int64_t size) {
    std::array<float, kBlock> masters_room;
    std::array<float, kBlock> gradient_room;
    const AdamWShards block = shards.from(begin);
    float* masters = open_masters(block, masters_room.data(), size);
    update_block(block, masters, as_floats(block.gradient, gradient_room.data(), size), size, step);
    close_masters(block, masters, size, step.number, streamed);
  });
  end_of_stream();
}

void fill_random(float* out, uint64_t first_block, int64_t blocks, const RandomWords& words,
                 const Distribution& distribution) {
  std::visit(
      [&](const auto& of) {
        for (int64_t block = 0; block < blocks; ++block) {
          write_block(out + block * RandomWords::kPerBlock,
                      words.block(first_block + static_cast<uint64_t>(block)), of);
        }
      },
      distribution);
}

}  // namespace sherd::kernels
