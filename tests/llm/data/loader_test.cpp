#include "llm/data/loader.h"

#include <gtest/gtest.h>

namespace llm::data {
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
  Loader loader(samples, Sampler(11, 6, 3), shape, 0);
  for (const std::int64_t step : {0, 1, 2, 3, 7, 8, 2, 3}) {  // epochs of two steps, and seeks
    EXPECT_EQ(ids_of(loader.step(step)), expected(step)) << "step " << step;
  }
}

TEST(Loader, MayEndWhileABatchIsBeingMade) {
  for (int i = 0; i < 20; ++i) {
    Loader loader(numbered(50), Sampler(50, 50, 1), {50, 1, 1}, 0);
    EXPECT_EQ(loader.step(0).size(), 50U);
  }
}

}  // namespace
}  // namespace llm::data
