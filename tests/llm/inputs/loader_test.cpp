#include "llm/inputs/loader.h"

#include <set>

#include <gtest/gtest.h>

namespace llm::inputs {
namespace {

Samples numbered(std::int64_t count) {
  std::vector<text::LabelledPrompt> prompts;
  for (std::int64_t i = 0; i < count; ++i) {
    prompts.push_back(
        {.ids = {1, static_cast<text::TokenId>(100 + i), 2}, .supervised = {0, 1, 1}});
  }
  return Samples(prompts);
}

std::vector<std::vector<std::int64_t>> ids_of(const std::vector<Batch>& batches) {
  std::vector<std::vector<std::int64_t>> ids;
  for (const Batch& batch : batches) {
    ids.push_back(batch.input_ids);
  }
  return ids;
}

TEST(Loader, GivesTheBatchesOfAnyStepWhateverWasMadeAhead) {
  const BatchShape shape{6, 2, 1};
  const Samples samples = numbered(11);
  Sampler sampler(11, 6, 3);
  const auto expected = [&](std::int64_t step) {
    const auto indices = sampler.batch(step);
    std::vector<std::vector<std::int64_t>> ids;
    for (std::int64_t micro = 0; micro < shape.micro_batches(std::ssize(indices)); ++micro) {
      ids.push_back(collate(samples, shape.samples_of(indices, micro, 0)).input_ids);
    }
    return ids;
  };
  Loader loader(samples, Rows::one_each(11), Sampler(11, 6, 3), shape, 0);
  for (const std::int64_t step : {0, 1, 2, 3, 7, 8, 2, 3}) {  // epochs of two steps, and seeks
    EXPECT_EQ(ids_of(loader.step(step)), expected(step)) << "step " << step;
  }
}

// Whatever the number of ranks, they see the same rows in the same steps; each sample is seen once
// an epoch; and any step can be begun with.
TEST(Loader, DealsPackedRowsWhateverTheRanks) {
  const Samples samples = numbered(23);  // of three tokens
  const Rows rows = Rows::first_fit(samples, 10, 5);
  ASSERT_EQ(rows.size(), 8);
  const auto dealt = [&](std::int64_t world, std::int64_t first_step) {
    std::vector<std::vector<std::int64_t>> ids;
    for (std::int64_t step = first_step; step < 4; ++step) {
      for (std::int64_t micro = 0; micro < 4 / world; ++micro) {
        for (std::int64_t rank = 0; rank < world; ++rank) {
          Loader loader(samples, rows, Sampler(rows.size(), 4, 5), {4, 1, world}, rank);
          ids.push_back(loader.step(step).at(static_cast<std::size_t>(micro)).input_ids);
        }
      }
    }
    return ids;
  };
  const auto alone = dealt(1, 0);
  EXPECT_EQ(dealt(2, 0), alone);
  EXPECT_EQ(dealt(4, 0), alone);
  EXPECT_EQ(dealt(2, 3), std::vector(alone.begin() + 12, alone.end()));
  std::multiset<std::int64_t> first_epoch;  // two steps
  for (std::size_t micro = 0; micro < 8; ++micro) {
    first_epoch.insert(alone[micro].begin(), alone[micro].end());
  }
  for (std::int64_t i = 0; i < 23; ++i) {
    EXPECT_EQ(first_epoch.count(100 + i), 1U);
  }
}

TEST(Loader, MayEndWhileABatchIsBeingMade) {
  for (int i = 0; i < 20; ++i) {
    Loader loader(numbered(50), Rows::one_each(50), Sampler(50, 50, 1), {50, 1, 1}, 0);
    EXPECT_EQ(loader.step(0).size(), 50U);
  }
}

}  // namespace
}  // namespace llm::inputs
