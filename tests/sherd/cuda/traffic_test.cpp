// The bytes that the library's kernels move, counted by the emulator: each array once.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/emulator/emulator.h"
#include "tests/sherd/cuda/launched.h"

namespace sherd::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

using Moved = std::map<std::string, emulator::Traffic>;

Moved moved_by(const std::function<void(const kernels::DeviceKernels&)>& work) {
  static_cast<void>(emulator::take_traffic());
  work(device_kernels());
  return emulator::take_traffic();
}

TEST(TrafficOnGpus, OfSumsAndValuesIsEachArrayOnce) {
  for (const Range& range : {Range{4096, 0}, Range{2069, 5}}) {
    auto floats = some_values<float>(range, 1), more = some_values<float>(range, 2);
    auto halves = some_values<uint16_t>(range, 3);
    std::vector<int16_t> low(floats.size());
    std::vector<double> parts(kernels::Squares::kParts);
    double sum = 0;
    const int64_t n = range.numel, blocks = (n + 2047) / 2048;
    const kernels::Squares squares{&sum, parts.data()};
    const kernels::SplitMaster split{begin(halves, range), begin(low, range)};
    const std::vector<const float*> sources = {begin(floats, range), begin(more, range)};
    const Moved moved = moved_by([&](const kernels::DeviceKernels& kernels) {
      kernels.sum_in_rank_order(begin(halves, range), true, 1, sources, n, nullptr);
      kernels.sum_of_squares(begin(halves, range), n, squares, nullptr);
      kernels.scale_in_place(begin(halves, range), 2, n, nullptr);
      kernels.to_bfloat16(begin(floats, range), begin(halves, range), n, nullptr);
      kernels.split(begin(floats, range), split, n, nullptr);
      kernels.join(split, begin(floats, range), n, nullptr);
    });
    const auto is = [&](const char* kernel, int64_t read, int64_t written) {
      EXPECT_EQ(moved.at(kernel), (emulator::Traffic{read, written})) << kernel << " of " << n;
    };
    is("sum_in_rank_order", 10 * n, 2 * n);
    is("squares_of", 2 * n, 8 * blocks);
    is("sum_parts", 8 * blocks, 8);
    is("scale_in_place", 2 * n, 2 * n);
    is("to_bfloat16", 4 * n, 2 * n);
    is("split", 4 * n, 4 * n);
    is("join", 4 * n, 4 * n);
  }
}

TEST(TrafficOnGpus, OfRandomElementsIsFourBytesWritten) {
  std::vector<float> values(4 * 3000);
  for (const kernels::Distribution& of :
       {kernels::Distribution(kernels::Normal{}), kernels::Distribution(kernels::Uniform{})}) {
    const Moved moved = moved_by([&](const kernels::DeviceKernels& kernels) {
      kernels.fill_random(values.data(), 7, 3000, {1, 2}, of, nullptr);
    });
    EXPECT_EQ(moved.at("random_elements"), (emulator::Traffic{0, 4 * 4 * 3000}));
  }
}

}  // namespace
}  // namespace sherd::cuda
