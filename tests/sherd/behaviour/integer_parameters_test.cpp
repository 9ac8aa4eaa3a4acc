// Frozen parameters of integers: gathered as they are stored, whatever dtype the others travel in.

#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>

#include "sherd/checkpoint.h"
#include "sherd/state_dict.h"
#include "tests/support/compare_with_plain.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/processes.h"
#include "tests/support/temp_folder.h"
#include "tests/support/whole_state.h"

namespace sherd::test {
namespace {

// A map whose weight is bytes, with a gain that is learned.
struct CodedImpl : torch::nn::Module {
  CodedImpl()
      : codes(register_parameter("codes", at::randint(256, {kOdd, kOdd}, at::kByte), false)),
        more(register_parameter("more", at::randint(-9, 9, {13}, at::kShort), false)),
        gain(register_parameter("gain", at::randn({kOdd}))) {}
  at::Tensor forward(const at::Tensor& x) {
    TORCH_CHECK(codes.scalar_type() == at::kByte && more.scalar_type() == at::kShort,
                "integers were cast");
    const at::Tensor weight = (codes.to(x.scalar_type()) - 128) / 256;
    return at::tanh(at::linear(x, weight)) * gain + more.sum().to(x.scalar_type()) / 64;
  }
  at::Tensor codes;
  at::Tensor more;
  at::Tensor gain;
};
TORCH_MODULE(Coded);

struct CodedNetImpl : torch::nn::Module {
  CodedNetImpl()
      : a(register_module("a", Unit<Coded>())),
        b(register_module("b", Unit<Coded>())),
        head(register_module("head", Coded())) {}
  at::Tensor forward(const at::Tensor& x) { return head(b(a(x))); }
  Unit<Coded> a;
  Unit<Coded> b;
  Coded head;
};
TORCH_MODULE(CodedNet);

const auto kBuildCoded = builder<CodedNet>();
const ShardOptions kCodedInBf16{.precision = {.param_dtype = at::kBFloat16}};

WholeState codes_of(const torch::nn::Module& net) {
  WholeState all = states_of(net);
  std::erase_if(all, [](const auto& item) { return item.first.ends_with("gain"); });
  return all;
}

// Throws unless this rank's part of each integer has the bits of `whole`.
void check_codes(const ShardedModule& model, const WholeState& whole) {
  for (const ParameterShard& shard : model.parameter_shards()) {
    if (const auto found = whole.find(shard.name); found != whole.end()) {
      const at::Tensor expected = found->second.narrow(0, shard.begin, shard.end - shard.begin);
      TORCH_CHECK(same_bits(expected, shard.value), shard.name, " differs");
      TORCH_CHECK(!shard.trainable && !shard.gradient.defined(), shard.name, " is trained");
    }
  }
}

template <class Model>
void train_coded(Model& model) {
  AdamW optimizer(model, {.lr = 1e-2});
  for (int step = 0; step < 3; ++step) {
    loss_of(model(odd_input(step))).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

TEST(IntegerParameters, TrainAsTheUnshardedModelDoes) {
  expect_equals_plain(kBuildCoded, kSquares);
  expect_equals_plain(
      kBuildCoded, kSquares,
      {.prefetch_depth = 2, .units = unit_policy::every_unit({.checkpoint_activations = true})});
}

TEST(IntegerParameters, KeepTheirBitsAndDtypeWhateverTravels) {
  const WholeState before = codes_of(*kBuildCoded());
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Strategy strategy : kStrategies) {
      EXPECT_NO_THROW(run_ranks(ranks,
                                [&](World world) {
                                  ShardOptions options = kCodedInBf16;
                                  options.strategy = strategy;
                                  options.debug = true;
                                  auto model = fully_shard(kBuildCoded(), mesh_for(world, strategy),
                                                           options);
                                  check_codes(model, before);
                                  train_coded(model);
                                  check_codes(model, before);
                                }))
          << ranks << " ranks, " << name_of(strategy);
    }
  }
}

TEST(IntegerParameters, AreGatheredOverEveryTransport) {
  const WholeState before = codes_of(*kBuildCoded());
  for (const Transport transport : kTransports) {
    const auto statuses = run_processes(
        2,
        [&](const World& world) {
          auto model = fully_shard(kBuildCoded(), Mesh::shard(world), kCodedInBf16);
          train_coded(model);
          check_codes(model, before);
          for (const auto& item : full_state_dict(model)) {
            const auto found = before.find(item.key());
            TORCH_CHECK(world.rank() != 0 || found == before.end() ||
                            same_bits(item.value().reshape({-1}), found->second),
                        item.key(), " differs");
          }
        },
        std::chrono::seconds(20), c10::DeviceType::CPU, transport);
    EXPECT_EQ(statuses, std::vector<int>({0, 0}));
  }
}

TEST(IntegerParameters, TakeTheirBytesAndNoMore) {
  auto frozen = kBuildCoded();
  for (const at::Tensor& parameter : frozen->parameters()) {
    parameter.requires_grad_(false);
  }
  const auto model = fully_shard(frozen, alone(), kCodedInBf16);
  // Of each unit a segment of bytes (49 of 64), of shorts (13 of 32) and of bf16 (7 of 32).
  EXPECT_EQ(model.memory().total_bytes(), 3 * (64 + 64 + 64));
  EXPECT_EQ(model.memory().bytes(MemoryKind::TravellingShard), model.memory().total_bytes());
}

TEST(IntegerParameters, AreInCheckpointsOfAnyWorld) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  const WholeState before = codes_of(*kBuildCoded());
  run_ranks(3, [&](World world) {
    auto model = fully_shard(kBuildCoded(), Mesh::shard(world), kCodedInBf16);
    save_checkpoint(model, path, "");
  });
  run_ranks(2, [&](World world) {
    auto model =
        fully_shard(seeded(12, [] { return CodedNet(); }), Mesh::shard(world), kCodedInBf16);
    load_checkpoint(model, path);
    check_codes(model, before);
  });
}

TEST(IntegerParameters, AreLoadedAsIntegersAlone) {
  auto model = fully_shard(kBuildCoded(), alone());
  StateDict floats;
  for (const auto& item : full_state_dict(model)) {
    floats.insert(item.key(), item.key() == "a.codes" ? item.value().to(at::kFloat) : item.value());
  }
  expect_error([&] { load_full_state_dict(model, floats); }, ExitCode::BadData,
               {"parameter 'a.codes' is Byte in the model, and Float was given"});
}

TEST(IntegerParameters, RestOnADiskAsOthersDo) {
  const TempFolder folder;
  const WholeState before = codes_of(*kBuildCoded());
  auto resident = fully_shard(kBuildCoded(), alone(), kCodedInBf16);
  ShardOptions options = kCodedInBf16;
  options.offload.parameter_folder = folder.path();
  auto on_disk = fully_shard(kBuildCoded(), alone(), options);
  train_coded(resident);
  train_coded(on_disk);
  check_codes(on_disk, before);
  EXPECT_TRUE(at::equal(resident(odd_input(5)), on_disk(odd_input(5))));
}

TEST(IntegerParameters, CannotBeDrawn) {
  auto model = fully_shard(on_meta([] { return CodedNet(); }), alone());
  expect_error(
      [&] { initialize(model, 1, [](ParameterInit& parameter) { parameter.fill_normal(0, 1); }); },
      ExitCode::Usage, {"parameter 'head.codes' is Byte", "use fill_constant or fill_from"});
}

}  // namespace
}  // namespace sherd::test
