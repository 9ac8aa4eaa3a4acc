#include "unit/model.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/TensorImpl.h>

#include "sherd/error.h"

namespace sherd::detail {

namespace {

std::vector<int> indices_of(const std::vector<std::string>& names,
                            const std::vector<std::unique_ptr<UnitState>>& units) {
  std::vector<int> order;
  for (const std::string& name : names) {
    const auto unit = std::ranges::find(units, name, [](const auto& one) { return one->name(); });
    if (unit == units.end()) {
      throw Error(ExitCode::Usage,
                  "[fully_shard] forward_order names '" + name +
                      "', which is not a unit: print ShardedModule::plan() to see their names.");
    }
    order.push_back((*unit)->index());
  }
  return order;
}

// Tells each communicator of every segment, in this order. One that it does not exchange has no
// elements there. Collective.
void attach_communicators(Model& model) {
  const ModelCommunicators& communicators = *model.communicators;
  std::vector<SegmentSpec> shards;
  std::vector<SegmentSpec> replicas;
  std::vector<SegmentSpec> post_forward;
  std::vector<SegmentSpec> full_precision;
  for (const auto& [unit, segment] : model.segments) {
    const SegmentLayout& layout = segment->layout();
    shards.push_back(segment->spec(unit->name(), unit->is_root()));
    const int64_t summed = layout.trainable ? layout.shard_numel : 0;
    replicas.push_back({.name = unit->name(),
                        .shard_numel = summed / model.mesh.replicate_size(),
                        .dtype = layout.reduce_dtype,
                        .trainable = layout.trainable,
                        .is_root = unit->is_root(),
                        .shard_kind = MemoryKind::GradientShard,
                        .reduce_dtype = layout.reduce_dtype});
    const int64_t kept = unit->settings().reshard_after_forward ? layout.numel() : 0;
    post_forward.push_back(
        {.name = unit->name(),
         .shard_numel = kept / std::max(1, model.options.reshard_after_forward_size),
         .dtype = layout.dtype,
         .trainable = false,
         .shard_kind = MemoryKind::PostForwardShard});
    full_precision.push_back(
        {.name = unit->name(),
         .shard_numel = segment->has_separate_master() ? layout.shard_numel : 0,
         .trainable = false,
         .shard_kind = MemoryKind::MasterShard});
  }
  for (const auto& [communicator, specs] :
       {std::pair(&communicators.shards, &shards), std::pair(&communicators.replicas, &replicas),
        std::pair(&communicators.post_forward, &post_forward),
        std::pair(&communicators.full_precision, &full_precision)}) {
    if (*communicator != nullptr) {
      (*communicator)->attach(std::move(*specs), model.mesh.world().device(), model.ledger);
    }
  }
}

// Offloaded parameters get their storage before communicators use it.
void open_stores(Model& model, const StorageFactory* factory) {
  model.collectives.run(Work::Local, "allocation", "all", [&] {
    model.offload.emplace(model.options.offload, model.mesh.world().device(), model.ledger,
                          factory);
  });
  for (const SegmentOfUnit& of : model.segments) {
    model.collectives.run(Work::Local, "allocation", of.unit->name(),
                          [&] { of.segment->store_parameters(*model.offload); });
  }
}

// Views of them stay with them.
void keep_parameters_and_buffers(Model& model) {
  ActivationStore* const activations = model.offload->activations();
  if (activations == nullptr) {
    return;
  }
  for (const SegmentOfUnit& of : model.segments) {
    for (const c10::StorageImpl* const storage : of.segment->storages()) {
      activations->keep(storage);
    }
  }
  for (const ModelBuffer& buffer : model.buffers) {
    activations->keep(buffer.tensor.storage().unsafeGetStorageImpl());
  }
}

// What is gathered at a time stays in memory, and the gradients that are reduced at a time.
void limit_stores(const Model& model) {
  if (FileStore* const file = model.offload->file(Part::Parameters)) {
    const bool in_place = model.communicators->shards->gathers_in_place();
    file->raise_limit(gathered_limit_bytes(model) / (in_place ? 1 : model.mesh.shard_size()));
  }
  if (FileStore* const file = model.offload->file(Part::Gradients)) {
    file->raise_limit(gradients_at_once_bytes(model, /*on_host=*/false));
  }
  if (GatherArena* const slots = model.offload->gradient_slots()) {
    slots->set_limit(gradients_at_once_bytes(model, /*on_host=*/true));
  }
}

}  // namespace

Model::Model(Mesh mesh_of_rows, ShardOptions shard_options, std::vector<UnitPlan> plans,
             std::vector<ModelBuffer> model_buffers, const StorageFactory* factory)
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
        if (segment->gradients() != nullptr) {
          trainable.push_back(segments.back());
        }
      }
    }
    first_order = indices_of(options.forward_order, units);
  });
  arena.set_limit(gathered_limit_bytes(*this));
  const bool full_precision = std::ranges::any_of(
      units, [](const auto& unit) { return unit->settings().precision.full_precision_in_eval; });
  communicators = std::make_unique<ModelCommunicators>(mesh, options, full_precision);
  open_stores(*this, factory);
  collectives.run(Work::Local, "allocation", "all", [&] { attach_communicators(*this); });
  Communicator::Segment id = 0;
  for (const SegmentOfUnit& of : segments) {
    collectives.run(Work::Local, "allocation", of.unit->name(),
                    [&] { of.segment->attach(*communicators, id++, ledger, *offload); });
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
  model.collectives.run(Work::Wait, "wait for the device", "all", [&] {
    model.communicators->shards->check_exchanges(wait);
    for (const Communicator* const one : model.communicators->all()) {
      one->check_exchanges([] {});
    }
  });
}

void rest(Model& model) {
  if (!model.offload->files().empty()) {
    model.collectives.run(Work::Local, "write back", "all", [&] { model.offload->free_memory(); });
  }
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

void require_all_sharded(const Model& model) {
  const std::string late = model.late_parameter ? model.late_parameter() : "";
  if (!late.empty()) {
    throw Error(ExitCode::Usage,
                "parameter '" + late +
                    "' was registered after fully_shard(): it is not sharded, no optimizer of the "
                    "model updates it, and no state holds it. Register it before fully_shard().");
  }
}

bool ModelBuffer::is_inside(const std::string& unit) const {
  const auto is_inside = [prefix = unit + "."](const std::string& one) {
    return one.starts_with(prefix);
  };
  return is_inside(name) || std::ranges::any_of(aliases, is_inside);
}

std::vector<ModelBuffer> take_over_buffers(
    const std::vector<std::pair<std::string, at::Tensor>>& named, c10::Device device,
    const std::optional<c10::ScalarType>& dtype) {
  const at::NoGradGuard no_grad;
  std::vector<ModelBuffer> buffers;
  for (const auto& [name, tensor] : named) {
    const auto known = std::ranges::find_if(
        buffers, [&](const ModelBuffer& other) { return other.tensor.is_same(tensor); });
    if (known != buffers.end()) {
      known->aliases.push_back(name);
      continue;
    }
    ModelBuffer& buffer = buffers.emplace_back(ModelBuffer{name, {}, tensor});
    const auto wanted = dtype && tensor.is_floating_point() ? *dtype : tensor.scalar_type();
    if (tensor.is_meta()) {
      // The module's members and registry hold this very TensorImpl, so both follow.
      const at::Tensor memory =
          at::zeros_like(tensor, tensor.options().device(device).dtype(wanted));
      tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
      buffer.has_values = false;
      buffer.version = static_cast<uint32_t>(tensor._version());
    } else if (tensor.device() != device || tensor.scalar_type() != wanted) {
      tensor.set_data(tensor.to(device, wanted));
    }
  }
  return buffers;
}

std::vector<ParameterShard> value_shards(const Model& model) {
  std::vector<ParameterShard> shards;
  for_each_held_part(model,
                     [&](const UnitState&, const UnitParameter& parameter, const HeldPart& held) {
                       ParameterShard& shard = shards.emplace_back();
                       shard.name = parameter.name;
                       shard.shape = parameter.tensor.sizes().vec();
                       shard.original_dtype = parameter.original_dtype;
                       shard.trainable = parameter.trainable;
                       shard.begin = held.range.begin;
                       shard.end = held.range.end;
                       const ShardValues values = held.values();
                       shard.value = values.read();
                       if (values.in_place().defined()) {
                         held.segment.expose();
                       }
                     });
  return shards;
}

}  // namespace sherd::detail
