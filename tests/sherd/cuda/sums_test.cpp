// Sums as GPUs get them: in rank order, to the bits of the processor's loops; and of squares, near
// fp64 and the same in any order of threads.

#include "kernels/cuda/kernels/sums.cuh"

#include "tests/emulator/emulator.h"
#include "tests/sherd/cuda/launched.h"

namespace sherd::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

// Normal values alone, whose sum of squares is a number.
template <class T>
std::vector<T> normal_values(const Range& range, unsigned seed) {
  std::vector<T> values = some_values<T>(range, seed);
  for (T& value : values) {
    const float x = kernels::widened(value);
    value = std::isfinite(x) && std::abs(x) < 100 ? value : T{0};
  }
  return values;
}

template <class T>
double squares_in_fp64(const std::vector<T>& all, const Range& range) {
  double sum = 0;
  for (int64_t i = 0; i < range.numel; ++i) {
    const double value = kernels::widened(begin(all, range)[i]);
    sum += value * value;
  }
  return sum;
}

struct Work {
  double sum = NAN;
  std::vector<double> parts = std::vector<double>(kernels::Squares::kParts, NAN);
  [[nodiscard]] kernels::Squares place() { return {&sum, parts.data()}; }
};

template <class Out, class In>
void check_sum(const Range& range, size_t ranks, bool accumulate) {
  std::vector<std::vector<In>> parts;
  std::vector<const In*> sources;
  for (size_t rank = 0; rank < ranks; ++rank) {
    parts.push_back(some_values<In>(range, static_cast<unsigned>(rank)));
    sources.push_back(begin(std::as_const(parts.back()), range));
  }
  std::vector<Out> found = normal_values<Out>(range, 77);
  std::vector<Out> expected = found;
  kernels::sum_in_rank_order(begin(expected, range), accumulate, 0.3F, sources, range.numel);
  device_kernels().sum_in_rank_order(begin(found, range), accumulate, 0.3F, sources, range.numel,
                                     nullptr);
  EXPECT_TRUE(are_same(found, expected)) << range.numel << " of " << ranks << " ranks";
}

TEST(SumsOnGpus, InRankOrderHaveTheBitsOfTheLoops) {
  for (const Range& range : kRanges) {
    for (const size_t ranks : {1, 2, 7}) {
      for (const bool accumulate : {false, true}) {
        check_sum<float, float>(range, ranks, accumulate);
        check_sum<float, uint16_t>(range, ranks, accumulate);
        check_sum<uint16_t, float>(range, ranks, accumulate);
        check_sum<uint16_t, uint16_t>(range, ranks, accumulate);
      }
    }
  }
  check_sum<float, uint16_t>({19, 0}, kMaxSources, true);
}

template <class T>
void check_squares(const Range& range) {
  const std::vector<T> values = normal_values<T>(range, 5);
  const double expected = squares_in_fp64(values, range);
  std::optional<double> first;
  for (int order = 0; order < 3; ++order) {
    Work work;
    device_kernels().sum_of_squares(begin(values, range), range.numel, work.place(), nullptr);
    EXPECT_NEAR(work.sum, expected, 1e-6 * expected) << range.numel;
    EXPECT_EQ(work.sum, first.value_or(work.sum)) << "depends on the order";
    first = work.sum;
  }
}

TEST(SumsOnGpus, OfSquaresAreThoseOfFp64) {
  for (const Range& range : kRanges) {
    check_squares<float>(range);
    check_squares<uint16_t>(range);
  }
}

TEST(SumsOnGpus, OfSquaresKeepWhatIsNoNumber) {
  for (const float broken : {NAN, INFINITY}) {
    const Range range{300, 0};
    std::vector<float> values = normal_values<float>(range, 5);
    begin(values, range)[299] = broken;
    Work work;
    device_kernels().sum_of_squares(begin(std::as_const(values), range), range.numel, work.place(),
                                    nullptr);
    EXPECT_FALSE(std::isfinite(work.sum));
  }
}

// Few threads, many parts; and the barrier, taken away, shows in some order of the threads.
TEST(SumsOnGpus, OfPartsNeedTheirBarrier) {
  constexpr int kThreads = 128;
  constexpr int64_t kParts = 1000;
  std::vector<double> parts(kParts);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = static_cast<double>(i);
  }
  double sum = 0;
  const auto played = [&](const emulator::Play& how) {
    sum = NAN;
    return emulator::play(
        1, kThreads, [&] { sum_parts<kThreads>(parts.data(), kParts, &sum); }, how);
  };
  const auto barriers = played({});
  EXPECT_EQ(sum, kParts * (kParts - 1) / 2);
  bool shows = false;
  for (uint32_t seed = 1; seed <= 10 && !shows; ++seed) {
    played({.seed = seed, .without = *barriers.begin()});
    shows = sum != kParts * (kParts - 1) / 2;
  }
  EXPECT_TRUE(shows);
}

// As clip_grad_norm() finds it.
TEST(SumsOnGpus, GiveTheFactorOfClipping) {
  for (const double squares : {0.0, 1e-30, 0.25, 3.999, 4.0, 1e30, double{INFINITY}, double{NAN}}) {
    const double expected = 2.0 / (std::sqrt(squares) + 1e-6);
    float factor = NAN;
    device_kernels().clip_factor(&squares, 2.0, &factor, nullptr);
    EXPECT_EQ(factor,
              static_cast<float>(std::isfinite(expected) && expected < 1.0 ? expected : 1.0))
        << squares;
  }
}

}  // namespace
}  // namespace sherd::cuda
