// Direct preference optimization against what TRL computed for a tiny Llama (dpo/ of
// SHERD_TEST_DATA), in any grouping of the pairs, and on several ranks.

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "llm/model/dpo.h"
#include "llm/setup/batch_tensors.h"
#include "llm/setup/load_model.h"
#include "llm/train/train_step.h"
#include "sherd/safetensors.h"
#include "tests/support/ranks.h"
#include "tests/support/test_data.h"

namespace llm::train {
namespace {

constexpr double kClip = 1.0;
constexpr std::int64_t kPairs = 4;

model::DpoOptions options_of(const std::string& loss) {
  if (loss == "ipo") {
    return {.loss = model::DpoLoss::Ipo};
  }
  if (loss == "hinge") {
    return {.loss = model::DpoLoss::Hinge};
  }
  return {.loss = loss == "robust" ? model::DpoLoss::Robust : model::DpoLoss::Sigmoid,
          .label_smoothing = loss == "sigmoid" ? 0 : 0.15};
}

class DpoGolden {
 public:
  explicit DpoGolden(const std::string& name)
      : file_(*sherd::test::extra_data("dpo") / (name + ".safetensors")) {}

  [[nodiscard]] at::Tensor tensor(const std::string& name) const {
    return file_.read(*file_.find(name));
  }
  [[nodiscard]] std::vector<double> numbers(const std::string& name) const {
    const at::Tensor values = tensor(name).to(at::kDouble).flatten();
    return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
  }
  [[nodiscard]] std::map<std::string, at::Tensor> gradients(const std::string& loss) const {
    std::map<std::string, at::Tensor> all;
    const std::string prefix = loss + ".grad.";
    for (const auto& entry : file_.entries()) {
      if (entry.name.starts_with(prefix)) {
        all[entry.name.substr(prefix.size())] = file_.read(entry).to(at::kDouble).flatten();
      }
    }
    return all;
  }
  // Rows of the file: those of chosen answers, then of rejected ones.
  [[nodiscard]] inputs::Batch batch(const std::vector<std::int64_t>& pairs) const {
    const at::Tensor ids = tensor("input_ids"), mask = tensor("attention_mask");
    const at::Tensor completion = tensor("completion_mask");
    const std::vector<double> reference = numbers("reference_logps");
    inputs::Batch batch;
    batch.are_pairs = true;
    batch.reference_logps.emplace();
    for (const std::int64_t pair : pairs) {
      for (const std::int64_t row : {pair, kPairs + pair}) {
        const std::int64_t length = mask[row].sum().item<std::int64_t>();
        for (std::int64_t t = 0; t < length; ++t) {
          batch.input_ids.push_back(ids[row][t].item<std::int64_t>());
          const bool counts = completion[row][t].item<std::int64_t>() == 1;
          batch.labels.push_back(counts ? batch.input_ids.back() : inputs::kUnsupervised);
          batch.supervised_tokens += counts ? 1 : 0;
        }
        batch.bounds.push_back(std::ssize(batch.input_ids));
        batch.reference_logps->push_back(reference[static_cast<std::size_t>(row)]);
      }
    }
    return batch;
  }

 private:
  sherd::SafetensorsFile file_;
};

std::filesystem::path policy_folder() {
  return *sherd::test::extra_data("families") / "llama-linear";
}

sherd::Sharded<model::CausalLm> policy(sherd::World world) {
  return setup::load_sharded(policy_folder(), sherd::Mesh::shard(std::move(world)), {});
}

// A rank's micro-batches: as the trainer deals them.
std::vector<inputs::Batch> dealt(const DpoGolden& golden, const sherd::World& world,
                                 std::int64_t micro_batch) {
  const inputs::BatchShape shape{kPairs, micro_batch, world.size()};
  const std::vector<std::int64_t> pairs = {0, 1, 2, 3};
  std::vector<inputs::Batch> batches;
  for (std::int64_t micro = 0; micro < shape.micro_batches(kPairs); ++micro) {
    const auto mine = shape.samples_of(pairs, micro, world.rank());
    batches.push_back(golden.batch({mine.begin(), mine.end()}));
  }
  return batches;
}

double relative(double found, double expected) {
  return std::abs(found - expected) / std::abs(expected);
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
      const std::vector<inputs::Batch> batches = dealt(golden, model.world(), micro_batch);
      const model::Dpo objective(options_of(loss));
      sherd::AdamW optimizer(model, {.lr = golden.numbers("lr").front(),
                                     .betas = {0.9, 0.95},
                                     .eps = 1e-8,
                                     .weight_decay = 0.1});
      StepPlan plan{.number = 1, .clip_grad_norm = kClip, .objective = &objective};
      const auto losses = golden.numbers(loss + ".losses");
      const auto norms = golden.numbers(loss + ".grad_norms");
      for (std::size_t step = 0; step <= losses.size(); ++step) {
        const StepOutcome outcome = train_step(model, optimizer, nullptr, batches, plan);
        EXPECT_EQ(outcome.samples, kPairs);
        const double expected =
            step == 0 ? golden.numbers(loss + ".loss").front() : losses[step - 1];
        EXPECT_LE(relative(outcome.loss, expected), 1e-5) << "step " << step;
        if (step < norms.size()) {
          EXPECT_LE(relative(outcome.grad_norm, norms[step]), 1e-4) << "step " << step;
        }
        if (step > 0) {
          continue;
        }
        const auto mean = [&](const std::string& name) {
          return golden.tensor(name).to(at::kDouble).mean().item<double>();
        };
        const auto figure = [&](const char* name) { return outcome.figures.at(name); };
        EXPECT_LE(relative(figure("rewards/chosen"), mean("rewards_chosen")), 1e-5);
        EXPECT_LE(relative(figure("rewards/rejected"), mean("rewards_rejected")), 1e-5);
        EXPECT_LE(relative(figure("rewards/margins"), mean("rewards_margins")), 1e-5);
        EXPECT_EQ(figure("rewards/accuracies"), golden.numbers("rewards_accuracy").front());
      }
    });
  }
}

TEST_P(DpoFull, GradientsAreTrls) {
  SHERD_NEEDS_EXTRA_DATA("dpo");
  const DpoGolden golden("full");
  const auto expected = golden.gradients("sigmoid");
  ASSERT_EQ(expected.size(), 21U);
  const auto [ranks, micro_batch] = GetParam();
  sherd::test::run_ranks(ranks, [&, micro_batch = micro_batch](sherd::World world) {
    auto model = policy(std::move(world));
    const model::Dpo objective(options_of("sigmoid"));
    for (const inputs::Batch& batch : dealt(golden, model.world(), micro_batch)) {
      (setup::objective_sum(model, setup::to_tensors(batch), objective).loss_sum / kPairs)
          .backward();
    }
    for (const auto& shard : model.parameter_shards()) {
      const at::Tensor& whole = expected.at(shard.name);
      const at::Tensor part = whole.slice(0, shard.begin, shard.end);
      double squares[] = {(shard.gradient - part).square().sum().item<double>()};
      model.world().all_reduce(squares);
      EXPECT_LE(std::sqrt(squares[0]), 1e-4 * whole.norm().item<double>()) << shard.name;
    }
  });
}

// What objectives are given: of each document beside others, of the reference model too.
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

// The model is its own reference: as at the first step of a run.
TEST(Dpo, BeginsWithTheLogarithmOf2) {
  SHERD_NEEDS_EXTRA_DATA("dpo");
  const DpoGolden golden("full");
  auto model = policy(sherd::World::alone());
  for (const std::vector<std::int64_t>& pairs : {std::vector<std::int64_t>{0, 1, 2}, {3}}) {
    model::TokenBatch batch = setup::to_tensors(golden.batch(pairs));
    batch.reference_logps_N = setup::logps(model, batch);
    const auto found = setup::objective_sum(model, batch, model::Dpo({}));
    const double loss = found.loss_sum.item<double>() / static_cast<double>(pairs.size());
    EXPECT_EQ(static_cast<float>(loss), std::numbers::ln2_v<float>);
    for (const std::int64_t figure : {0, 1, 2, 3}) {  // rewards, margin; equal is no win
      EXPECT_EQ(found.figures_F[figure].item<double>(), 0) << figure;
    }
  }
}

}  // namespace
}  // namespace llm::train
