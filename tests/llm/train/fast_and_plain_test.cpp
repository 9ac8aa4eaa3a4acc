// Nothing is lost by operators of our own: over many steps of real weights in bf16, losses of the
// fast and the plain operators differ no more than those of two plain runs that differ in rounding
// alone; and a fast run has the same bits every time.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include <gtest/gtest.h>

#include "llm/inputs/dataset.h"
#include "llm/setup/load_model.h"
#include "llm/train/train_step.h"
#include "ops/cpu/isa.h"
#include "ops/plain_operators.h"
#include "tests/support/ranks.h"
#include "tests/support/test_data.h"

namespace llm::train {
namespace {

constexpr int64_t kRows = 4;  // of a step

// Without instructions for bf16 LibTorch's products of it, the plain ones, take minutes.
int trained_steps() {
  return sherd::ops::cpu::isa() >= sherd::ops::cpu::Isa::Avx512Bf16 ? 200 : 60;
}

std::string stories() {
  return sherd::test::data_folder() / "stories260k-hf";
}

const inputs::Dataset& questions() {
  static const inputs::Dataset dataset = [] {
    const text::PromptEncoder encoder(text::Tokenizer::from_folder(stories()), {96, 16});
    return inputs::load_dataset(SHERD_TEST_SOURCE_DIR "/recipes/data/squad-32.json", encoder, {32});
  }();
  return dataset;
}

// A rank's share of a step, as one micro-batch.
inputs::Batch batch_of(int step, int ranks, int rank) {
  const auto samples = static_cast<int64_t>(questions().samples.size());
  std::vector<int64_t> indices;
  for (int64_t row = rank; row < kRows; row += ranks) {
    indices.push_back((step * kRows + row) % samples);
  }
  return inputs::collate(questions().samples, indices);
}

std::vector<double> losses_of(int ranks, bool plain) {
  std::vector<double> losses(static_cast<size_t>(trained_steps()));
  sherd::test::run_ranks(ranks, [&](sherd::World world) {
    std::optional<sherd::ops::PlainOperators> guard;
    if (plain) {
      guard.emplace();
    }
    sherd::ShardOptions options;
    options.precision.param_dtype = c10::kBFloat16;
    auto model = setup::load_sharded(stories(), sherd::Mesh::shard(world), options);
    sherd::AdamW optimizer(model, {.lr = 2e-4});
    for (int step = 0; step < trained_steps(); ++step) {
      const StepOutcome outcome =
          train_step(model, optimizer, nullptr, {batch_of(step, world.size(), world.rank())},
                     {step + 1, 1.0, false});
      if (world.rank() == 0) {
        losses[static_cast<size_t>(step)] = outcome.loss;
      }
    }
  });
  return losses;
}

// Of the last quarter.
double mean_difference(const std::vector<double>& a, const std::vector<double>& b) {
  const size_t compared = a.size() / 4;
  double sum = 0;
  for (size_t i = a.size() - compared; i < a.size(); ++i) {
    sum += std::abs(a[i] - b[i]);
  }
  return sum / static_cast<double>(compared);
}

TEST(FastAndPlain, DifferNoMoreThanTwoPlainRunsThatRoundDifferently) {
  std::vector<std::vector<double>> fast;
  std::vector<std::vector<double>> plain;
  for (const int ranks : {1, 2, 3, 4}) {
    fast.push_back(losses_of(ranks, /*plain=*/false));
    plain.push_back(losses_of(ranks, /*plain=*/true));
  }
  EXPECT_EQ(fast.front(), losses_of(1, /*plain=*/false)) << "not repeatable";
  // Each distance is one draw of a noise: several, so that none decides by chance.
  double rounding = 0;
  double paths = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    paths += mean_difference(plain[i], fast[i]) / static_cast<double>(plain.size());
    for (size_t j = 0; j < i; ++j) {
      rounding = std::max(rounding, mean_difference(plain[i], plain[j]));
    }
  }
  std::cout << "  mean |loss difference| of the last quarter of " << trained_steps()
            << " steps: fast and plain (on 1 to 4 ranks) " << paths
            << ", plain on 1 to 4 ranks at most " << rounding << "; loss " << plain[0].front()
            << " -> " << plain[0].back() << "\n";
  EXPECT_LT(plain[0].back(), plain[0].front());
  EXPECT_LE(paths, rounding);
}

}  // namespace
}  // namespace llm::train
