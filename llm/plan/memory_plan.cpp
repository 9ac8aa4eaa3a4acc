#include "llm/plan/memory_plan.h"

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "llm/plan/meta_meter.h"
#include "llm/plan/meta_run.h"

namespace llm::plan {

namespace {

std::string largest_of(const MetaMeter::Items& items) {
  const auto by_size = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto found = std::max_element(items.begin(), items.end(), by_size);
  return found == items.end() ? "" : found->first;
}

// A plan, phase by phase.
class Planner {
 public:
  explicit Planner(const PlannedRun& run)
      : run_(run), module_(meta_module(run)), meter_(run.pooling) {}

  MemoryPlan plan() {
    auto model = meta_model(module_, run_);
    sherd::AdamW optimizer(model, {}, {}, run_.adamw);
    optimizer.zero_grad();
    end_phase("load");
    step(model, optimizer);
    phases_.resize(1);  // from the second step on all of the optimizer's state is there
    step(model, optimizer);
    if (run_.cuda_graphs) {
      graph_bytes_ = bytes_of_graphs(model);
    }
    end_phase("save",
              model.offload_slot_bytes());  // a rank writes what it holds from where it lies
    if (run_.evaluation) {
      evaluate(model, *run_.evaluation, run_.loss);
      end_phase("evaluation");
    }
    MemoryPlan plan = result(model.memory().offloaded_bytes());
    plan.host_bytes = model.memory().on_host_bytes();
    plan.page_bytes = model.offload_page_bytes();
    return plan;
  }

 private:
  void step(sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer) {
    optimizer.zero_grad();
    for (const MicroBatch& batch : run_.micro_batches) {
      model.set_is_last_backward(&batch == &run_.micro_batches.back());
      const at::Tensor loss = loss_of(model, batch, run_.loss);
      end_phase("forward");
      loss.backward();
      end_phase("backward");
    }
    // What its operators take on this device, its loops on others do not.
    meter_.without_peaks([&] { optimizer.step(); });
    end_phase("optimizer", model.offload_slot_bytes());
  }

  // Of several micro-batches the one that held most.
  void end_phase(const std::string& name, std::int64_t offload_bytes = 0) {
    PhasePlan ended{name, meter_.peak_bytes(), meter_.at_peak()};
    meter_.reset_peak();
    std::int64_t& slots = ended.items[kOffloadItem];
    const std::int64_t more = std::max<std::int64_t>(0, offload_bytes - slots);
    slots += more;
    ended.total_bytes += more;
    for (const auto& [item, bytes] : {std::pair(kLibrariesItem, run_.libraries_bytes),
                                      std::pair(kWorkspacesItem, run_.workspaces_bytes)}) {
      if (name != "load" && bytes > 0) {
        ended.items[item] = bytes;
        ended.total_bytes += bytes;
      }
    }
    const auto known = std::find_if(phases_.begin(), phases_.end(),
                                    [&](const PhasePlan& phase) { return phase.name == name; });
    if (known == phases_.end()) {
      phases_.push_back(std::move(ended));
    } else if (known->total_bytes < ended.total_bytes) {
      *known = std::move(ended);
    }
  }

  // They share segments of their own, in which the largest micro-batch fits.
  [[nodiscard]] std::int64_t bytes_of_graphs(sherd::Sharded<model::CausalLm>& model) {
    std::int64_t bytes = 0;
    for (const MicroBatch& batch : run_.micro_batches) {
      bytes = std::max(bytes, meter_.apart([&] { loss_of(model, batch, run_.loss).backward(); }));
    }
    return bytes;
  }

  void add_memory_of_graphs() {
    for (PhasePlan& phase : phases_) {
      if (phase.name != "load") {
        phase.items[kGraphsItem] = graph_bytes_;
        phase.total_bytes += graph_bytes_;
      }
    }
  }

  // Memory that is kept is there in every phase: what decides is what is in use.
  MemoryPlan result(std::int64_t offloaded_bytes) {
    if (run_.cuda_graphs) {
      add_memory_of_graphs();
    }
    MemoryPlan plan{std::move(phases_)};
    plan.offloaded_bytes = offloaded_bytes;
    std::int64_t most_in_use = -1;
    for (const PhasePlan& phase : plan.phases) {
      plan.peak_bytes = std::max(plan.peak_bytes, phase.total_bytes);
      auto in_use = phase.items;
      const auto kept = in_use.extract(kKeptItem);
      const std::int64_t bytes = phase.total_bytes - (kept ? kept.mapped() : 0);
      if (bytes > most_in_use) {
        most_in_use = bytes;
        plan.peak_phase = phase.name;
        plan.peak_item = largest_of(in_use);
      }
    }
    return plan;
  }

  const PlannedRun& run_;
  model::CausalLm module_;  // built before the meter is there: a real one takes nothing either
  MetaMeter meter_;
  std::vector<PhasePlan> phases_;
  std::int64_t graph_bytes_ = 0;
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
