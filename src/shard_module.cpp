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
  explicit Walk(torch::nn::Module& root) {
    units.push_back({"root", dynamic_cast<UnitAnchor*>(&root), -1, {}});
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
      auto* anchor = dynamic_cast<UnitAnchor*>(child.value().get());
      visit(*child.value(), name, anchor == nullptr ? unit : unit_of(anchor, name, unit));
    }
  }

  // A unit registered in several places is one unit, in the smallest that contains them all.
  int unit_of(UnitAnchor* anchor, const std::string& name, int parent) {
    const auto [found, added] = seen_units_.emplace(anchor, static_cast<int>(units.size()));
    if (added) {
      units.push_back({name, anchor, parent, {}});
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

void check_options(const ShardOptions& options) {
  const auto& dtype = options.precision.param_dtype;
  if (dtype && *dtype != at::kFloat && *dtype != at::kBFloat16) {
    throw Error(ExitCode::Usage,
                std::string("[fully_shard] param_dtype is Float or BFloat16, got ") +
                    c10::toString(*dtype) + ".");
  }
  if (options.precision.reduce_dtype != at::kFloat) {
    throw Error(ExitCode::Usage, std::string("[fully_shard] reduce_dtype is Float, got ") +
                                     c10::toString(options.precision.reduce_dtype) +
                                     ": gradients are summed in fp32.");
  }
  if (options.prefetch_depth < 0 || options.prefetch_depth > 8) {
    throw Error(ExitCode::Usage, "[fully_shard] prefetch_depth is 0 to 8, got " +
                                     std::to_string(options.prefetch_depth) + ".");
  }
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
  check_options(options);
  Walk walk(*module);
  check_modules(walk);
  for (auto& found : walk.parameters) {
    check_parameter(found.name, found.tensor);
    const int unit = common_unit(walk.units, found.owners);
    walk.units[static_cast<size_t>(unit)].parameters.push_back(
        {found.name, std::move(found.aliases), found.tensor, found.tensor.scalar_type(),
         found.tensor.requires_grad(), !found.tensor.is_meta(), 0, 0});
  }
  auto runtime = std::make_shared<Runtime>(mesh, options);
  for (UnitModule& unit : walk.units) {
    UnitState& state =
        runtime->add_unit(unit.name, level_of(walk.units, unit), std::move(unit.parameters));
    if (unit.anchor != nullptr) {
      unit.anchor->set_unit_state(std::shared_ptr<UnitState>(runtime, &state));
    }
  }
  runtime->attach();
  runtime->buffers() = take_over_buffers(walk.buffers);
  return runtime;
}

}  // namespace sherd::detail
