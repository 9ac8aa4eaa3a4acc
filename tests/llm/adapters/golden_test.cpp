// Adapters against what PEFT computed with them.

#include "llm/check/golden.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "llm/adapters/chosen_modules.h"
#include "llm/adapters/merge.h"
#include "llm/adapters/peft_weights.h"
#include "llm/model/token_batch.h"
#include "llm/setup/batch_tensors.h"
#include "llm/setup/load_model.h"
#include "sherd/optim.h"
#include "sherd/safetensors.h"
#include "tests/llm/adapters/adapter_cases.h"
#include "tests/support/ranks.h"

namespace llm::adapters {
namespace {

using sherd::SafetensorsFile;

at::Tensor tensor_of(const SafetensorsFile& file, const std::string& name) {
  const auto* entry = file.find(name);
  EXPECT_NE(entry, nullptr) << name;
  return entry == nullptr ? at::Tensor() : file.read(*entry);
}

SafetensorsFile golden_of(const std::string& name) {
  return SafetensorsFile(test::folder_of(name) + "/golden.safetensors");
}

class Golden : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Adapters, Golden, testing::ValuesIn(test::kCases));

TEST_P(Golden, ComputesAndLearnsWhatPeftDid) {
  SHERD_NEEDS_EXTRA_DATA("lora");
  const config::RunConfig run = test::run_of(GetParam());
  for (const auto& [ranks, checkpoints] :
       {std::pair(1, false), {2, false}, {3, false}, {2, true}}) {
    const check::GoldenDifferences found =
        check::compare_with_golden(run.model.path, run.adapter.path + "/golden.safetensors", ranks,
                                   {}, c10::DeviceType::CPU, checkpoints, run.adapter.path);
    const std::string where = std::to_string(ranks) + " ranks, checkpoints " +
                              std::to_string(static_cast<int>(checkpoints));
    EXPECT_LE(found.loss, 1e-6) << where;
    EXPECT_LE(found.gradient, 1e-4) << where << " " << found.worst_gradient;
    EXPECT_LE(found.losses, 1e-6) << where;
    EXPECT_LE(found.gradient_norms, 1e-5) << where;
    EXPECT_GT(found.losses + found.gradient, 0) << where << ": nothing was compared";
  }
}

TEST_P(Golden, MergesToTheWeightsOfPeft) {
  SHERD_NEEDS_EXTRA_DATA("lora");
  const config::RunConfig config = test::run_of(GetParam());
  const model::CausalLm module = test::module_of(config.model.path);
  const sherd::SafetensorsFolder base(config.model.path);
  const SafetensorsFile adapter(config.adapter.path + "/adapter_model.safetensors");
  const SafetensorsFile golden = golden_of(GetParam());
  std::size_t compared = 0;
  for (const AdaptedModule& each : choose_modules(*module, config.adapter).adapted) {
    const std::string weight = each.name + ".weight";
    if (!golden.contains("merged." + weight)) {
      continue;
    }
    const auto read = [&](const std::string& part) {
      return tensor_of(adapter, peft_name(each.name + part)).to(at::kFloat);
    };
    const auto place = base.find(weight);
    ASSERT_TRUE(place) << weight;
    const at::Tensor merged =
        merged_weight(place->file->read(*place->entry).to(at::kFloat), read(".lora_A.weight"),
                      read(".lora_B.weight"), each.shape.scale(), has_transposed_weights(*module));
    const at::Tensor expected = tensor_of(golden, "merged." + weight);
    ASSERT_EQ(merged.sizes(), expected.sizes()) << weight;
    EXPECT_LE((merged - expected).abs().max().item<double>(), 2e-7) << weight;
    ++compared;
  }
  const bool is_fresh = std::string(GetParam()).ends_with("-fresh");
  EXPECT_EQ(compared == 0, is_fresh);
}

// The loss of a golden's batch, of rows of this rank.
double loss_of(sherd::Sharded<model::CausalLm>& model, const SafetensorsFile& golden) {
  const c10::AutoGradMode no_gradient(false);
  const auto rows = [&](const char* name) {
    const at::Tensor all = tensor_of(golden, name).to(at::kLong);
    return all.slice(0, model.world().rank(), all.size(0), model.world().size());
  };
  return setup::loss_sum(model, model::without_padding(rows("input_ids"), rows("labels"),
                                                       rows("attention_mask")))
      .item<double>();
}

// B is 0: the model computes what its base does, bit by bit.
TEST(FreshAdapter, HasTheBitsOfItsBase) {
  SHERD_NEEDS_EXTRA_DATA("lora");
  for (const char* name : {"llama-fresh", "gemma3-fresh"}) {
    for (const bool from_folder : {true, false}) {
      config::RunConfig config = test::run_of(name);
      config.adapter.path = from_folder ? config.adapter.path : "";
      config::RunConfig base = config;
      base.adapter = {};
      sherd::test::run_ranks(2, [&](sherd::World world) {
        const SafetensorsFile golden = golden_of(name);
        auto adapted = setup::load_model(config, setup::model_shape(config), world);
        auto plain = setup::load_model(base, setup::model_shape(base), world);
        const double loss = loss_of(adapted, golden);
        EXPECT_GT(loss, 0);
        EXPECT_EQ(loss, loss_of(plain, golden)) << name << from_folder;
      });
    }
  }
}

// 50 steps leave the base as its file has it.
TEST(Adapter, LeavesTheBitsOfItsBase) {
  SHERD_NEEDS_EXTRA_DATA("lora");
  const config::RunConfig config = test::run_of("gpt2-conv1d");
  const sherd::SafetensorsFolder base(config.model.path);
  sherd::test::run_ranks(2, [&](sherd::World world) {
    const SafetensorsFile golden = golden_of("gpt2-conv1d");
    auto model = setup::load_model(config, setup::model_shape(config), world);
    const auto tokens = model::without_padding(tensor_of(golden, "input_ids"),
                                               tensor_of(golden, "labels").to(at::kLong),
                                               tensor_of(golden, "attention_mask").to(at::kLong));
    sherd::AdamW optimizer(model, {.lr = 1e-2});
    double first = 0, last = 0;
    for (int step = 0; step < 50; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = setup::loss_sum(model, tokens);
      loss.backward();
      optimizer.step();
      last = loss.item<double>();
      first = step == 0 ? last : first;
    }
    EXPECT_LT(last, 0.9 * first);
    int compared = 0;
    for (const auto& shard : model.parameter_shards()) {
      if (!shard.trainable) {
        const auto place = base.find(shard.name);
        ASSERT_TRUE(place) << shard.name;
        EXPECT_TRUE(shard.value.equal(
            place->file->read(*place->entry).flatten().slice(0, shard.begin, shard.end)))
            << shard.name;
        ++compared;
      }
    }
    EXPECT_GT(compared, 10);
  });
}

// First values are a function of seed and names.
TEST(FreshAdapter, HasTheSameBitsOnAnyWorldSize) {
  const auto values_of = [](int ranks, std::int64_t seed) {
    config::RunConfig config;
    config.model.path = test::kStories;
    config.train.seed = seed;
    config.adapter = test::lora({.names = {"q_proj", "down_proj"}});
    const setup::ModelShape shape = setup::model_shape(config);
    std::map<std::string, std::vector<float>> values;
    std::mutex mutex;
    sherd::test::run_ranks(ranks, [&](sherd::World world) {
      auto model = setup::load_model(config, shape, world);
      const std::lock_guard lock(mutex);
      for (const auto& shard : model.parameter_shards()) {
        if (shard.trainable) {
          auto& all = values[shard.name];
          std::int64_t numel = 1;
          for (const std::int64_t size : shard.shape) {
            numel *= size;
          }
          all.resize(static_cast<std::size_t>(numel));
          const at::Tensor mine = shard.value.to(at::kFloat).contiguous();
          std::copy_n(mine.const_data_ptr<float>(), mine.numel(), all.begin() + shard.begin);
        }
      }
    });
    return values;
  };
  const auto one = values_of(1, 3);
  EXPECT_EQ(one.size(), 2U * 2U * 5U);
  EXPECT_EQ(one, values_of(3, 3));
  EXPECT_NE(one, values_of(1, 4));
  for (const auto& [name, all] : one) {
    const auto [least, most] = std::minmax_element(all.begin(), all.end());
    if (name.ends_with(".lora_B.weight")) {
      EXPECT_EQ(*least, 0) << name;
      EXPECT_EQ(*most, 0) << name;
    } else {
      const double bound =
          1 / std::sqrt(name.find("down_proj") != std::string::npos ? 172.0 : 64.0);
      EXPECT_GT(*least, -bound) << name;
      EXPECT_LT(*most, bound) << name;
      EXPECT_GT(*most, 0.8 * bound) << name;
    }
  }
}

}  // namespace
}  // namespace llm::adapters
