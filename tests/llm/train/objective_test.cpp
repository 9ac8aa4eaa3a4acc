// The seam between a loss and the model: losses of one's own.

#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examples/own_objective/simpo.h"
#include "llm/eval/pair_logps.h"
#include "llm/setup/batch_tensors.h"
#include "llm/setup/load_model.h"
#include "llm/train/train_step.h"
#include "tests/llm/inputs/stores.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::train {
namespace {

// Cross-entropy as an objective: −Σ log p of each document.
class CrossEntropySum final : public sherd::Objective {
 public:
  [[nodiscard]] int64_t examples_per_sample() const override { return 1; }
  [[nodiscard]] bool needs_reference() const override { return false; }
  [[nodiscard]] sherd::ObjectiveTerms terms(const sherd::Likelihoods& of) const override {
    return {-of.logps_N.sum(), at::full_like(of.logps_N, -1), at::zeros({0}, of.logps_N.options())};
  }
};

sherd::Sharded<model::CausalLm> stories(sherd::World world) {
  return setup::load_sharded(sherd::test::data_folder() / "stories260k-hf",
                             sherd::Mesh::shard(std::move(world)), {});
}

// Documents of these lengths, whose second half is supervised.
inputs::Batch documents_of(const std::vector<std::int64_t>& lengths, bool are_pairs) {
  inputs::Batch batch;
  batch.are_pairs = are_pairs;
  for (const std::int64_t length : lengths) {
    for (std::int64_t t = 0; t < length; ++t) {
      batch.input_ids.push_back((7 * t + 13 * length) % 500);
      batch.labels.push_back(2 * t < length ? inputs::kUnsupervised : batch.input_ids.back());
      batch.supervised_tokens += 2 * t < length ? 0 : 1;
    }
    batch.bounds.push_back(std::ssize(batch.input_ids));
  }
  return batch;
}

TEST(Objective, OfCrossEntropyIsSupervisedTraining) {
  const model::TokenBatch batch = setup::to_tensors(documents_of({9, 4, 30, 2, 17}, false));
  auto plain = stories(sherd::World::alone());
  const at::Tensor expected = setup::loss_sum(plain, batch);
  expected.backward();
  auto model = stories(sherd::World::alone());
  const at::Tensor loss = setup::objective_sum(model, batch, CrossEntropySum()).loss_sum;
  loss.backward();
  EXPECT_NEAR(loss.item<double>() / expected.item<double>(), 1, 1e-6);
  const auto shards = model.parameter_shards(), of_plain = plain.parameter_shards();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    EXPECT_LE((shards[i].gradient - of_plain[i].gradient).norm().item<double>(),
              1e-6 * of_plain[i].gradient.norm().item<double>())
        << shards[i].name;
  }
}

// Half a pair has no loss.
TEST(Objective, OfPairsRefusesAnOddNumberOfDocuments) {
  const model::TokenBatch batch = setup::to_tensors(documents_of({9, 4, 30}, false));
  auto model = stories(sherd::World::alone());
  try {
    static_cast<void>(setup::objective_sum(model, batch, own_objective::SimPo()));
    FAIL() << "was not refused";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("[objective_sum] got 3 documents, but the "
                                                 "objective takes 2 per sample"));
  }
}

// Samples of one document have no log-probabilities of pairs.
TEST(PairLogps, OfSamplesThatAreNoPairsAreRefused) {
  const sherd::test::TempFolder folder;
  const inputs::Dataset questions = inputs::dataset(
      folder.write("data.jsonl", R"({"prompt": "Who is it?", "completion": "Lily"})"),
      inputs::stories(), {});
  auto model = stories(sherd::World::alone());
  std::vector<inputs::PairLogps> logps;
  try {
    static_cast<void>(eval::complete_pair_logps(model, questions.samples, {}, logps));
    FAIL() << "was not refused";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("sample 0 is no preference pair"));
  }
}

// The logits of chunks are not kept: the same gradients, whatever is held at a time.
TEST(Objective, DoesNotDependOnTheChunksOfTheHead) {
  const model::TokenBatch batch = setup::to_tensors(documents_of({40, 31, 50, 62}, true));
  std::vector<std::vector<at::Tensor>> gradients;
  for (const std::int64_t chunk : {512, 5}) {
    auto model = stories(sherd::World::alone());
    model.module()->set_loss_chunk_tokens(chunk);
    setup::objective_sum(model, batch, own_objective::SimPo()).loss_sum.backward();
    gradients.emplace_back();
    for (const auto& shard : model.parameter_shards()) {
      gradients.back().push_back(shard.gradient.clone());  // a view of the model's
    }
  }
  for (std::size_t i = 0; i < gradients[0].size(); ++i) {
    EXPECT_LE((gradients[0][i] - gradients[1][i]).norm().item<double>(),
              1e-5 * gradients[0][i].norm().item<double>());
  }
}

// The loss of examples/own_objective, which knows nothing of language models: more ranks than
// samples too.
TEST(Objective, OfOnesOwnTrainsAlikeOnAnyRanks) {
  const std::vector<std::vector<std::int64_t>> pairs = {{12, 9}, {30, 31}};
  std::vector<double> losses;
  for (const int ranks : {1, 2, 3}) {
    sherd::test::run_ranks(ranks, [&](sherd::World world) {
      auto model = stories(std::move(world));
      sherd::AdamW optimizer(model, {.lr = 1e-3});
      const own_objective::SimPo objective;
      std::vector<inputs::Batch> batches;
      for (std::size_t micro = 0; micro * static_cast<std::size_t>(ranks) < pairs.size(); ++micro) {
        const std::size_t i = micro * static_cast<std::size_t>(ranks) +
                              static_cast<std::size_t>(model.world().rank());
        batches.push_back(i < pairs.size() ? documents_of(pairs[i], true) : inputs::Batch());
      }
      StepPlan plan{.number = 1, .clip_grad_norm = 1.0, .objective = &objective};
      for (int step = 0; step < 3; ++step) {
        const StepOutcome outcome = train_step(model, optimizer, nullptr, batches, plan);
        if (model.world().rank() == 0) {
          losses.push_back(outcome.loss);
        }
      }
    });
  }
  ASSERT_EQ(losses.size(), 9U);
  EXPECT_LT(losses[2], losses[0]);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i] / losses[i % 3], 1, 1e-6) << i;
  }
}

}  // namespace
}  // namespace llm::train
