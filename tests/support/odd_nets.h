#pragma once
// Models built in uncommon ways, each small enough to be compared with plain LibTorch.

#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "sherd/unit.h"
#include "tests/support/seeded.h"
#include "tests/support/slot_linear.h"

namespace sherd::test {

inline constexpr int64_t kOdd = 7;  // width of all of them

inline at::Tensor odd_input(int64_t number) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(2000 + number));
  return at::randn({3, kOdd}, generator);
}

/// The input of a `Place` (compare_with_plain.h).
inline at::Tensor input_of(const auto& place) {
  return odd_input(place.step * 10 + place.rank);
}

inline at::Tensor loss_of(const at::Tensor& output) {
  return output.to(at::kFloat).square().sum();
}

/// A loss for expect_equals_plain().
inline constexpr auto kSquares = [](auto& model, auto& /*net*/, const auto& place) {
  return loss_of(model(input_of(place)));
};

/// Builds a model, the same each time.
template <class Holder, class... Args>
auto builder(Args... args) {
  return [args...] { return seeded(11, [&] { return Holder(args...); }); };
}

/// Holds a weight that may also be another module's, and uses it twice if `twice`; the second way
/// through the GradSlot.
struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(const at::Tensor& shared, bool twice = false)
      : own(register_module("own", torch::nn::Linear(kOdd, kOdd))),
        weight(register_parameter("weight", shared)),
        again(twice ? register_parameter("again", shared) : at::Tensor()) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = at::tanh(own(at::linear(x, weight)));
    return again.defined() ? y + slot_linear(at::sigmoid(y), again) : y;
  }
  torch::nn::Linear own;
  at::Tensor weight;
  at::Tensor again;
};
TORCH_MODULE(Tied);

/// A weight inside one unit, between two, or between the root and a unit.
struct TiedNetImpl : torch::nn::Module {
  enum class Where { OneUnit, TwoUnits, RootAndUnit };
  explicit TiedNetImpl(Where where) {
    const auto weight = [] { return at::randn({kOdd, kOdd}) / 3; };
    const at::Tensor shared = weight();
    const bool two = where == Where::TwoUnits;
    first = register_module("first", Unit<Tied>(shared, where == Where::OneUnit));
    second = register_module("second", Unit<Tied>(two ? shared : weight()));
    if (where == Where::RootAndUnit) {
      head = register_parameter("head", shared);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = second(first(x));
    return head.defined() ? slot_linear(y, head) : y;
  }
  Unit<Tied> first{nullptr};
  Unit<Tied> second{nullptr};
  at::Tensor head;
};
TORCH_MODULE(TiedNet);

struct LayerImpl : torch::nn::Module {
  LayerImpl() : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x) { return at::tanh(linear(x)); }
  at::Tensor backwards(const at::Tensor& x, double factor) {
    return factor * at::linear(x, linear->weight.t());
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Layer);

/// A module registered in two units, and a unit registered twice.
struct HostImpl : torch::nn::Module {
  explicit HostImpl(const Layer& shared)
      : layer(register_module("layer", shared)),
        own(register_module("own", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x) { return own(layer(x)) + x; }
  Layer layer;
  torch::nn::Linear own;
};
TORCH_MODULE(Host);
struct SharedModulesNetImpl : torch::nn::Module {
  SharedModulesNetImpl() {
    const Layer shared;
    a = register_module("a", Unit<Host>(shared));
    b = register_module("b", Unit<Host>(shared));
    c = register_module("c", Unit<Layer>());
    d = register_module("d", c);
  }
  at::Tensor forward(const at::Tensor& x) { return d(b(c(a(x)))); }
  Unit<Host> a{nullptr};
  Unit<Host> b{nullptr};
  Unit<Layer> c{nullptr};
  Unit<Layer> d{nullptr};
};
TORCH_MODULE(SharedModulesNet);

/// Three units, some of which may be skipped or used twice.
struct StackNetImpl : torch::nn::Module {
  StackNetImpl() {
    for (int i = 0; i < 3; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Unit<Layer>()));
    }
  }
  at::Tensor forward(const at::Tensor& x, const std::vector<size_t>& order = {0, 1, 2}) {
    at::Tensor y = x;
    for (const size_t i : order) {
      y = layers[i](y);
    }
    return y;
  }
  std::vector<Unit<Layer>> layers;
};
TORCH_MODULE(StackNet);

/// A unit with units inside, and parameters of its own around them.
struct OuterImpl : torch::nn::Module {
  OuterImpl()
      : before(register_module("before", torch::nn::Linear(kOdd, kOdd))),
        inner(register_module("inner", Unit<Layer>())),
        other(register_module("other", Unit<Layer>())),
        after(register_module("after", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x) { return after(other(inner(before(x)))) + x; }
  torch::nn::Linear before;
  Unit<Layer> inner;
  Unit<Layer> other;
  torch::nn::Linear after;
};
TORCH_MODULE(Outer);
struct NestedNetImpl : torch::nn::Module {
  NestedNetImpl()
      : a(register_module("a", Unit<Outer>())),
        b(register_module("b", Unit<Outer>())),
        head(register_module("head", torch::nn::Linear(kOdd, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return head(b(a(x))); }
  Unit<Outer> a;
  Unit<Outer> b;
  torch::nn::Linear head;
};
TORCH_MODULE(NestedNet);

/// Takes and returns tensors in containers; the last result needs no gradient.
struct ManyImpl : torch::nn::Module {
  ManyImpl()
      : left(register_module("left", torch::nn::Linear(kOdd, kOdd))),
        right(register_module("right", torch::nn::Linear(kOdd, kOdd))) {}
  std::tuple<at::Tensor, std::vector<at::Tensor>, at::Tensor> forward(
      const at::Tensor& x, const std::optional<at::Tensor>& extra,
      const std::pair<at::Tensor, std::vector<at::Tensor>>& more) {
    at::Tensor y = at::tanh(left(x) + more.first);
    if (extra) {
      y = y + *extra;
    }
    return {y, {right(y), more.second.at(0) * 2}, y.detach().argmax(-1)};
  }
  torch::nn::Linear left;
  torch::nn::Linear right;
};
TORCH_MODULE(Many);
struct ManyNetImpl : torch::nn::Module {
  ManyNetImpl()
      : first(register_module("first", Unit<Layer>())),
        many(register_module("many", Unit<Many>())),
        again(register_module("again", Unit<Many>())) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = first(x);
    auto [a, list, index] = many(y, std::nullopt, std::make_pair(x, std::vector{y}));
    auto [b, rest, unused] = again(list[0], y, std::make_pair(a, list));
    return b + rest[0] + rest[1] + index.unsqueeze(-1);
  }
  Unit<Layer> first;
  Unit<Many> many;
  Unit<Many> again;
};
TORCH_MODULE(ManyNet);

/// Units held by a Sequential, behind an embedding that is a unit without differentiable inputs.
struct SequentialNetImpl : torch::nn::Module {
  SequentialNetImpl()
      : table(register_module("table", Unit<torch::nn::Embedding>(16, kOdd))),
        body(register_module("body", torch::nn::Sequential(Unit<Layer>(), Unit<Layer>()))) {}
  at::Tensor forward(const at::Tensor& ids) { return body->forward(table(ids)); }
  Unit<torch::nn::Embedding> table;
  torch::nn::Sequential body;
};
TORCH_MODULE(SequentialNet);

}  // namespace sherd::test
