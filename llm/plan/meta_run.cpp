#include "llm/plan/meta_run.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "llm/model/dropout_keys.h"
#include "llm/setup/batch_tensors.h"
#include "sherd/custom.h"
#include "sherd/state_dict.h"

namespace llm::plan {

namespace {

using sherd::ops::Documents;

// On the CPU: which positions are supervised decides shapes.
at::Tensor labels_of(const MicroBatch& batch, const Documents& documents) {
  at::Tensor labels = at::full({documents.tokens()}, model::kIgnoredLabel, at::kLong);
  for (std::int64_t d = 0; d < documents.count(); ++d) {
    const std::int64_t end = documents.end(d);
    labels.slice(0, end - batch.supervised_tokens[static_cast<size_t>(d)], end).fill_(0);
  }
  return labels;
}

Documents prompts_of(const MicroBatch& batch) {
  std::vector<std::int64_t> lengths;
  for (size_t i = 0; i < batch.sample_tokens.size(); ++i) {
    lengths.push_back(
        std::max<std::int64_t>(1, batch.sample_tokens[i] - batch.supervised_tokens[i]));
  }
  return Documents::of_lengths(lengths);
}

void decode(sherd::Sharded<model::CausalLm>& model, const Documents& documents,
            model::KvCache& cache) {
  static_cast<void>(
      model.run([&](model::CausalLmImpl& lm,
                    const at::Tensor& ids_T) { return lm.decode(ids_T, documents, cache); },
                at::zeros({documents.tokens()}, at::kLong)));
}

// In the place of a run's objective, whose operators need not run on meta. What they take is
// nothing next to the model.
class NoTerms final : public sherd::Objective {
 public:
  [[nodiscard]] int64_t examples_per_sample() const override { return 1; }
  [[nodiscard]] bool needs_reference() const override { return false; }
  [[nodiscard]] sherd::ObjectiveTerms terms(const sherd::Likelihoods& of) const override {
    const auto options = of.logps_N.options();
    return {at::zeros({}, options), at::zeros(of.logps_N.sizes(), options),
            at::zeros({0}, options)};
  }
};

}  // namespace

model::CausalLm meta_module(const PlannedRun& run) {
  model::CausalLm module = sherd::on_meta([&] {
    auto built = io::build_model(run.model);
    if (run.prepare) {
      run.prepare(built);
    }
    return built;
  });
  module->set_attention_kernel(run.attention);
  if (run.loss_chunk_tokens > 0) {
    module->set_loss_chunk_tokens(run.loss_chunk_tokens);
  }
  return module;
}

sherd::Sharded<model::CausalLm> meta_model(const model::CausalLm& module, const PlannedRun& run,
                                           std::shared_ptr<sherd::CollectiveObserver> observer) {
  sherd::World world = sherd::World::fake(run.ranks);
  world.set_observer(std::move(observer));
  auto model = sherd::fully_shard(
      module, sherd::Mesh::of_strategy(world, run.sharding.strategy, run.shard_size), run.sharding);
  model.set_gradient_divide_factor(1.0);
  sherd::initialize(model, 0, [](sherd::ParameterInit& parameter) { parameter.fill_constant(0); });
  return model;
}

at::Tensor loss_of(sherd::Sharded<model::CausalLm>& model, const MicroBatch& batch,
                   const PlannedLoss& loss) {
  const Documents documents = Documents::of_lengths(batch.sample_tokens);
  const at::Tensor ids = at::zeros({documents.tokens()}, at::kLong);
  const at::Tensor labels = labels_of(batch, documents);
  if (loss.is_objective && loss.reference_is_base) {
    static_cast<void>(setup::base_logps(model, {ids, labels, documents}));
  }
  return model.run(
      [&](model::CausalLmImpl& lm, const at::Tensor& ids_T) {
        // Masks are drawn in training alone.
        const bool drops = at::GradMode::is_enabled() && model::has_dropout(lm);
        const at::Tensor keys = drops ? at::zeros({documents.tokens()}, at::kLong) : at::Tensor();
        if (!loss.is_objective) {
          return lm.loss_sum(ids_T, labels, documents, keys);
        }
        const NoTerms objective;
        return lm.objective_sum(ids_T, labels, documents, {objective, {}, keys}).loss_sum;
      },
      ids);
}

void evaluate(sherd::Sharded<model::CausalLm>& model, const PlannedEvaluation& evaluation,
              const PlannedLoss& loss) {
  const at::NoGradGuard no_grad;
  static_cast<void>(loss_of(model, evaluation.batch, loss));
  if (evaluation.max_new_tokens > 0) {
    const Documents prompts = prompts_of(evaluation.batch);
    model::KvCache cache(prompts.longest() + evaluation.max_new_tokens);
    decode(model, prompts, cache);
    decode(model, Documents::of_equal_length(prompts.count(), 1), cache);
  }
}

}  // namespace llm::plan
