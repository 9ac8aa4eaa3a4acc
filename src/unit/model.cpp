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
    of.segment->for_each_storage(
        [&](const c10::StorageImpl* storage) { activations->keep(storage); });
  }
  for (const ModelBuffer& buffer : model.buffers) {
    activations->keep(buffer.tensor.storage().unsafeGetStorageImpl());
  }
}

// What is gathered at a time stays in memory, and the gradients that are reduced at a time.
void limit_stores(const Model& model) {
  if (FileStore* const file = model.offload->file(Part::Parameters)) {
    const bool in_place = model.communicators->shards().gathers_in_place();
    file->raise_limit(gathered_limit_bytes(model) / (in_place ? 1 : model.mesh.shard_size()));
  }
  if (FileStore* const file = model.offload->file(Part::Gradients)) {
    file->raise_limit(reduced_at_once_bytes(model));
  }
  if (GatherArena* const slots = model.offload->gradient_slots()) {
    slots->set_limit(gradient_slot_bytes(model));
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
      }
    }
    first_order = indices_of(options.forward_order, units);
  });
  arena.set_limit(gathered_limit_bytes(*this));
  const bool full_precision = std::any_of(units.begin(), units.end(), [](const auto& unit) {
    return unit->settings().precision.full_precision_in_eval;
  });
  communicators = std::make_unique<ModelCommunicators>(mesh, options, full_precision);
  open_stores(*this, factory);
  collectives.run(Work::Local, "allocation", "all",
                  [&] { communicators->attach(segments, mesh.world().device(), ledger); });
  Communicator::Segment id = 0;
  for (const SegmentOfUnit& of : segments) {
    collectives.run(Work::Local, "allocation", of.unit->name(),
                    [&] { of.segment->attach(communicators->all(), id++, ledger, *offload); });
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
  if (!model.offload->files().empty()) {
    model.collectives.run(Work::Local, "write back", "all", [&] { model.offload->free_memory(); });
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
  const std::string prefix = unit + ".";
  return name.starts_with(prefix) ||
         std::any_of(aliases.begin(), aliases.end(),
                     [&](const std::string& alias) { return alias.starts_with(prefix); });
}

std::vector<ModelBuffer> take_over_buffers(
    const std::vector<std::pair<std::string, at::Tensor>>& named, c10::Device device,
    const std::optional<c10::ScalarType>& dtype) {
  const at::NoGradGuard no_grad;
  std::vector<ModelBuffer> buffers;
  for (const auto& [name, tensor] : named) {
    const auto known = std::find_if(buffers.begin(), buffers.end(), [&](const ModelBuffer& other) {
      return other.tensor.is_same(tensor);
    });
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

namespace {

// This rank's row of the mesh.
RankGroup row_of(const Mesh& mesh) {
  return {mesh.replicate_rank() * mesh.shard_size(), 1, mesh.shard_size()};
}

// The ranks that hold the same piece.
RankGroup column_of(const Mesh& mesh) {
  return {mesh.shard_rank(), mesh.shard_size(), mesh.replicate_size()};
}

// `size` consecutive ranks of this rank's row; `size` divides it.
RankGroup part_of_row(const Mesh& mesh, int size) {
  return {mesh.world().rank() / size * size, 1, size};
}

}  // namespace

ModelCommunicators::ModelCommunicators(Mesh& mesh, const ShardOptions& options, bool full_precision)
    : shards_(mesh.world().make_communicator(row_of(mesh))) {
  if (mesh.replicate_size() > 1) {
    replicas_ = mesh.world().make_communicator(column_of(mesh));
  }
  const int size = options.reshard_after_forward_size;
  if (size > 1 && size < mesh.shard_size()) {
    post_forward_ = mesh.world().make_communicator(part_of_row(mesh, size));
  }
  if (full_precision) {
    full_precision_ = mesh.world().make_communicator(row_of(mesh));
  }
}

void ModelCommunicators::attach(const std::vector<SegmentOfUnit>& segments, c10::Device device,
                                const std::shared_ptr<MemoryLedger>& ledger) {
  const auto attach = [&](Communicator* communicator, const auto& spec_of) {
    if (communicator == nullptr) {
      return;
    }
    std::vector<SegmentSpec> specs;
    for (const SegmentOfUnit& of : segments) {
      specs.push_back(spec_of(*of.unit, *of.segment));
    }
    communicator->attach(std::move(specs), device, ledger);
  };
  attach(shards_.get(), [](const UnitState& unit, const FlatSegment& segment) {
    return segment.spec(unit.name(), unit.is_root());
  });
  attach(replicas_.get(), [&](const UnitState& unit, const FlatSegment& segment) {
    return segment.replica_spec(unit.name(), unit.is_root(), replicas_->world_size());
  });
  attach(post_forward_.get(), [&](const UnitState& unit, const FlatSegment& segment) {
    return segment.post_forward_spec(unit.name(), post_forward_->world_size(),
                                     /*is_kept=*/unit.settings().reshard_after_forward);
  });
  attach(full_precision_.get(), [](const UnitState& unit, const FlatSegment& segment) {
    return segment.full_precision_spec(unit.name());
  });
}

SegmentCommunicators ModelCommunicators::all() const {
  return {shards_.get(), replicas_.get(), post_forward_.get(), full_precision_.get()};
}

void ModelCommunicators::abandon(bool in_backward) {
  shards_->abandon();
  if (replicas_ != nullptr && in_backward) {  // else it holds sums of earlier micro-batches
    replicas_->abandon();
  }
}

std::vector<const Communicator*> ModelCommunicators::made() const {
  std::vector<const Communicator*> made;
  for (const Communicator* const one :
       {shards_.get(), replicas_.get(), post_forward_.get(), full_precision_.get()}) {
    if (one != nullptr) {
      made.push_back(one);
    }
  }
  return made;
}

std::vector<double> ModelCommunicators::signatures() const {
  std::vector<double> signatures;
  for (const Communicator* const one : made()) {
    signatures.push_back(one->signature());
  }
  return signatures;
}

void ModelCommunicators::check_exchanges(const std::function<void()>& wait) const {
  shards_->check_exchanges(wait);
  for (const Communicator* const one : made()) {
    one->check_exchanges([] {});
  }
}

int64_t ModelCommunicators::most_received_bytes() const {
  return shards_->most_received_bytes() +
         (replicas_ != nullptr ? replicas_->most_received_bytes() : 0);
}

Communicator::Counts ModelCommunicators::counts() const {
  Communicator::Counts counts = shards_->counts();
  for (const Communicator* gathers : {post_forward_.get(), full_precision_.get()}) {
    if (gathers != nullptr) {
      counts.gathers += gathers->counts().gathers;
      counts.bytes_sent += gathers->counts().bytes_sent;
    }
  }
  if (replicas_ != nullptr) {
    counts.replications = replicas_->counts().reductions;
    counts.bytes_sent += replicas_->counts().bytes_sent;
  }
  return counts;
}

}  // namespace sherd::detail
