#include "unit/model.h"

#include <algorithm>
#include <utility>

#include "sherd/error.h"
#include "unit/compare_ranks.h"
#include "unit/memory_plan.h"

namespace sherd::detail {

namespace {

std::vector<int> indices_of(const std::vector<std::string>& names,
                            const std::vector<std::unique_ptr<UnitState>>& units) {
  std::vector<int> order;
  for (const std::string& name : names) {
    const auto unit = std::find_if(units.begin(), units.end(),
                                   [&](const auto& other) { return other->name() == name; });
    if (unit == units.end()) {
      throw Error(ExitCode::Usage,
                  "[fully_shard] forward_order names '" + name +
                      "', which is not a unit: print ShardedModule::plan() to see their names.");
    }
    order.push_back((*unit)->index());
  }
  return order;
}

// Stored parameters get their storage before communicators use it.
void open_stores(Model& model) {
  const Offload& folders = model.options.offload;
  const auto open = [&](std::shared_ptr<OffloadStore>& store, const std::string& folder,
                        bool is_behind_host) {
    if (!folder.empty()) {
      store = std::make_shared<OffloadStore>(folder, model.mesh.world().device(), model.ledger,
                                             is_behind_host);
    }
  };
  model.collectives.run(Work::Local, "allocation", "all", [&] {
    open(model.offload.optimizer, folders.optimizer_folder, folders.optimizer_on_host);
    open(model.offload.gradients, folders.gradient_folder, folders.gradients_on_host);
    open(model.offload.parameters, folders.parameter_folder, folders.parameters_on_host);
    model.offload.optimizer_on_host = folders.optimizer_on_host;
    if (folders.optimizer_on_host || folders.gradients_on_host || folders.parameters_on_host) {
      model.offload.on_host =
          std::make_shared<HostStore>(model.mesh.world().device(), model.ledger);
    }
    if (folders.gradients_on_host) {
      model.offload.gradient_slots =
          std::make_shared<PieceSlots>(model.mesh.world().device(), model.ledger);
    }
    if (folders.activations_on_host) {
      model.offload.activations =
          std::make_shared<ActivationStore>(model.mesh.world().device(), model.ledger);
    }
  });
  for (const SegmentOfUnit& of : model.segments) {
    model.collectives.run(Work::Local, "allocation", of.unit->name(), [&] {
      if (folders.parameters_on_host) {
        of.segment->rest_parameters_on(model.offload.on_host, model.offload.parameters);
      } else if (model.offload.parameters != nullptr) {
        of.segment->rest_parameters_in(model.offload.parameters);
      }
    });
  }
}

// Views of them stay with them.
void keep_parameters_and_buffers(Model& model) {
  if (model.offload.activations == nullptr) {
    return;
  }
  for (const SegmentOfUnit& of : model.segments) {
    of.segment->for_each_storage(
        [&](const c10::StorageImpl* storage) { model.offload.activations->keep(storage); });
  }
  for (const ModelBuffer& buffer : model.buffers) {
    model.offload.activations->keep(buffer.tensor.storage().unsafeGetStorageImpl());
  }
}

// Of parameters, what is gathered at a time stays in memory; of gradients, what is reduced.
void limit_stores(Model& model) {
  if (model.offload.parameters != nullptr) {
    const bool in_place = model.communicators->shards().gathers_in_place();
    model.offload.parameters->raise_limit(gathered_limit_bytes(model) /
                                          (in_place ? 1 : model.mesh.shard_size()));
  }
  if (model.offload.gradients != nullptr) {
    model.offload.gradients->raise_limit(reduced_at_once_bytes(model));
  }
  if (model.offload.gradient_slots != nullptr) {
    model.offload.gradient_slots->set_limit(gradient_slot_bytes(model));
  }
}

}  // namespace

Model::Model(Mesh mesh_of_rows, ShardOptions shard_options, std::vector<UnitPlan> plans,
             std::vector<ModelBuffer> model_buffers)
    : mesh(std::move(mesh_of_rows)),
      options(std::move(shard_options)),
      arena(0, ledger, mesh.world().device()),
      collectives(mesh.world(), options.debug),
      buffers(std::move(model_buffers)) {
  build_and_compare(*this, [&] {
    for (UnitPlan& plan : plans) {
      units.push_back(std::make_unique<UnitState>(static_cast<int>(units.size()), std::move(plan),
                                                  mesh, collectives, arena));
      for (const auto& segment : units.back()->segments()) {
        segments.push_back({units.back().get(), segment.get()});
      }
    }
    first_order = indices_of(options.forward_order, units);
  });
  arena.set_limit(gathered_limit_bytes(*this));
  const bool full_precision = std::any_of(units.begin(), units.end(), [](const auto& unit) {
    return unit->settings().precision.full_precision_in_eval;
  });
  communicators = std::make_unique<ModelCommunicators>(mesh, options, full_precision);
  open_stores(*this);
  collectives.run(Work::Local, "allocation", "all",
                  [&] { communicators->attach(segments, mesh.world().device(), ledger); });
  const auto spare_shards = std::make_shared<SpareShards>();
  Communicator::Segment id = 0;
  for (const SegmentOfUnit& of : segments) {
    collectives.run(Work::Local, "allocation", of.unit->name(), [&] {
      of.segment->attach(communicators->all(), id++, ledger, spare_shards, offload);
    });
  }
  limit_stores(*this);
  for (const auto& unit : units) {
    unit->take_over_parameters();
  }
  keep_parameters_and_buffers(*this);
}

void begin_update(Model& model, const SegmentOfUnit& of) {
  model.collectives.run(Work::Collective, "wait for readers", of.unit->name(),
                        [&] { of.segment->begin_update(); });
}

void check_exchanges(Model& model, const std::function<void()>& wait) {
  model.collectives.run(Work::Wait, "wait for the device", "all",
                        [&] { model.communicators->check_exchanges(wait); });
}

void rest(Model& model) {
  if (!model.offload.all().empty()) {
    model.collectives.run(Work::Local, "write back", "all", [&] { model.offload.rest(); });
  }
}

// Units that are kept (as the root is), those gathered ahead, the running one and those around it.
int64_t gathered_limit_bytes(const Model& model) {
  int64_t kept = 0;
  int64_t largest = 0;
  int levels = 1;
  for (const auto& unit : model.units) {
    if (unit->is_root() || !unit->settings().reshard_after_forward ||
        !unit->backward_settings.reshard_after_backward) {
      kept += unit->gathered_bytes();
    } else {
      largest = std::max(largest, unit->gathered_bytes());
      levels = std::max(levels, unit->level());
    }
  }
  return kept + (model.options.prefetch_depth + levels) * largest;
}

void require_values(const Model& model, const std::string& operation) {
  for (const auto& unit : model.units) {
    for (const UnitParameter& parameter : unit->parameters()) {
      if (!parameter.has_values) {
        throw Error(ExitCode::Usage,
                    "[" + operation + "] parameter '" + parameter.name +
                        "' was built on the meta device and has no values: call "
                        "sherd::load_safetensors(model, folder), sherd::load_from_rank0(model, "
                        "source) or sherd::initialize(model, seed, param_init_fn), or write "
                        "ParameterShard::value of every parameter and call publish(), before the "
                        "model is used.");
      }
    }
  }
  for (const ModelBuffer& buffer : model.buffers) {
    if (!buffer.is_written()) {
      throw Error(ExitCode::Usage,
                  "[" + operation + "] buffer '" + buffer.name +
                      "' was built on the meta device and has no values: fill it in place, or call "
                      "sherd::load_from_rank0(model, source) or sherd::initialize(model, seed, "
                      "param_init_fn, buffer_init_fn), before the model is used.");
    }
  }
}

}  // namespace sherd::detail
