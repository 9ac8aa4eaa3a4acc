#include <algorithm>
#include <list>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include "rendezvous/agree.h"
#include "sherd/error.h"
#include "sherd/memory.h"
#include "sherd/sharded_module.h"
#include "step/step.h"
#include "storage/device.h"
#include "storage/own_work.h"

namespace sherd {

namespace {

/// What all ranks are about to run.
struct NextMicroBatch {
  std::string key;
  std::vector<std::string> changes;  ///< by rank: of its memory, and micro-batches that threw
};

/// A micro-batch that may come again.
struct Repeated {
  std::string key;
  std::vector<at::Tensor> inputs;
  std::vector<std::string> changes;          ///< when it was run last
  std::vector<int> order;                    ///< of units, when it was run last
  bool draws = false;                        ///< random numbers of the device
  MicroBatchGraphs::MicroBatch micro_batch;  ///< that was captured: the graph reads what it holds
  at::Tensor result;
  std::optional<detail::CapturedMicroBatch> captured;  ///< goes first: it may be running
};

std::string shape_of(const at::Tensor& tensor) {
  std::string text = c10::toString(tensor.scalar_type());
  for (const int64_t size : tensor.sizes()) {
    text += ',' + std::to_string(size);
  }
  return text + ';';
}

void refuse_graphs(const std::string& what, const std::string& instead) {
  throw Error(ExitCode::Usage, "[MicroBatchGraphs] " + what + ": " + instead +
                                   ", or run micro-batches without graphs.");
}

void check_model(const detail::Model& model) {
  const c10::Device device = model.mesh.world().device();
  if (detail::device_functions(device.type()) == nullptr) {
    refuse_graphs("the model is on " + device.str() + ", which keeps no graphs", "use a GPU");
  }
  if (model.options.debug) {
    refuse_graphs("ShardOptions::debug lets ranks compare each collective on the host",
                  "leave it off");
  }
  if (model.options.ignored) {
    refuse_graphs("gradients of parameters that are left alone (ShardOptions::ignored) move",
                  "shard all of them");
  }
  const Offload& offload = model.options.offload;
  if (offload.activations_on_host || offload.gradients_on_host || offload.parameters_on_host) {
    refuse_graphs("more than masters and moments is offloaded, and the host moves it",
                  "offload by Offload::optimizer_on_host or optimizer_folder at most");
  }
}

// Without what it was computed from, which detach() keeps alive.
at::Tensor result_of(const MicroBatchGraphs::MicroBatch& micro_batch,
                     const std::vector<at::Tensor>& inputs) {
  const at::Tensor result = micro_batch(inputs);
  return result.defined() ? result.variable_data() : result;
}

}  // namespace

struct MicroBatchGraphs::Impl {
  Impl(ShardedModule sharded, int64_t limit)
      : model(std::move(sharded)),
        max_graphs(static_cast<size_t>(limit)),
        device(model.world().device()),
        stream(detail::side_stream(device, detail::StreamPriority::Normal)) {}

  ShardedModule model;
  size_t max_graphs;
  c10::Device device;
  c10::Stream stream;           ///< that captures are made on
  std::list<Repeated> entries;  ///< the one that was run last is the first
  Counts counts;
  int64_t failures = 0;  ///< micro-batches that threw, as they are

  [[nodiscard]] detail::Engine& engine() const { return detail::engine_of(model); }

  // NCCL wants all ranks to capture an exchange, and all to launch it by the graphs of one capture.
  // So each knows what all others have.
  NextMicroBatch agree_on(const std::vector<at::Tensor>& inputs, const std::string& on_host) {
    std::string mine = std::to_string(engine().model.ledger->changes() + failures) + ' ';
    for (const at::Tensor& input : inputs) {
      mine += shape_of(input);
    }
    mine += engine().step.capture_key() + ' ' + on_host;
    World& world = model.world();
    NextMicroBatch next;
    for (const std::string& one :
         world.size() == 1 ? std::vector<std::string>{mine} : world.all_gather(mine)) {
      const size_t space = one.find(' ');
      next.changes.push_back(one.substr(0, space));
      next.key += one.substr(space) + '\n';
    }
    return next;
  }

  // The same on every rank. Graphs may use memory that has been given back since they were
  // captured.
  Repeated& entry_of(const NextMicroBatch& next, const std::vector<at::Tensor>& inputs) {
    for (Repeated& entry : entries) {
      if (entry.changes != next.changes) {
        entry.captured.reset();
        entry.result.reset();
      }
    }
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [&](const Repeated& entry) { return entry.key == next.key; });
    if (found != entries.end()) {
      entries.splice(entries.begin(), entries, found);
      return entries.front();
    }
    Repeated& entry = entries.emplace_front();
    entry.key = next.key;
    for (const at::Tensor& input : inputs) {
      entry.inputs.push_back(at::empty(input.sizes(), input.options().device(device)));
    }
    if (entries.size() > max_graphs) {
      // It may be running: CUDA frees it when it has ended (cuGraphExecDestroy).
      entries.pop_back();
    }
    return entry;
  }

  at::Tensor run_as_it_is(Repeated& entry, const MicroBatch& micro_batch) {
    ++counts.as_they_are;
    const detail::GeneratorStates before = detail::generator_states(device);
    ++failures;
    at::Tensor result = result_of(micro_batch, entry.inputs);
    --failures;
    entry.draws = !at::equal(before.back().second, detail::generator_states(device).back().second);
    entry.order = engine().step.schedule().begun();
    return result;
  }

  void check_draws(const Repeated& entry) const {
    for (const auto& unit : engine().model.units) {
      if (entry.draws && unit->settings().checkpoint_activations) {
        throw Error(ExitCode::Usage, "random numbers are drawn, and unit '" + unit->name() +
                                         "', whose activations are checkpointed, would draw others "
                                         "when it is computed again.");
      }
    }
  }

  void capture_here(Repeated& entry, const MicroBatch& micro_batch) {
    check_draws(entry);
    const int64_t changes = engine().model.ledger->changes();
    const auto other = std::find_if(entries.begin(), entries.end(),
                                    [](const Repeated& one) { return one.captured.has_value(); });
    const detail::DeviceGraph* const pool_of =
        other == entries.end() ? nullptr : &*other->captured->graph;
    at::Tensor result;
    detail::CapturedMicroBatch captured = engine().step.capture(
        stream, pool_of, [&] { result = result_of(micro_batch, entry.inputs); });
    if (captured.order != entry.order) {
      throw Error(ExitCode::Usage,
                  "it runs other units, or in another order, than when it was run last.");
    }
    if (changes != engine().model.ledger->changes()) {
      throw Error(
          ExitCode::Usage,
          "the model's buffers in memory were not the same before and after the capture, and "
          "a graph keeps their addresses: something in the micro-batch allocates or frees "
          "them, such as an evaluation, a state dict or another optimizer. Do that between "
          "micro-batches.");
    }
    entry.captured.emplace(std::move(captured));
    entry.result = std::move(result);
    entry.micro_batch = micro_batch;
  }

  // All ranks, or none.
  void capture(Repeated& entry, const MicroBatch& micro_batch) {
    try {
      detail::on_all_ranks(
          model.world(), "[MicroBatchGraphs] this micro-batch cannot be captured as a graph", [&] {
            try {
              capture_here(entry, micro_batch);
            } catch (const c10::OutOfMemoryError&) {
              throw;
            } catch (const c10::Error& error) {
              throw Error(ExitCode::Usage, detail::message_of(error));
            }
          });
      ++counts.captures;
    } catch (const Error& error) {
      entry.captured.reset();
      entry.changes.clear();
      engine().step.gradients().changed();  // on every rank, however far each came
      throw Error(error.code(), std::string(error.what()) +
                                    " Gradients and parameters are as they were before it. Run "
                                    "micro-batches without graphs, or change that.");
    }
  }
};

MicroBatchGraphs::MicroBatchGraphs(ShardedModule model, int64_t max_graphs) {
  check_model(detail::engine_of(model).model);
  if (max_graphs < 1) {
    throw Error(ExitCode::Usage, "[MicroBatchGraphs] `max_graphs` is at least 1, got " +
                                     std::to_string(max_graphs) + ".");
  }
  impl_ = std::make_unique<Impl>(std::move(model), max_graphs);
}

MicroBatchGraphs::MicroBatchGraphs(MicroBatchGraphs&&) noexcept = default;
MicroBatchGraphs& MicroBatchGraphs::operator=(MicroBatchGraphs&&) noexcept = default;
MicroBatchGraphs::~MicroBatchGraphs() = default;

MicroBatchGraphs::Counts MicroBatchGraphs::counts() const {
  return impl_->counts;
}

at::Tensor MicroBatchGraphs::run(const std::vector<at::Tensor>& inputs,
                                 const MicroBatch& micro_batch, const std::string& on_host) {
  Impl& mine = *impl_;
  mine.engine().step.begin_captured();
  const NextMicroBatch next = mine.agree_on(inputs, on_host);
  Repeated& entry = mine.entry_of(next, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    entry.inputs[i].copy_(to_device(inputs[i].detach(), mine.device));
  }
  if (entry.changes != next.changes) {
    entry.changes = next.changes;
    return mine.run_as_it_is(entry, micro_batch);
  }
  if (!entry.captured) {
    mine.capture(entry, micro_batch);
  }
  ++mine.counts.launches;
  mine.engine().step.launch(*entry.captured);
  return entry.result;
}

}  // namespace sherd
