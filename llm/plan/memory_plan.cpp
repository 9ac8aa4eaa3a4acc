#include "llm/plan/memory_plan.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include "llm/model/causal_lm.h"
#include "llm/plan/meta_meter.h"
#include "sherd/fully_shard.h"
#include "sherd/init.h"

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

at::Tensor loss_of(sherd::Sharded<model::CausalLm>& model, const MicroBatch& batch) {
  const Documents documents = Documents::of_lengths(batch.sample_tokens);
  const at::Tensor ids = at::zeros({documents.tokens()}, at::kLong);
  return model.run(
      [&, labels = labels_of(batch, documents)](model::CausalLmImpl& lm, const at::Tensor& ids_T) {
        return lm.loss_sum(ids_T, labels, documents);
      },
      ids);
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

// A plan, phase by phase.
class Planner {
 public:
  explicit Planner(const PlannedRun& run)
      : run_(run),
        module_(sherd::on_meta([&] { return io::build_model(run.model); })),
        meter_(run.pooling) {
    if (run.loss_chunk_tokens > 0) {
      module_->set_loss_chunk_tokens(run.loss_chunk_tokens);
    }
  }

  MemoryPlan plan() {
    auto model = load();
    sherd::AdamW optimizer(model, {}, {}, run_.adamw);
    optimizer.zero_grad();
    end_phase("load");
    step(model, optimizer);
    phases_.resize(1);  // from the second step on all of the optimizer's state is there
    step(model, optimizer);
    if (run_.evaluation) {
      evaluate(model, *run_.evaluation);
    }
    return result();
  }

 private:
  sherd::Sharded<model::CausalLm> load() {
    sherd::World world = sherd::World::fake(run_.ranks);
    auto model = sherd::fully_shard(
        module_, sherd::Mesh::of_strategy(world, run_.sharding.strategy, run_.shard_size),
        run_.sharding);
    model.set_gradient_divide_factor(1.0);
    sherd::initialize(model, 0,
                      [](sherd::ParameterInit& parameter) { parameter.fill_constant(0); });
    return model;
  }

  void step(sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer) {
    optimizer.zero_grad();
    for (const MicroBatch& batch : run_.micro_batches) {
      const at::Tensor loss = loss_of(model, batch);
      end_phase("forward");
      loss.backward();
      end_phase("backward");
    }
    // What its operators take on this device, its loops on others do not.
    meter_.without_peaks([&] { optimizer.step(); });
    end_phase("optimizer");
  }

  // As eval::evaluate() does: the loss, then prompts and a token of each answer.
  void evaluate(sherd::Sharded<model::CausalLm>& model, const PlannedEvaluation& evaluation) {
    const at::NoGradGuard no_grad;
    static_cast<void>(loss_of(model, evaluation.batch));
    if (evaluation.max_new_tokens > 0) {
      const Documents prompts = prompts_of(evaluation.batch);
      model::KvCache cache(prompts.longest() + evaluation.max_new_tokens);
      decode(model, prompts, cache);
      decode(model, Documents::of_equal_length(prompts.count(), 1), cache);
    }
    end_phase("evaluation");
  }

  // Of several micro-batches the one that held most.
  void end_phase(const std::string& name) {
    PhasePlan ended{name, meter_.peak_bytes(), meter_.at_peak()};
    meter_.reset_peak();
    if (name != "load" && run_.libraries_bytes > 0) {
      ended.items["other libraries"] = run_.libraries_bytes;
      ended.total_bytes += run_.libraries_bytes;
    }
    const auto known = std::find_if(phases_.begin(), phases_.end(),
                                    [&](const PhasePlan& phase) { return phase.name == name; });
    if (known == phases_.end()) {
      phases_.push_back(std::move(ended));
    } else if (known->total_bytes < ended.total_bytes) {
      *known = std::move(ended);
    }
  }

  MemoryPlan result() {
    const auto by_size = [](const auto& a, const auto& b) { return a.second < b.second; };
    MemoryPlan plan{std::move(phases_)};
    for (const PhasePlan& phase : plan.phases) {
      if (phase.total_bytes > plan.peak_bytes) {
        plan.peak_bytes = phase.total_bytes;
        plan.peak_phase = phase.name;
        plan.peak_item = std::max_element(phase.items.begin(), phase.items.end(), by_size)->first;
      }
    }
    return plan;
  }

  const PlannedRun& run_;
  model::CausalLm module_;  // built before the meter is there: a real one takes nothing either
  MetaMeter meter_;
  std::vector<PhasePlan> phases_;
};

}  // namespace

MemoryPlan plan_memory(const PlannedRun& run) {
  return Planner(run).plan();
}

nlohmann::ordered_json phases_json(const MemoryPlan& plan) {
  nlohmann::ordered_json phases;
  for (const PhasePlan& phase : plan.phases) {
    nlohmann::ordered_json items = nlohmann::ordered_json::object();
    for (const auto& [name, bytes] : phase.items) {
      if (bytes != 0) {
        items[name] = bytes;
      }
    }
    phases[phase.name] = {{"total_bytes", phase.total_bytes}, {"items", std::move(items)}};
  }
  return phases;
}

}  // namespace llm::plan
