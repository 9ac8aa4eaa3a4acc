// Units in units in units, some of them checkpointed and used more than once, on every mesh: what
// is recomputed for each use is reduced for each, one reduction right after the other.

#include <gtest/gtest.h>

#include "tests/support/compare_with_plain.h"
#include "tests/support/odd_nets.h"

namespace sherd::test {
namespace {

/// A unit that holds one other, and nothing else that is reduced.
struct ShellImpl : torch::nn::Module {
  ShellImpl() : inner(register_module("inner", Unit<Layer>())) {}
  at::Tensor forward(const at::Tensor& x) { return inner(x * 2) + x; }
  Unit<Layer> inner;
};
TORCH_MODULE(Shell);
struct ShellNetImpl : torch::nn::Module {
  ShellNetImpl() : shell(register_module("shell", Unit<Shell>())) {}
  at::Tensor forward(const at::Tensor& x) { return shell(shell(shell(x))); }
  Unit<Shell> shell;
};
TORCH_MODULE(ShellNet);

/// Three levels.
struct DeepImpl : torch::nn::Module {
  DeepImpl()
      : before(register_module("before", torch::nn::Linear(kOdd, kOdd))),
        outer(register_module("outer", Unit<Outer>())),
        layer(register_module("layer", Unit<Layer>())) {}
  at::Tensor forward(const at::Tensor& x) { return layer(outer(before(x))) + x; }
  torch::nn::Linear before;
  Unit<Outer> outer;
  Unit<Layer> layer;
};
TORCH_MODULE(Deep);
struct DeepNetImpl : torch::nn::Module {
  DeepNetImpl()
      : deep(register_module("deep", Unit<Deep>())),
        other(register_module("other", Unit<Outer>())),
        head(register_module("head", torch::nn::Linear(kOdd, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return head(deep(other(deep(x)))); }
  Unit<Deep> deep;
  Unit<Outer> other;
  torch::nn::Linear head;
};
TORCH_MODULE(DeepNet);

UnitPolicy checkpointed_where(const std::function<bool(const std::string&)>& where) {
  return [where](const ModuleInfo& info) {
    return info.is_unit ? std::optional(UnitOptions{.checkpoint_activations = where(info.name)})
                        : std::nullopt;
  };
}

TEST(NestedUnits, ReducedAgainRightAwayEqualPlain) {
  expect_equals_plain(
      builder<ShellNet>(), kSquares,
      {.units = checkpointed_where([](const auto& name) { return name == "shell"; })});
}

TEST(NestedUnits, ThreeLevelsDeepAndUsedTwiceEqualPlain) {
  for (const auto& where : std::vector<std::function<bool(const std::string&)>>{
           [](const std::string&) { return true; },
           [](const std::string& name) { return name == "deep"; },
           [](const std::string& name) { return name.find('.') != std::string::npos; }}) {
    for (const int depth : {0, 2}) {
      expect_equals_plain(builder<DeepNet>(), kSquares,
                          {.prefetch_depth = depth, .units = checkpointed_where(where)});
    }
  }
}

}  // namespace
}  // namespace sherd::test
