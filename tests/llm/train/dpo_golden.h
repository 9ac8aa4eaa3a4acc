#pragma once
// The results of TRL for pairs over a tiny Llama (dpo/ of SHERD_TEST_DATA).

#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "llm/inputs/batch.h"
#include "llm/model/dpo.h"
#include "llm/setup/batch_tensors.h"
#include "llm/train/train_step.h"
#include "sherd/safetensors.h"
#include "tests/support/test_data.h"

namespace llm::train::test {

inline constexpr double kClip = 1.0;
inline constexpr std::int64_t kPairs = 4;

inline model::DpoOptions options_of(const std::string& loss) {
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
  // Rows of the file: those of chosen answers, then of rejected ones. `knows_reference`: as a run
  // that has computed it before; else the model is asked with its adapter off.
  [[nodiscard]] inputs::Batch batch(const std::vector<std::int64_t>& pairs,
                                    bool knows_reference = true) const {
    const at::Tensor ids = tensor("input_ids"), mask = tensor("attention_mask");
    const at::Tensor completion = tensor("completion_mask");
    const std::vector<double> reference = numbers("reference_logps");
    inputs::Batch batch;
    batch.are_pairs = true;
    if (knows_reference) {
      batch.reference_logps.emplace();
    }
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
        if (knows_reference) {
          batch.reference_logps->push_back(reference[static_cast<std::size_t>(row)]);
        }
      }
    }
    return batch;
  }

 private:
  sherd::SafetensorsFile file_;
};

// A rank's micro-batches: as the trainer deals them.
inline std::vector<inputs::Batch> dealt(const DpoGolden& golden, const sherd::World& world,
                                        std::int64_t micro_batch, bool knows_reference = true) {
  const inputs::BatchShape shape{kPairs, micro_batch, world.size()};
  const std::vector<std::int64_t> pairs = {0, 1, 2, 3};
  std::vector<inputs::Batch> batches;
  for (std::int64_t micro = 0; micro < shape.micro_batches(kPairs); ++micro) {
    const auto mine = shape.samples_of(pairs, micro, world.rank());
    batches.push_back(golden.batch({mine.begin(), mine.end()}, knows_reference));
  }
  return batches;
}

inline double relative(double found, double expected) {
  return std::abs(found - expected) / std::abs(expected);
}

// Losses, rewards and norms of three steps and the loss after them. Collective.
inline void expect_steps(sherd::Sharded<model::CausalLm>& model, const DpoGolden& golden,
                         const std::string& loss, const std::vector<inputs::Batch>& batches) {
  const model::Dpo objective(options_of(loss));
  sherd::AdamW optimizer(
      model,
      {.lr = golden.numbers("lr").front(), .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1});
  StepPlan plan{.number = 1, .clip_grad_norm = kClip, .objective = &objective};
  const auto losses = golden.numbers(loss + ".losses");
  const auto norms = golden.numbers(loss + ".grad_norms");
  for (std::size_t step = 0; step <= losses.size(); ++step) {
    const StepOutcome outcome = train_step(model, optimizer, nullptr, batches, plan);
    EXPECT_EQ(outcome.samples, kPairs);
    const double expected = step == 0 ? golden.numbers(loss + ".loss").front() : losses[step - 1];
    EXPECT_LE(relative(outcome.loss, expected), 1e-5) << "step " << step;
    if (step < norms.size()) {
      EXPECT_LE(relative(outcome.grad_norm, norms[step]), 1e-4) << "step " << step;
    }
    if (step > 0) {
      continue;
    }
    for (const auto& [name, of_file] : {std::pair("rewards/chosen", "rewards_chosen"),
                                        {"rewards/rejected", "rewards_rejected"},
                                        {"rewards/margins", "rewards_margins"}}) {
      const double mean = golden.tensor(of_file).to(at::kDouble).mean().item<double>();
      EXPECT_LE(std::abs(outcome.figures.at(name) - mean), 1e-5 * std::abs(mean)) << name;
    }
    EXPECT_EQ(outcome.figures.at("rewards/accuracies"), golden.numbers("rewards_accuracy").front());
  }
}

// Gradients of the mean over all pairs. `prefix`: of the file's names. Collective.
inline void expect_gradients(sherd::Sharded<model::CausalLm>& model, const DpoGolden& golden,
                             const std::string& loss, const std::vector<inputs::Batch>& batches,
                             const std::string& prefix = "") {
  const auto expected = golden.gradients(loss);
  const model::Dpo objective(options_of(loss));
  for (const inputs::Batch& batch : batches) {
    (setup::objective_sum(model, setup::to_tensors(batch), objective).loss_sum / kPairs).backward();
  }
  std::size_t compared = 0;
  for (const auto& shard : model.parameter_shards()) {
    if (!shard.trainable) {
      continue;
    }
    ++compared;
    ASSERT_TRUE(expected.contains(prefix + shard.name)) << shard.name;
    const at::Tensor& whole = expected.at(prefix + shard.name);
    const at::Tensor part = whole.slice(0, shard.begin, shard.end);
    const at::Tensor found = shard.gradient.defined() ? shard.gradient : part * 0;
    double squares[] = {(found - part).square().sum().item<double>()};
    model.world().all_reduce(squares);
    EXPECT_LE(std::sqrt(squares[0]), 1e-4 * whole.norm().item<double>()) << shard.name;
  }
  EXPECT_EQ(compared, expected.size());
}

}  // namespace llm::train::test
