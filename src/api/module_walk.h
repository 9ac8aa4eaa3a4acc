#pragma once
// Which unit each parameter of a module belongs to.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "sherd/options.h"
#include "sherd/unit.h"

namespace sherd::detail {

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
  /// Throws Error(Usage) where the policy chooses a module that cannot be a unit.
  ModuleWalk(torch::nn::Module& root, const UnitPolicy& policy);

  /// The first is the root.
  [[nodiscard]] const std::vector<UnitModule>& units() const { return units_; }
  [[nodiscard]] std::vector<ParameterInModule>& parameters() { return parameters_; }
  [[nodiscard]] const std::vector<std::pair<std::string, at::Tensor>>& buffers() const {
    return buffers_;
  }
  /// How many units it lies in.
  [[nodiscard]] int level_of(const UnitModule& unit) const;
  /// The smallest unit that contains all of them.
  [[nodiscard]] int common_unit(const std::vector<int>& owners) const;

 private:
  void visit(torch::nn::Module& module, const std::string& prefix, int unit);
  int unit_of_child(torch::nn::Module& child, const std::string& name, int unit);
  int unit_of(UnitAnchor* anchor, const std::string& name, int parent, const UnitOptions& options);
  void add_parameter(const std::string& name, const at::Tensor& tensor, int unit);
  [[nodiscard]] std::vector<int> path_to_root(int unit) const;

  UnitPolicy policy_;
  std::vector<UnitModule> units_;
  std::vector<ParameterInModule> parameters_;
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
  std::map<const UnitAnchor*, int> seen_units_;
  std::map<const c10::TensorImpl*, size_t> seen_parameters_;
};

}  // namespace sherd::detail
