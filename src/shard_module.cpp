// Which unit each parameter belongs to: the part of fully_shard() that looks at modules.

#include <algorithm>
#include <map>
#include <utility>

#include <torch/nn/module.h>

#include "autograd_seam.h"
#include "runtime.h"
#include "sherd/fully_shard.h"

namespace sherd::detail {

namespace {

struct UnitModule {
  std::string name;
  UnitAnchor* anchor = nullptr;  ///< null: the root, where it is no Unit itself
  int parent = -1;
  UnitOptions options;
  std::vector<UnitParameter> parameters;
};

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::vector<int> path_to_root(const std::vector<UnitModule>& units, int unit) {
  std::vector<int> path;
  for (; unit >= 0; unit = units[static_cast<size_t>(unit)].parent) {
    path.push_back(unit);
  }
  return path;
}

int level_of(const std::vector<UnitModule>& units, const UnitModule& unit) {
  return unit.parent < 0 ? 0 : static_cast<int>(path_to_root(units, unit.parent).size());
}

// The smallest unit that contains all of them.
int common_unit(const std::vector<UnitModule>& units, const std::vector<int>& owners) {
  std::vector<int> path = path_to_root(units, owners.front());
  for (const int owner : owners) {
    const std::vector<int> other = path_to_root(units, owner);
    std::erase_if(
        path, [&](int unit) { return std::find(other.begin(), other.end(), unit) == other.end(); });
  }
  return path.front();
}

// Walks the modules depth first, in registration order, and keeps which units each parameter is in.
// A module registered twice is visited twice: its parameters are tied.
class Walk {
 public:
  Walk(torch::nn::Module& root, const UnitPolicy& policy)
      : policy_(policy ? policy : unit_policy::every_unit()) {
    units.push_back({"root", dynamic_cast<UnitAnchor*>(&root), -1, {}, {}});
    visit(root, "", 0);
  }

  std::vector<UnitModule> units;
  struct Occurrence {
    std::string name;
    at::Tensor tensor;
    std::vector<int> owners;  ///< the unit of each module that registers it
    std::vector<std::string> aliases;
  };
  std::vector<Occurrence> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;

 private:
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

  // The unit that the child is, where the policy chooses it; else the one it lies in.
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
      throw Error(ExitCode::Usage,
                  "[fully_shard] the policy chose module '" + name +
                      "', which no Unit<> holds: declare it as sherd::Unit<Block> in its parent, "
                      "or let the policy look at ModuleInfo::is_unit.");
    }
    return unit_of(anchor, name, unit, *chosen);
  }

  // A unit registered in several places is one unit, in the smallest that contains them all.
  int unit_of(UnitAnchor* anchor, const std::string& name, int parent, const UnitOptions& options) {
    const auto [found, added] = seen_units_.emplace(anchor, static_cast<int>(units.size()));
    if (added) {
      units.push_back({name, anchor, parent, options, {}});
    } else {
      int& known = units[static_cast<size_t>(found->second)].parent;
      known = common_unit(units, {known, parent});
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

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ExitCode::Usage, "[fully_shard] parameter '" + name + "' " + what);
}

void check_parameter(const std::string& name, const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    refuse(name, "is a scalar, which cannot be cut into pieces: give it shape [1].");
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
  if (dtype != at::kFloat && dtype != at::kBFloat16) {
    refuse(name, std::string("is ") + c10::toString(dtype) + "; sharded are Float and BFloat16.");
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
  if (precision.reduce_dtype != at::kFloat) {
    refuse_option(std::string("reduce_dtype is Float, got ") +
                  c10::toString(precision.reduce_dtype) + ": gradients are summed in fp32.");
  }
}

void check_options(const ShardOptions& options, const Mesh& mesh) {
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
  if (settings.precision.buffer_dtype != options.precision.buffer_dtype &&
      settings.precision.buffer_dtype) {
    refuse_option("buffer_dtype of unit '" + unit.name +
                  "' is not the model's: buffers are cast alike, set ShardOptions::precision.");
  }
  if (!is_root && !unit.options.precision) {
    settings.precision.output_dtype.reset();  // the model's is for what leaves the model
  }
  const bool zero3 =
      options.strategy == Strategy::FullShard || options.strategy == Strategy::HybridShard;
  settings.reshard_after_forward = unit.options.reshard_after_forward.value_or(
      zero3 && options.reshard_after_forward_size != 1 && !is_root);
  settings.checkpoint_activations = unit.options.checkpoint_activations;
  return settings;
}

std::vector<at::Tensor> buffers_inside(Runtime& runtime, const std::string& unit) {
  std::vector<at::Tensor> found;
  for (const ModelBuffer& buffer : runtime.buffers()) {
    if (buffer.is_inside(unit)) {
      found.push_back(buffer.tensor);
    }
  }
  return found;
}

void check_modules(const Walk& walk) {
  for (const UnitModule& unit : walk.units) {
    if (unit.anchor != nullptr && unit.anchor->unit_state() != nullptr) {
      throw Error(ExitCode::Usage,
                  "[fully_shard] unit '" + unit.name +
                      "' is sharded already: call fully_shard once, on the outermost "
                      "module, and use the handle it returns.");
    }
  }
}

}  // namespace

std::shared_ptr<Runtime> shard_module(const std::shared_ptr<torch::nn::Module>& module,
                                      const Mesh& mesh, const ShardOptions& options) {
  check_options(options, mesh);
  const Mesh rows = effective_mesh(mesh, options.strategy);
  Walk walk(*module, options.units);
  check_modules(walk);
  for (auto& found : walk.parameters) {
    if (options.ignored && options.ignored(found.name)) {
      continue;
    }
    check_parameter(found.name, found.tensor);
    const int unit = common_unit(walk.units, found.owners);
    walk.units[static_cast<size_t>(unit)].parameters.push_back(
        {found.name, std::move(found.aliases), found.tensor, found.tensor.scalar_type(),
         found.tensor.requires_grad(), !found.tensor.is_meta(), 0, 0});
  }
  auto runtime = std::make_shared<Runtime>(rows, options);
  runtime->buffers() =
      take_over_buffers(walk.buffers, mesh.world().device(), options.precision.buffer_dtype);
  for (UnitModule& unit : walk.units) {
    UnitSettings settings = settings_of(unit, options, &unit == &walk.units.front());
    UnitState& state = runtime->add_unit(unit.name, level_of(walk.units, unit), std::move(settings),
                                         std::move(unit.parameters));
    state.set_buffers(buffers_inside(*runtime, unit.name));
    if (unit.anchor != nullptr) {
      unit.anchor->set_unit_state(std::shared_ptr<UnitState>(runtime, &state));
    }
  }
  runtime->attach();
  return runtime;
}

}  // namespace sherd::detail
