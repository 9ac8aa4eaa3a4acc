#include "api/module_walk.h"

#include <algorithm>
#include <optional>

#include "sherd/error.h"

namespace sherd::detail {

namespace {

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

}  // namespace

ModuleWalk::ModuleWalk(torch::nn::Module& root, const UnitPolicy& policy)
    : policy_(policy ? policy : unit_policy::every_unit()) {
  units_.push_back({"root", dynamic_cast<UnitAnchor*>(&root), -1, {}});
  visit(root, "", 0);
}

std::vector<int> ModuleWalk::path_to_root(int unit) const {
  std::vector<int> path;
  for (; unit >= 0; unit = units_[static_cast<size_t>(unit)].parent) {
    path.push_back(unit);
  }
  return path;
}

int ModuleWalk::level_of(const UnitModule& unit) const {
  return unit.parent < 0 ? 0 : static_cast<int>(path_to_root(unit.parent).size());
}

int ModuleWalk::common_unit(const std::vector<int>& owners) const {
  std::vector<int> path = path_to_root(owners.front());
  for (const int owner : owners) {
    const std::vector<int> other = path_to_root(owner);
    std::erase_if(
        path, [&](int unit) { return std::find(other.begin(), other.end(), unit) == other.end(); });
  }
  return path.front();
}

void ModuleWalk::visit(torch::nn::Module& module, const std::string& prefix, int unit) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    add_parameter(joined(prefix, item.key()), item.value(), unit);
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    if (item.value().defined()) {
      buffers_.emplace_back(joined(prefix, item.key()), item.value());
    }
  }
  for (const auto& child : module.named_children()) {
    const std::string name = joined(prefix, child.key());
    visit(*child.value(), name, unit_of_child(*child.value(), name, unit));
  }
}

// The child's own unit, if the policy chooses it; else the one around it.
int ModuleWalk::unit_of_child(torch::nn::Module& child, const std::string& name, int unit) {
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
int ModuleWalk::unit_of(UnitAnchor* anchor, const std::string& name, int parent,
                        const UnitOptions& options) {
  const auto [found, added] = seen_units_.emplace(anchor, static_cast<int>(units_.size()));
  if (added) {
    units_.push_back({name, anchor, parent, options});
  } else {
    int& known = units_[static_cast<size_t>(found->second)].parent;
    known = common_unit({known, parent});
  }
  return found->second;
}

void ModuleWalk::add_parameter(const std::string& name, const at::Tensor& tensor, int unit) {
  const auto [found, added] =
      seen_parameters_.emplace(tensor.unsafeGetTensorImpl(), parameters_.size());
  if (added) {
    parameters_.push_back({name, tensor, {unit}, {}});
  } else {
    parameters_[found->second].owners.push_back(unit);
    parameters_[found->second].aliases.push_back(name);
  }
}

}  // namespace sherd::detail
