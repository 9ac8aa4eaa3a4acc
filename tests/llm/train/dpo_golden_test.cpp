// Direct preference optimization against TRL, in any grouping of the pairs and on several ranks.

#include "tests/llm/train/dpo_golden.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <tuple>
#include <vector>

#include "llm/adapters/peft_config.h"
#include "llm/setup/load_model.h"
#include "tests/support/ranks.h"

namespace llm::train {
namespace {

using namespace test;  // NOLINT: what this file is about

std::filesystem::path policy_folder() {
  return *sherd::test::extra_data("families") / "llama-linear";
}

sherd::Sharded<model::CausalLm> policy(sherd::World world) {
  return setup::load_sharded(policy_folder(), sherd::Mesh::shard(std::move(world)), {});
}

// [ranks, pairs in a micro-batch]
class DpoFull : public testing::TestWithParam<std::tuple<int, std::int64_t>> {};
INSTANTIATE_TEST_SUITE_P(Groupings, DpoFull,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values(1, 2, 4)));

TEST_P(DpoFull, LossRewardsAndStepsAreTrls) {
  SHERD_NEEDS_EXTRA_DATA("dpo");
  const DpoGolden golden("full");
  const auto [ranks, micro_batch] = GetParam();
  for (const std::string loss : {"sigmoid", "ipo", "hinge", "cdpo", "robust"}) {
    SCOPED_TRACE(loss);
    sherd::test::run_ranks(ranks, [&, micro_batch = micro_batch](sherd::World world) {
      auto model = policy(std::move(world));
      expect_steps(model, golden, loss, dealt(golden, model.world(), micro_batch));
    });
  }
}

TEST_P(DpoFull, GradientsAreTrls) {
  SHERD_NEEDS_EXTRA_DATA("dpo");
  const DpoGolden golden("full");
  const auto [ranks, micro_batch] = GetParam();
  sherd::test::run_ranks(ranks, [&, micro_batch = micro_batch](sherd::World world) {
    auto model = policy(std::move(world));
    expect_gradients(model, golden, "sigmoid", dealt(golden, model.world(), micro_batch));
  });
}

// Inputs of objectives: of each document in a batch of several, of the reference model too.
TEST(Dpo, LogLikelihoodsAreTrls) {
  SHERD_NEEDS_EXTRA_DATA("dpo");
  const DpoGolden golden("full");
  const auto check = [&](const std::filesystem::path& folder, const std::string& name) {
    auto model = setup::load_sharded(folder, sherd::Mesh::shard(sherd::World::alone()), {});
    const auto expected = golden.numbers(name);
    const at::Tensor packed = setup::logps(model, setup::to_tensors(golden.batch({0, 1, 2, 3})));
    for (std::int64_t pair = 0; pair < kPairs; ++pair) {
      const at::Tensor alone = setup::logps(model, setup::to_tensors(golden.batch({pair})));
      for (const std::int64_t side : {0, 1}) {
        const double of_file = expected[static_cast<std::size_t>(side * kPairs + pair)];
        EXPECT_LE(relative(packed[2 * pair + side].item<double>(), of_file), 1e-5);
        EXPECT_LE(relative(alone[side].item<double>(), of_file), 1e-5);
      }
    }
  };
  check(policy_folder(), "policy_logps");
  check(*sherd::test::extra_data("dpo") / "reference", "reference_logps");
}

TEST(Dpo, TermsAreTrls) {
  SHERD_NEEDS_EXTRA_DATA("dpo");
  const DpoGolden golden("full");
  const auto in_pairs = [&](const std::string& name) {  // [8] of the file -> pair after pair
    return golden.tensor(name).to(at::kDouble).view({2, kPairs}).t().flatten();
  };
  sherd::Likelihoods likelihoods{in_pairs("policy_logps"), {}, in_pairs("reference_logps")};
  likelihoods.tokens_N =
      golden.tensor("completion_mask").sum(1).to(at::kDouble).view({2, kPairs}).t().flatten();
  for (const std::string loss : {"sigmoid", "ipo", "hinge", "cdpo", "robust"}) {
    const sherd::ObjectiveTerms terms = model::Dpo(options_of(loss)).terms(likelihoods);
    const at::Tensor coefficients = in_pairs(loss + ".coefficients");
    EXPECT_LE(relative(terms.loss_sum.item<double>() / kPairs, golden.numbers(loss + ".loss")[0]),
              1e-6)
        << loss;
    EXPECT_LE((terms.coefficients_N / kPairs - coefficients).abs().max().item<double>(),
              1e-5 * coefficients.abs().max().item<double>())
        << loss;
  }
}

// The model is its own reference: as at the first step of a run. Without gradients, its products
// round otherwise.
TEST(Dpo, BeginsWithTheLogarithmOf2) {
  SHERD_NEEDS_EXTRA_DATA("dpo");
  const DpoGolden golden("full");
  auto model = policy(sherd::World::alone());
  for (const std::vector<std::int64_t>& pairs : {std::vector<std::int64_t>{0, 1, 2}, {3}}) {
    model::TokenBatch batch = setup::to_tensors(golden.batch(pairs));
    batch.reference_logps_N = setup::logps(model, batch);
    const auto found = setup::objective_sum(model, batch, model::Dpo({}));
    const double loss = found.loss_sum.item<double>() / static_cast<double>(pairs.size());
    EXPECT_NEAR(loss, std::numbers::ln2, 1e-6);
    for (const std::int64_t figure : {0, 1, 2}) {  // rewards, margin
      EXPECT_NEAR(found.figures_F[figure].item<double>(), 0, 1e-5) << figure;
    }
  }
}

// A policy with an adapter that PEFT saved. Its reference is the same model with the adapter off.
sherd::Sharded<model::CausalLm> adapted(const std::filesystem::path& adapter,
                                        const sherd::World& world) {
  const adapters::PeftConfig peft = adapters::read_peft_config(adapter.string());
  config::RunConfig config;
  config.model.path = policy_folder().string();
  config.adapter = peft.adapter;
  return setup::load_model(config, setup::model_shape(config), world);
}

class DpoLora : public testing::TestWithParam<std::tuple<int, std::int64_t>> {};
INSTANTIATE_TEST_SUITE_P(Groupings, DpoLora,
                         testing::Values(std::tuple(1, 4), std::tuple(2, 1), std::tuple(3, 1)));

TEST_P(DpoLora, LossRewardsGradientsAndStepsAreTrls) {
  SHERD_NEEDS_EXTRA_DATA("dpo");
  const DpoGolden golden("lora");
  const auto [ranks, micro_batch] = GetParam();
  for (const std::string loss : {"sigmoid", "ipo", "hinge", "cdpo", "robust"}) {
    SCOPED_TRACE(loss);
    sherd::test::run_ranks(ranks, [&, micro_batch = micro_batch](sherd::World world) {
      auto model = adapted(*sherd::test::extra_data("dpo") / "adapter", world);
      const auto batches = dealt(golden, model.world(), micro_batch, /*knows_reference=*/false);
      expect_gradients(model, golden, loss, batches, "base_model.model.");
      expect_steps(model, golden, loss, batches);
    });
  }
}

TEST(DpoLora, OfAFreshAdapterBeginsWithTheLogarithmOf2) {
  SHERD_NEEDS_EXTRA_DATA("dpo");
  const DpoGolden golden("lora-fresh");
  auto model = adapted(*sherd::test::extra_data("lora") / "llama-fresh", sherd::World::alone());
  const auto batches = dealt(golden, model.world(), 2, /*knows_reference=*/false);
  for (const inputs::Batch& batch : batches) {
    const auto found = setup::objective_sum(model, setup::to_tensors(batch), model::Dpo({}));
    EXPECT_EQ(static_cast<float>(found.loss_sum.item<double>() / 2), std::numbers::ln2_v<float>);
    for (const std::int64_t figure : {0, 1, 2, 3}) {
      EXPECT_EQ(found.figures_F[figure].item<double>(), 0) << figure;
    }
  }
  expect_gradients(model, golden, "sigmoid", batches, "base_model.model.");
}

}  // namespace
}  // namespace llm::train
