// fully_shard(): from a module and options to a plan of units, and to the engine.

#include "sherd/fully_shard.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "api/module_walk.h"
#include "rendezvous/agree.h"
#include "sherd/error.h"
#include "step/autograd_hooks.h"
#include "step/step.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ExitCode::Usage, "[fully_shard] parameter '" + name + "' " + what);
}

void check_parameter(const std::string& name, const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    refuse(name, "is a scalar, which cannot be sharded: give it shape [1].");
  }
  if (tensor.numel() == 0) {
    refuse(name, "has no elements: leave it out of the model.");
  }
  if (is_sharded(tensor)) {
    refuse(name,
           "is sharded already: call fully_shard once, on the outermost module, and use the handle "
           "it returns.");
  }
  if (!tensor.is_contiguous()) {
    refuse(name, "is not contiguous: register parameter.contiguous() instead.");
  }
  const auto dtype = tensor.scalar_type();
  // LibTorch lets no tensor of integers require a gradient.
  constexpr std::array kDtypes = {at::kFloat, at::kBFloat16, at::kByte, at::kChar,
                                  at::kShort, at::kInt,      at::kLong};
  if (std::ranges::find(kDtypes, dtype) == kDtypes.end()) {
    refuse(name,
           std::string("is ") + c10::toString(dtype) +
               "; supported are Float and BFloat16, and Byte, Char, Short, Int and Long, which "
               "are frozen.");
  }
  if (!tensor.is_meta() && !tensor.is_cpu()) {
    refuse(name, "is on " + tensor.device().str() + ": build the model on the CPU or on meta.");
  }
}

[[noreturn]] void refuse_option(const std::string& what) {
  throw Error(ExitCode::Usage, "[fully_shard] " + what);
}

void check_precision(const Precision& precision) {
  const auto is_compute_dtype = [](c10::ScalarType dtype) {
    return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  };
  const auto check = [&](const char* name, const std::optional<c10::ScalarType>& dtype) {
    if (dtype && !is_compute_dtype(*dtype)) {
      refuse_option(std::string(name) + " is Float, BFloat16 or Half, got " +
                    c10::toString(*dtype) + ".");
    }
  };
  check("param_dtype", precision.param_dtype);
  check("buffer_dtype", precision.buffer_dtype);
  check("output_dtype", precision.output_dtype);
  if (precision.master != Master::Float32 &&
      (precision.full_precision_in_eval || precision.param_dtype == at::kHalf)) {
    refuse_option(std::string("Master::") + name_of(precision.master) +
                  " is for parameters in bf16 and has no fp32 masters: " +
                  (precision.full_precision_in_eval
                       ? "nothing is left to evaluate with: leave full_precision_in_eval off"
                       : "instead of param_dtype Half choose "
                         "BFloat16") +
                  " or Master::Float32.");
  }
  if (precision.reduce_dtype != at::kFloat && precision.reduce_dtype != at::kBFloat16) {
    refuse_option(std::string("reduce_dtype is Float or BFloat16, got ") +
                  c10::toString(precision.reduce_dtype) + ".");
  }
}

void check_offload(const Precision& precision, const ShardOptions& options) {
  if (!options.offload.optimizer_folder.empty() && precision.full_precision_in_eval) {
    refuse_option(
        "masters that are stored on a disk (Offload::optimizer_folder) are not gathered: leave "
        "full_precision_in_eval, or the folder empty.");
  }
  if (options.offload.optimizer_on_host && precision.full_precision_in_eval) {
    refuse_option(
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
      refuse_option(std::string("offload to the host (Offload::") + name +
                    ") is for ranks on other devices, and this one computes on the host's CPU: "
                    "leave it, or name a folder on a disk (Offload::" +
                    folder_name + ").");
    }
    if (is_on_host && !folder->empty()) {
      refuse_option(std::string("one part is stored on the host (Offload::") + name +
                    ") or on a disk (" + folder_name + "): choose one.");
    }
  }
  if (options.offload.activations_on_host && device.is_cpu()) {
    refuse_option(
        "activations on the host (Offload::activations_on_host) are for ranks on other devices, "
        "and this one computes on the host's CPU: leave it, or checkpoint activations "
        "(UnitOptions::checkpoint_activations).");
  }
}

void check_options(const ShardOptions& options, const Mesh& mesh) {
  check_offload(options, mesh);
  check_precision(options.precision);
  if (options.prefetch_depth < 0 || options.prefetch_depth > 8) {
    refuse_option("prefetch_depth is 0 to 8, got " + std::to_string(options.prefetch_depth) + ".");
  }
  const int size = options.reshard_after_forward_size;
  if (size != 0 && options.strategy != Strategy::FullShard &&
      options.strategy != Strategy::HybridShard) {
    refuse_option("reshard_after_forward_size " + std::to_string(size) +
                  " is for FullShard and HybridShard: the other strategies keep what they gather.");
  }
  if (size != 0 && (size < 0 || mesh.shard_size() % size != 0)) {
    refuse_option("reshard_after_forward_size " + std::to_string(size) +
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

bool is_hybrid(Strategy strategy) {
  return strategy == Strategy::HybridShard || strategy == Strategy::HybridShardGradOp;
}

// The mesh whose rows parameters are cut over.
Mesh effective_mesh(const Mesh& mesh, Strategy strategy) {
  if (strategy == Strategy::NoShard) {
    return Mesh::hybrid(mesh.world(), 1);
  }
  if (is_hybrid(strategy) && mesh.dimensions() != 2) {
    refuse_option("a hybrid strategy needs a 2-D mesh: Mesh::hybrid(world, ranks_of_a_host).");
  }
  if (!is_hybrid(strategy) && mesh.dimensions() != 1) {
    refuse_option("the mesh has " + std::to_string(mesh.replicate_size()) + " x " +
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
    refuse_option("buffer_dtype of unit '" + unit.name +
                  "' is not the model's: buffers are cast alike, set ShardOptions::precision.");
  }
  if (!is_root && !unit.options.precision) {
    settings.precision.output_dtype.reset();  // the model's holds for what the root returns
  }
  const bool zero3 =
      options.strategy == Strategy::FullShard || options.strategy == Strategy::HybridShard;
  settings.reshard_after_forward = unit.options.reshard_after_forward.value_or(
      zero3 && options.reshard_after_forward_size != 1 && !is_root);
  settings.checkpoint_activations = unit.options.checkpoint_activations;
  return settings;
}

std::vector<at::Tensor> buffers_inside(const std::vector<ModelBuffer>& buffers,
                                       const std::string& unit) {
  std::vector<at::Tensor> found;
  for (const ModelBuffer& buffer : buffers) {
    if (buffer.is_inside(unit)) {
      found.push_back(buffer.tensor);
    }
  }
  return found;
}

void check_modules(const ModuleWalk& walk) {
  for (const UnitModule& unit : walk.units()) {
    if (unit.anchor != nullptr && unit.anchor->sharded_unit().state != nullptr) {
      throw Error(ExitCode::Usage,
                  "[fully_shard] unit '" + unit.name +
                      "' is sharded already: call fully_shard once, on the outermost "
                      "module, and use the handle it returns.");
    }
  }
}

// Checks the parameters and gives each to the smallest unit that contains all its uses.
std::vector<UnitPlan> plan_units(ModuleWalk& walk, const ShardOptions& options) {
  std::vector<UnitPlan> plans;
  for (const UnitModule& unit : walk.units()) {
    plans.push_back({unit.name,
                     walk.level_of(unit),
                     settings_of(unit, options, /*is_root=*/plans.empty()),
                     {},
                     {}});
  }
  for (ParameterInModule& found : walk.parameters()) {
    if (options.ignored && options.ignored(found.name)) {
      continue;
    }
    check_parameter(found.name, found.tensor);
    plans[static_cast<size_t>(walk.common_unit(found.owners))].parameters.push_back(
        {found.name, std::move(found.aliases), found.tensor, found.tensor.scalar_type(),
         found.tensor.requires_grad(), !found.tensor.is_meta(), 0, 0});
  }
  return plans;
}

// How a module is to be sharded.
struct ShardingPlan {
  Mesh rows;
  ModuleWalk walk;
  std::vector<UnitPlan> units;
};

ShardingPlan plan_sharding(torch::nn::Module& module, const Mesh& mesh,
                           const ShardOptions& options) {
  ModuleWalk walk(module, options.units);
  check_modules(walk);
  std::vector<UnitPlan> units = plan_units(walk, options);
  return {effective_mesh(mesh, options.strategy), std::move(walk), std::move(units)};
}

}  // namespace

std::shared_ptr<Engine> shard_module(const std::shared_ptr<torch::nn::Module>& module,
                                     const Mesh& mesh, const ShardOptions& given,
                                     const StorageFactory* factory) {
  const ShardOptions options = with_disks_behind_host(given, mesh.world().device_type());
  std::optional<ShardingPlan> planned;
  World world = mesh.world();
  static_cast<void>(agree(world, "the model cannot be sharded", [&]() -> std::string {
    check_options(given, mesh);
    planned = plan_sharding(*module, mesh, options);
    return "";
  }));
  auto& [rows, walk, plans] = *planned;
  std::vector<ModelBuffer> buffers = own_work([&] {
    return take_over_buffers(walk.buffers(), mesh.world().device(), options.precision.buffer_dtype);
  });
  for (UnitPlan& plan : plans) {
    plan.buffers = buffers_inside(buffers, plan.name);
  }
  const auto engine = own_work([&] {
    return std::make_shared<Engine>(rows, options, std::move(plans), std::move(buffers), factory);
  });
  for (size_t i = 0; i < walk.units().size(); ++i) {
    const ShardedUnit unit{std::shared_ptr<Step>(engine, &engine->step),
                           engine->model.units[i].get()};
    install_parameter_hooks(unit);
    if (walk.units()[i].anchor != nullptr) {
      walk.units()[i].anchor->set_sharded_unit(unit);
    }
  }
  return engine;
}

}  // namespace sherd::detail
