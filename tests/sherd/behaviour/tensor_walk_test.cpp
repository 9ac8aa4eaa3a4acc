// What a unit may be called with and return: structs, containers, references; and modules that were
// written without Sherd.

#include <array>
#include <map>
#include <unordered_map>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>

#include "sherd/unit.h"
#include "tests/support/compare_with_plain.h"
#include "tests/support/odd_nets.h"

namespace sherd::test {

/// As a library would have it, which cannot be changed.
struct ForeignPair {
  at::Tensor left;
  at::Tensor right;
  int label = 0;
};

}  // namespace sherd::test

namespace sherd {

template <>
struct TensorWalk<test::ForeignPair> : std::true_type {
  static void collect(test::ForeignPair& value, TensorList& out) {
    collect_tensors(value.left, out);
    collect_tensors(value.right, out);
  }
};

}  // namespace sherd

namespace sherd::test {
namespace {

struct Input {
  at::Tensor x;
  std::optional<at::Tensor> residual;
  int number = 0;
  auto tensors() { return std::tie(x, residual); }
};

struct Output {
  at::Tensor hidden;
  std::map<std::string, at::Tensor> extra;
  std::array<at::Tensor, 2> both;
  auto tensors() { return std::tie(hidden, extra, both); }
};

/// Takes and returns structs.
struct StructsImpl : torch::nn::Module {
  StructsImpl() : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  Output forward(Input input) {
    const at::Tensor y = linear(input.x);
    const at::Tensor z = input.residual ? y + linear(*input.residual) : y;
    return {y, {{"double", 2 * z}, {"number", z * input.number}}, {y.tanh(), z.sigmoid()}};
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Structs);

/// A promise that a unit does not keep, and a reference. (One that is written:
/// library_user_test.cpp.)
struct ReferencesImpl : torch::nn::Module {
  ReferencesImpl() : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(std::vector<at::Tensor>& values) noexcept {
    return linear(values[0]) + values[1];
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(References);

struct PairsImpl : torch::nn::Module {
  PairsImpl() : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  std::unordered_map<std::string, ForeignPair> forward(const ForeignPair& pair) const noexcept {
    auto layer = linear;
    return {{"a", {layer(pair.left), pair.right, pair.label}},
            {"b", {layer(pair.right), layer(pair.left), 0}}};
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Pairs);

struct StructNetImpl : torch::nn::Module {
  StructNetImpl()
      : structs(register_module("structs", Unit<Structs>())),
        references(register_module("references", Unit<References>())),
        pairs(register_module("pairs", Unit<Pairs>())) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor wide = x.to(at::kFloat);  // what a unit is called with it casts
    Output first = structs(Input{x, wide.tanh(), 3});
    first = structs(Input{first.both[1], std::nullopt, 1});
    std::vector<at::Tensor> values = {first.hidden, first.extra.at("double")};
    const at::Tensor sum = references(values) + first.both[0] + first.extra.at("number");
    auto found = pairs(ForeignPair{sum, wide, 5});
    return found.at("a").left * found.at("b").left + found.at("b").right * found.at("a").label;
  }
  Unit<Structs> structs;
  Unit<References> references;
  Unit<Pairs> pairs;
};
TORCH_MODULE(StructNet);

TEST(TensorWalk, FindsTensorsInStructsAndContainers) {
  expect_equals_plain(builder<StructNet>(), kSquares);
}

TEST(TensorWalk, FindsThemWhenActivationsAreComputedAgain) {
  expect_equals_plain(builder<StructNet>(), kSquares,
                      {.units = unit_policy::every_unit({.checkpoint_activations = true})});
}

TEST(TensorWalk, CastsWhatItFinds) {
  auto model =
      fully_shard(builder<StructNet>()(), alone(), {.precision = {.param_dtype = at::kBFloat16}});
  EXPECT_EQ(model(odd_input(0)).scalar_type(), at::kBFloat16);
}

TEST(TensorWalk, KeepsTheOrderOfKeys) {
  std::unordered_map<std::string, at::Tensor> values;
  for (const char* key : {"c", "a", "d", "b"}) {
    values[key] = at::Tensor();
  }
  TensorList found;
  collect_tensors(values, found);
  EXPECT_EQ(found, (TensorList{&values["a"], &values["b"], &values["c"], &values["d"]}));
  static_assert(!CarriesTensors<std::vector<bool>> && !CarriesTensors<std::map<int, std::string>>);
  static_assert(CarriesTensors<std::pair<int, std::vector<ForeignPair>>>);
}

/// Layers of LibTorch as units: the loop over them is ours, since LibTorch's own container calls
/// them by their static type and passes the unit by.
struct EncoderImpl : torch::nn::Module {
  EncoderImpl() {
    for (int i = 0; i < 2; ++i) {
      const auto options =
          torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(11).dropout(0.0);
      layers.push_back(register_module("layer" + std::to_string(i),
                                       Unit<torch::nn::TransformerEncoderLayer>(options)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (auto& layer : layers) {
      y = layer(y);
    }
    return y;
  }
  std::vector<Unit<torch::nn::TransformerEncoderLayer>> layers;
};
TORCH_MODULE(Encoder);

// One backward, not training: the gradient of an attention's key bias is zero but for rounding,
// which AdamW would make as large as any other.
TEST(TensorWalk, LayersOfLibTorchAreUnits) {
  const at::Tensor x = odd_input(1).narrow(1, 0, 4).repeat({2, 2}).view({3, 2, 8});
  auto plain = builder<Encoder>()();
  loss_of(plain->forward(x)).backward();
  const auto expected = plain->named_parameters();
  run_ranks(2, [&](World world) {
    auto model = fully_shard(builder<Encoder>()(), Mesh::shard(world));
    loss_of(model(x)).backward();
    for (const ParameterShard& shard : model.parameter_shards()) {
      ASSERT_TRUE(shard.gradient.defined()) << shard.name;
      check_part(shard, shard.gradient, expected[shard.name].grad(), "the gradient", 0);
    }
  });
}

}  // namespace
}  // namespace sherd::test
