// A step whose samples have no supervised token: it learns nothing, and has no loss.

#include <cmath>

#include <gtest/gtest.h>

#include "llm/setup/load_model.h"
#include "llm/train/train_step.h"
#include "tests/support/test_data.h"

namespace llm::train {
namespace {

inputs::Batch unsupervised_batch() {
  inputs::Batch batch;
  batch.input_ids = {1, 5, 7};
  batch.labels.assign(batch.input_ids.size(), inputs::kUnsupervised);
  batch.bounds.push_back(static_cast<std::int64_t>(batch.input_ids.size()));
  return batch;
}

TEST(TrainStep, WithoutASupervisedTokenHasNoLoss) {
  auto model = setup::load_sharded(sherd::test::data_folder() / "stories260k-hf",
                                   sherd::Mesh::shard(sherd::World::alone()), {});
  sherd::AdamW optimizer(model, {});
  const StepOutcome outcome =
      train_step(model, optimizer, nullptr, {unsupervised_batch()}, {1, 1.0, false});
  EXPECT_TRUE(std::isnan(outcome.loss));
  EXPECT_EQ(outcome.supervised_tokens, 0);
  EXPECT_EQ(outcome.tokens, 3);
}

}  // namespace
}  // namespace llm::train
