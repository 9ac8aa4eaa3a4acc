// AdamW as GPUs get it has the bits of the processor's loops, in all ways that masters, moments and
// gradients lie.

#include "kernels/cuda/kernels/adamw.cuh"

#include "tests/emulator/emulator.h"
#include "tests/sherd/cuda/launched.h"

namespace sherd::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

enum class Masters { Whole, Rounded, InHalves, Narrow };
constexpr Masters kMasters[] = {Masters::Whole, Masters::Rounded, Masters::InHalves,
                                Masters::Narrow};

kernels::AdamWStep step_at(uint32_t number) {
  const auto t = static_cast<float>(number);
  return {.keep = 0.9997F,
          .step_size = 0.013F / (1 - std::pow(0.9F, t)),
          .one_minus_beta1 = 0.1F,
          .beta2 = 0.99F,
          .one_minus_beta2 = 0.01F,
          .bias_correction2_sqrt = std::sqrt(1 - std::pow(0.99F, t)),
          .eps = 1e-8F,
          .grad_scale = 0.37F,
          .number = number};
}

AdamWNumbers numbers_of(const kernels::AdamWStep& step) {
  return {step, 1.0F / step.bias_correction2_sqrt};
}

// Everything there is, whether a way uses it or not.
template <class Moment, class Gradient>
struct State {
  State(Masters way, const Range& of) : masters(way), range(of) {
    if (way == Masters::InHalves) {
      kernels::split(master.data(), {travelling.data(), low.data()},
                     static_cast<int64_t>(master.size()));
    }
  }

  [[nodiscard]] kernels::AdamWShards shards() {
    const bool has_master = masters == Masters::Whole || masters == Masters::Rounded;
    return {.master = has_master ? begin(master, range) : nullptr,
            .travelling = masters == Masters::Whole ? nullptr : begin(travelling, range),
            .low = masters == Masters::InHalves ? begin(low, range) : nullptr,
            .exp_avg = begin(exp_avg, range),
            .exp_avg_sq = begin(exp_avg_sq, range),
            .gradient = begin(std::as_const(gradient), range),
            .first_element = (uint64_t{1} << 32) - 20};
  }

  void expect_same(const State& expected, const std::string& what) const {
    EXPECT_TRUE(are_same(master, expected.master)) << "master" << what;
    EXPECT_TRUE(are_same(travelling, expected.travelling)) << "travelling" << what;
    EXPECT_TRUE(are_same(low, expected.low)) << "low" << what;
    EXPECT_TRUE(are_same(exp_avg, expected.exp_avg)) << "exp_avg" << what;
    EXPECT_TRUE(are_same(exp_avg_sq, expected.exp_avg_sq)) << "exp_avg_sq" << what;
    EXPECT_TRUE(are_same(gradient, expected.gradient)) << "gradient" << what;
  }

  Masters masters;
  Range range;
  std::vector<float> master = some_floats(range, 1);
  std::vector<uint16_t> travelling = some_values<uint16_t>(range, 1);
  std::vector<int16_t> low = std::vector<int16_t>(master.size());
  std::vector<Moment> exp_avg = some_values<Moment>(range, 2);
  std::vector<Moment> exp_avg_sq = some_values<Moment>(range, 3);
  std::vector<Gradient> gradient = some_values<Gradient>(range, 4);
};

template <class Moment, class Gradient>
void check(Masters way, const Range& range) {
  State<Moment, Gradient> found(way, range);
  State<Moment, Gradient> expected(way, range);
  for (uint32_t number = 1; number <= 3; ++number) {
    found.gradient = expected.gradient = some_values<Gradient>(range, 10 + number);
    kernels::AdamWStep step = step_at(number);
    kernels::adamw(expected.shards(), range.numel, step);
    const float grad_scale = std::exchange(step.grad_scale, number == 2 ? NAN : step.grad_scale);
    device_kernels().adamw(found.shards(), range.numel, step, number == 2 ? &grad_scale : nullptr,
                           nullptr);
  }
  const float leave_all = NAN;
  device_kernels().adamw(found.shards(), range.numel, step_at(3), &leave_all, nullptr);
  found.expect_same(expected, ", way " + std::to_string(static_cast<int>(way)) + ", " +
                                  std::to_string(range.numel) + " from " +
                                  std::to_string(range.start));
}

// Where an element's number passes 2³² within a pack, and where it does not.
TEST(AdamWOnGpus, HasTheNoiseOfTheLoops) {
  for (const uint64_t first : {uint64_t{0}, uint64_t{1} << 32, (uint64_t{1} << 32) - 8,
                               (uint64_t{1} << 32) - 7, (uint64_t{3} << 32) - 1}) {
    uint32_t noise[8];
    Noise{first, 5}.of(noise);
    for (uint64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(noise[i], kernels::rounding_noise(first + i, 5)) << first << " + " << i;
    }
  }
}

TEST(AdamWOnGpus, HasTheBitsOfTheLoops) {
  for (const Masters way : kMasters) {
    for (const Range& range : kRanges) {
      check<float, float>(way, range);
      check<float, uint16_t>(way, range);
      check<uint16_t, float>(way, range);
      check<uint16_t, uint16_t>(way, range);
    }
  }
}

// Each array that a way has, once: in packs and in single elements.
template <class Moment, class Gradient>
void expect_each_array_once(Masters way) {
  const int64_t read = way == Masters::Narrow ? 2 : 4;
  const int64_t written = way == Masters::Rounded ? 6 : read;
  constexpr auto kMoments = static_cast<int64_t>(2 * sizeof(Moment));
  constexpr auto kGradient = static_cast<int64_t>(sizeof(Gradient));
  for (const Range& range : {Range{2048, 0}, Range{2069, 5}}) {
    State<Moment, Gradient> state(way, range);
    static_cast<void>(emulator::take_traffic());
    device_kernels().adamw(state.shards(), range.numel, step_at(1), nullptr, nullptr);
    EXPECT_EQ(emulator::take_traffic().at("adamw"),
              (emulator::Traffic{range.numel * (read + kMoments + kGradient),
                                 range.numel * (written + kMoments)}))
        << static_cast<int>(way);
  }
}

TEST(AdamWOnGpus, MovesEachArrayOnce) {
  for (const Masters way : kMasters) {
    expect_each_array_once<float, float>(way);
    expect_each_array_once<float, uint16_t>(way);
    expect_each_array_once<uint16_t, float>(way);
    expect_each_array_once<uint16_t, uint16_t>(way);
  }
}

// Values as training has them, whose quotients and roots take no branches; zeros among the first
// moments, of either sign, and elements that never had a gradient.
TEST(AdamWOnGpus, HasTheBitsOfTheLoopsForUsualValues) {
  const Range range{4096, 0};
  const auto make = [&](State<float, float>& state) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < state.master.size(); ++i) {
      state.master[i] = normal(random);
      state.exp_avg[i] = i % 7 == 0 ? 0.0F : 1e-4F * normal(random);
      state.exp_avg_sq[i] = 1e-8F + std::exp(8 * normal(random) - 20);
      state.gradient[i] = i % 7 == 0 ? -0.0F : 1e-3F * normal(random);
      if (i % 14 == 0) {
        state.exp_avg_sq[i] = 0;
      }
    }
  };
  State<float, float> found(Masters::Whole, range), expected(Masters::Whole, range);
  make(found);
  make(expected);
  for (size_t i = 0; i < found.master.size(); ++i) {
    ASSERT_NE(is_usual(found.exp_avg[i], found.exp_avg_sq[i], step_at(1).eps), 0) << i;
  }
  for (uint32_t number = 1; number <= 3; ++number) {
    kernels::adamw(expected.shards(), range.numel, step_at(number));
    device_kernels().adamw(found.shards(), range.numel, step_at(number), nullptr, nullptr);
  }
  found.expect_same(expected, "");
}

// 0 ÷ 0, which is no usual value.
TEST(AdamWOnGpus, HasTheBitsOfTheLoopsWithoutEps) {
  const Range range{16, 0};
  State<float, float> found(Masters::Whole, range), expected(Masters::Whole, range);
  kernels::AdamWStep step = step_at(1);
  step.eps = 0;
  for (State<float, float>* state : {&found, &expected}) {
    state->exp_avg.assign(state->exp_avg.size(), 0);
    state->exp_avg_sq.assign(state->exp_avg.size(), 0);
    state->gradient.assign(state->exp_avg.size(), 0);
  }
  kernels::adamw(expected.shards(), range.numel, step);
  device_kernels().adamw(found.shards(), range.numel, step, nullptr, nullptr);
  EXPECT_TRUE(std::isnan(*begin(found.master, range)));
  found.expect_same(expected, "");
}

// Arrays that no element has at multiples of 16 bytes at once.
TEST(AdamWOnGpus, TakesArraysThatStartApart) {
  const Range range{300, 0};
  for (const int64_t apart : {1, 2, 3, 5}) {
    State<uint16_t, float> found(Masters::InHalves, range);
    State<uint16_t, float> expected(Masters::InHalves, range);
    const auto moved = [apart](kernels::AdamWShards shards) {
      shards.travelling += apart;
      shards.gradient = std::get<const float*>(shards.gradient) + 2 * apart;
      return shards;
    };
    kernels::adamw(moved(expected.shards()), range.numel, step_at(1));
    device_kernels().adamw(moved(found.shards()), range.numel, step_at(1), nullptr, nullptr);
    found.expect_same(expected, ", apart by " + std::to_string(apart));
  }
}

// Fewer threads than packs: each takes several. And what is broken shows.
TEST(AdamWOnGpus, DealsItsPacksOutToFewThreads) {
  constexpr int kThreads = 32;
  const Range range{2069, 5};
  const auto played = [&](const Flat& flat, uint64_t first_element) {
    State<uint16_t, float> state(Masters::Narrow, range);
    kernels::AdamWShards shards = state.shards();
    const AdamWArrays<NarrowMasters, uint16_t, float> arrays{
        {shards.travelling},
        std::get<uint16_t*>(shards.exp_avg),
        std::get<uint16_t*>(shards.exp_avg_sq),
        std::get<const float*>(shards.gradient),
        first_element};
    emulator::play(3, kThreads, [&] {
      adamw<NarrowMasters, uint16_t, float, kThreads>(flat, arrays, numbers_of(step_at(1)),
                                                      nullptr);
    });
    return state;
  };
  State<uint16_t, float> expected(Masters::Narrow, range);
  const uint64_t first = expected.shards().first_element;
  kernels::adamw(expected.shards(), range.numel, step_at(1));
  const Flat flat{range.numel, 3, (range.numel - 3) / kPacked};
  played(flat, first).expect_same(expected, "");
  const auto shows = [&](const State<uint16_t, float>& broken) {
    return !is_same(broken.travelling, expected.travelling);
  };
  EXPECT_TRUE(shows(played({flat.numel - 1, flat.head, flat.packs}, first)));
  EXPECT_TRUE(shows(played(flat, first + 1)));
}

// The values tell a fused multiplication from two roundings.
TEST(AdamWOnGpus, WouldShowWhatIsFused) {
  State<float, float> state(Masters::Whole, {2000, 0});
  const kernels::AdamWStep s = step_at(1);
  int64_t differ = 0;
  for (size_t i = 0; i < state.master.size(); ++i) {
    float m = state.exp_avg[i], v = state.exp_avg_sq[i];
    const float g = state.gradient[i];
    const float fused = std::fma(s.one_minus_beta1, g - m, m);
    update_moments(m, v, g, s);
    differ += is_same(fused, m) ? 0 : 1;
  }
  EXPECT_GT(differ, 100);
}

}  // namespace
}  // namespace sherd::cuda
