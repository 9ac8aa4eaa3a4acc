// fully_shard(): from a module and options to a plan of units, and to the engine.

#include "sherd/fully_shard.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "rendezvous/agree.h"
#include "sherd/error.h"
#include "sherd/unit.h"
#include "step/step.h"
#include "storage/own_work.h"

namespace sherd {

const char* name_of(Master master) {
  switch (master) {
    case Master::Float32:
      return "Float32";
    case Master::Split:
      return "Split";
    case Master::BFloat16:
      return "BFloat16";
  }
  return "";
}

namespace detail {

namespace {

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

[[noreturn]] void refuse_sharding(const std::string& what) {
  throw Error(ExitCode::Usage, "[fully_shard] " + what);
}

/// A module that becomes a unit.
struct UnitModule {
  std::string name;
  UnitAnchor* anchor = nullptr;  ///< null: the root, where it is no Unit itself
  int parent = -1;               ///< the unit it lies in; -1 for the root
  UnitOptions options;
};

/// A parameter, once however many names it has.
struct ParameterInModule {
  std::string name;
  at::Tensor tensor;
  std::vector<int> owners;  ///< the unit of each module that registers it
  std::vector<std::string> aliases;
};

/// Walks the modules depth first, in registration order. A module registered twice is visited
/// twice: its parameters are tied.
class ModuleWalk {
 public:
  /// Throws Error(Usage) if the policy chooses a module that cannot be a unit.
  ModuleWalk(torch::nn::Module& root, const UnitPolicy& policy)
      : policy_(policy ? policy : unit_policy::every_unit()) {
    units.push_back({"root", dynamic_cast<UnitAnchor*>(&root), -1, {}});
    visit(root, "", 0);
  }

  std::vector<UnitModule> units;  ///< the first is the root
  std::vector<ParameterInModule> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;

  /// Returns the number of units that contain it.
  [[nodiscard]] int level_of(const UnitModule& unit) const {
    return unit.parent < 0 ? 0 : static_cast<int>(path_to_root(unit.parent).size());
  }
  /// Returns the name of a parameter that was registered after the walk; empty: none.
  [[nodiscard]] std::string unknown_parameter(const torch::nn::Module& root,
                                              const ShardOptions& options) const {
    for (const auto& item : root.named_parameters()) {
      const bool is_ignored = options.ignored && options.ignored(item.key());
      if (!is_ignored && !seen_parameters_.contains(item.value().unsafeGetTensorImpl())) {
        return item.key();
      }
    }
    return "";
  }
  /// Returns the smallest unit that contains all of them.
  [[nodiscard]] int common_unit(const std::vector<int>& owners) const {
    std::vector<int> path = path_to_root(owners.front());
    for (const int owner : owners) {
      const std::vector<int> other = path_to_root(owner);
      std::erase_if(path, [&](int unit) {
        return std::find(other.begin(), other.end(), unit) == other.end();
      });
    }
    return path.front();
  }

 private:
  [[nodiscard]] std::vector<int> path_to_root(int unit) const {
    std::vector<int> path;
    for (; unit >= 0; unit = units[static_cast<size_t>(unit)].parent) {
      path.push_back(unit);
    }
    return path;
  }

  void visit(torch::nn::Module& module, const std::string& prefix, int unit) {
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      add_parameter(joined(prefix, item.key()), item.value(), unit);
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      if (item.value().defined()) {
        buffers.emplace_back(joined(prefix, item.key()), item.value());
      }
    }
    for (const auto& child : module.named_children()) {
      const std::string name = joined(prefix, child.key());
      visit(*child.value(), name, unit_of_child(*child.value(), name, unit));
    }
  }

  // The child's own unit, if the policy chooses it; else the enclosing one.
  int unit_of_child(torch::nn::Module& child, const std::string& name, int unit) {
    auto* anchor = dynamic_cast<UnitAnchor*>(&child);
    ModuleInfo info{name, child, 0, anchor != nullptr};
    for (const at::Tensor& parameter : child.parameters()) {
      info.numel += parameter.numel();
    }
    const std::optional<UnitOptions> chosen = policy_(info);
    if (!chosen) {
      return unit;
    }
    if (anchor == nullptr) {
      refuse_sharding(
          "the policy chose module '" + name +
          "', which no Unit<> holds: declare it as sherd::Unit<Block> in its parent, or let the "
          "policy look at ModuleInfo::is_unit.");
    }
    return unit_of(anchor, name, unit, *chosen);
  }

  // A unit registered in several places is one unit, in the smallest that contains them all.
  int unit_of(UnitAnchor* anchor, const std::string& name, int parent, const UnitOptions& options) {
    const auto [found, added] = seen_units_.emplace(anchor, static_cast<int>(units.size()));
    if (added) {
      units.push_back({name, anchor, parent, options});
    } else {
      int& known = units[static_cast<size_t>(found->second)].parent;
      known = common_unit({known, parent});
    }
    return found->second;
  }

  void add_parameter(const std::string& name, const at::Tensor& tensor, int unit) {
    const auto [found, added] =
        seen_parameters_.emplace(tensor.unsafeGetTensorImpl(), parameters.size());
    if (added) {
      parameters.push_back({name, tensor, {unit}, {}});
    } else {
      parameters[found->second].owners.push_back(unit);
      parameters[found->second].aliases.push_back(name);
    }
  }

  UnitPolicy policy_;
  std::map<const UnitAnchor*, int> seen_units_;
  std::map<const c10::TensorImpl*, size_t> seen_parameters_;
};

void check_parameter(const std::string& name, const at::Tensor& tensor) {
  const std::string parameter = "parameter '" + name + "' ";
  if (tensor.dim() == 0) {
    refuse_sharding(parameter + "is a scalar, which cannot be sharded: give it shape [1].");
  }
  if (tensor.numel() == 0) {
    refuse_sharding(parameter + "has no elements: leave it out of the model.");
  }
  if (is_sharded(tensor)) {
    refuse_sharding(
        parameter +
        "is sharded already: call fully_shard once, on the outermost module, and use the handle "
        "it returns.");
  }
  if (!tensor.is_contiguous()) {
    refuse_sharding(parameter + "is not contiguous: register parameter.contiguous() instead.");
  }
  const auto dtype = tensor.scalar_type();
  // LibTorch lets no tensor of integers require a gradient.
  constexpr std::array kDtypes = {at::kFloat, at::kBFloat16, at::kByte, at::kChar,
                                  at::kShort, at::kInt,      at::kLong};
  if (std::ranges::find(kDtypes, dtype) == kDtypes.end()) {
    refuse_sharding(
        parameter + "is " + c10::toString(dtype) +
        "; supported are Float and BFloat16, and Byte, Char, Short, Int and Long, which "
        "are frozen.");
  }
  if (!tensor.is_meta() && !tensor.is_cpu()) {
    refuse_sharding(parameter + "is on " + tensor.device().str() +
                    ": build the model on the CPU or on meta.");
  }
}

// Parameters that share memory would become separate. Nobody would notice of frozen ones.
void check_memory(const std::vector<UnitPlan>& plans) {
  struct Held {
    const c10::StorageImpl* storage;
    int64_t begin;
    int64_t end;
    const UnitParameter* parameter;
  };
  std::vector<Held> held;
  for (const UnitPlan& plan : plans) {
    for (const UnitParameter& parameter : plan.parameters) {
      const at::Tensor& tensor = parameter.tensor;
      const int64_t begin = tensor.storage_offset() * tensor.element_size();
      held.push_back({tensor.storage().unsafeGetStorageImpl(), begin,
                      begin + static_cast<int64_t>(tensor.nbytes()), &parameter});
    }
  }
  std::ranges::sort(held, {}, [](const Held& one) { return std::tuple(one.storage, one.begin); });
  for (size_t i = 1; i < held.size(); ++i) {
    const Held& before = held[i - 1];
    const Held& one = held[i];
    if (one.storage == before.storage && one.begin < before.end &&
        (one.parameter->trainable || before.parameter->trainable)) {
      refuse_sharding("parameters '" + before.parameter->name + "' and '" + one.parameter->name +
                      "' share memory, and would become separate: register one tensor under both "
                      "names, or give each its own memory (clone()).");
    }
  }
}

void check_precision(const Precision& precision) {
  const auto is_compute_dtype = [](c10::ScalarType dtype) {
    return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  };
  const auto check = [&](const char* name, const std::optional<c10::ScalarType>& dtype) {
    if (dtype && !is_compute_dtype(*dtype)) {
      refuse_sharding(std::string(name) + " is Float, BFloat16 or Half, got " +
                      c10::toString(*dtype) + ".");
    }
  };
  check("param_dtype", precision.param_dtype);
  check("buffer_dtype", precision.buffer_dtype);
  check("output_dtype", precision.output_dtype);
  if (precision.master != Master::Float32 &&
      (precision.full_precision_in_eval || precision.param_dtype == at::kHalf)) {
    refuse_sharding(std::string("Master::") + name_of(precision.master) +
                    " is for parameters in bf16 and has no fp32 masters: " +
                    (precision.full_precision_in_eval
                         ? "nothing is left to evaluate with: leave full_precision_in_eval off"
                         : "instead of param_dtype Half choose "
                           "BFloat16") +
                    " or Master::Float32.");
  }
  if (precision.reduce_dtype != at::kFloat && precision.reduce_dtype != at::kBFloat16) {
    refuse_sharding(std::string("reduce_dtype is Float or BFloat16, got ") +
                    c10::toString(precision.reduce_dtype) + ".");
  }
}

void check_offload(const Precision& precision, const ShardOptions& options) {
  if (!options.offload.optimizer_folder.empty() && precision.full_precision_in_eval) {
    refuse_sharding(
        "masters that are stored on a disk (Offload::optimizer_folder) are not gathered: leave "
        "full_precision_in_eval, or the folder empty.");
  }
  if (options.offload.optimizer_on_host && precision.full_precision_in_eval) {
    refuse_sharding(
        "masters that are stored on the host (Offload::optimizer_on_host) are not gathered: leave "
        "full_precision_in_eval or optimizer_on_host.");
  }
}

void check_offload(const ShardOptions& options, const Mesh& mesh) {
  const c10::Device device = mesh.world().device();
  const Offload& offload = options.offload;
  for (const auto& [is_on_host, name, folder, folder_name] :
       {std::tuple(offload.optimizer_on_host, "optimizer_on_host", &offload.optimizer_folder,
                   "optimizer_folder"),
        std::tuple(offload.gradients_on_host, "gradients_on_host", &offload.gradient_folder,
                   "gradient_folder"),
        std::tuple(offload.parameters_on_host, "parameters_on_host", &offload.parameter_folder,
                   "parameter_folder")}) {
    if (is_on_host && device.is_cpu()) {
      refuse_sharding(std::string("offload to the host (Offload::") + name +
                      ") is for ranks on other devices, and this one computes on the host's CPU: "
                      "leave it, or name a folder on a disk (Offload::" +
                      folder_name + ").");
    }
    if (is_on_host && !folder->empty()) {
      refuse_sharding(std::string("one part is stored on the host (Offload::") + name +
                      ") or on a disk (" + folder_name + "): choose one.");
    }
  }
  if (options.offload.activations_on_host && device.is_cpu()) {
    refuse_sharding(
        "activations on the host (Offload::activations_on_host) are for ranks on other devices, "
        "and this one computes on the host's CPU: leave it, or checkpoint activations "
        "(UnitOptions::checkpoint_activations).");
  }
}

void check_options(const ShardOptions& options, const Mesh& mesh) {
  check_offload(options, mesh);
  check_precision(options.precision);
  if (options.prefetch_depth < 0 || options.prefetch_depth > 8) {
    refuse_sharding("prefetch_depth is 0 to 8, got " + std::to_string(options.prefetch_depth) +
                    ".");
  }
  const int size = options.reshard_after_forward_size;
  const Placements placements = placements_of(options.strategy);
  if (size != 0 && placements.parameters_after_forward != Placement::Shard) {
    refuse_sharding(
        "reshard_after_forward_size " + std::to_string(size) +
        " is for FullShard and HybridShard: the other strategies keep what they gather.");
  }
  if (size != 0 && (size < 0 || mesh.shard_size() % size != 0)) {
    refuse_sharding("reshard_after_forward_size " + std::to_string(size) +
                    " does not divide the shard group of " + std::to_string(mesh.shard_size()) +
                    " ranks.");
  }
}

// What a device has on a disk comes through its host ([Note: Storage of a device]).
ShardOptions with_disks_behind_host(ShardOptions options, c10::DeviceType device) {
  Offload& offload = options.offload;
  for (const auto& [folder, on_host] :
       {std::pair(&offload.optimizer_folder, &offload.optimizer_on_host),
        std::pair(&offload.gradient_folder, &offload.gradients_on_host),
        std::pair(&offload.parameter_folder, &offload.parameters_on_host)}) {
    *on_host = *on_host || (device != c10::DeviceType::CPU && !folder->empty());
  }
  return options;
}

// The mesh whose rows parameters are cut over.
Mesh effective_mesh(const Mesh& mesh, Strategy strategy) {
  const Placements placements = placements_of(strategy);
  if (placements.optimizer == Placement::Replicate) {
    return Mesh::hybrid(mesh.world(), 1);
  }
  if (mesh.dimensions() < placements.mesh_dimensions) {
    refuse_sharding("a hybrid strategy needs a 2-D mesh: Mesh::hybrid(world, ranks_of_a_host).");
  }
  if (mesh.dimensions() > placements.mesh_dimensions) {
    refuse_sharding("the mesh has " + std::to_string(mesh.replicate_size()) + " x " +
                    std::to_string(mesh.shard_size()) +
                    " ranks, and the strategy shards over all of them: choose HybridShard or "
                    "HybridShardGradOp, or Mesh::shard(world).");
  }
  return mesh;
}

UnitSettings settings_of(const UnitModule& unit, const ShardOptions& options, bool is_root) {
  UnitSettings settings;
  settings.precision = unit.options.precision.value_or(options.precision);
  check_precision(settings.precision);
  check_offload(settings.precision, options);
  if (settings.precision.buffer_dtype != options.precision.buffer_dtype &&
      settings.precision.buffer_dtype) {
    refuse_sharding("buffer_dtype of unit '" + unit.name +
                    "' is not the model's: buffers are cast alike, set ShardOptions::precision.");
  }
  if (!is_root && !unit.options.precision) {
    settings.precision.output_dtype.reset();  // the model's holds for what the root returns
  }
  const Placement after_forward = placements_of(options.strategy).parameters_after_forward;
  settings.reshard_after_forward = unit.options.reshard_after_forward.value_or(
      after_forward == Placement::Shard && options.reshard_after_forward_size != 1 && !is_root);
  settings.checkpoint_activations = unit.options.checkpoint_activations;
  return settings;
}

// Checks the units and parameters, and gives each parameter to the smallest unit that contains all
// its uses.
std::vector<UnitPlan> plan_units(ModuleWalk& walk, const ShardOptions& options) {
  for (const UnitModule& unit : walk.units) {
    if (unit.anchor != nullptr && unit.anchor->sharded_unit().state != nullptr) {
      refuse_sharding(
          "unit '" + unit.name +
          "' is sharded already: call fully_shard once, on the outermost module, and use the "
          "handle it returns.");
    }
  }
  std::vector<UnitPlan> plans;
  for (const UnitModule& unit : walk.units) {
    plans.push_back({unit.name,
                     walk.level_of(unit),
                     settings_of(unit, options, /*is_root=*/plans.empty()),
                     {},
                     {}});
  }
  for (ParameterInModule& found : walk.parameters) {
    if (options.ignored && options.ignored(found.name)) {
      continue;
    }
    check_parameter(found.name, found.tensor);
    plans[static_cast<size_t>(walk.common_unit(found.owners))].parameters.push_back(
        {found.name, std::move(found.aliases), found.tensor, found.tensor.scalar_type(),
         found.tensor.requires_grad(), !found.tensor.is_meta()});
  }
  check_memory(plans);
  return plans;
}

}  // namespace

std::shared_ptr<Engine> shard_module(const std::shared_ptr<torch::nn::Module>& module,
                                     const Mesh& mesh, const ShardOptions& given,
                                     const StorageFactory* factory) {
  const ShardOptions options = with_disks_behind_host(given, mesh.world().device_type());
  std::optional<ModuleWalk> walk;
  std::vector<UnitPlan> plans;
  std::optional<Mesh> rows;
  World world = mesh.world();
  on_all_ranks(world, "the model cannot be sharded", [&] {
    check_options(given, mesh);
    walk.emplace(*module, options.units);
    plans = plan_units(*walk, options);
    rows = effective_mesh(mesh, options.strategy);
  });
  std::vector<ModelBuffer> buffers = own_work([&] {
    return take_over_buffers(walk->buffers, mesh.world().device(), options.precision.buffer_dtype);
  });
  for (UnitPlan& plan : plans) {
    for (const ModelBuffer& buffer : buffers) {
      if (buffer.is_inside(plan.name)) {
        plan.buffers.push_back(buffer.tensor);
      }
    }
  }
  const auto engine = own_work([&] {
    return std::make_shared<Engine>(*rows, options, std::move(plans), std::move(buffers), factory);
  });
  engine->model.late_parameter = [walk, options, weak = std::weak_ptr(module)]() -> std::string {
    const auto held = weak.lock();
    return held == nullptr ? "" : walk->unknown_parameter(*held, options);
  };
  for (size_t i = 0; i < walk->units.size(); ++i) {
    const ShardedUnit unit{std::shared_ptr<Step>(engine, &engine->step),
                           engine->model.units[i].get()};
    install_parameter_hooks(unit);
    if (UnitAnchor* const anchor = walk->units[i].anchor; anchor != nullptr) {
      anchor->set_sharded_unit(unit);
    }
  }
  return engine;
}

}  // namespace detail

}  // namespace sherd
