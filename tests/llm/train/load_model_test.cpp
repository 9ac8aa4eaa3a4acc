#include "llm/train/load_model.h"

#include <map>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "llm/io/hf_config.h"
#include "tests/support/ranks.h"

namespace llm::train {
namespace {

using Parameters = std::map<std::string, at::Tensor>;  // whole

Parameters random_parameters(const std::string& folder, int ranks, std::uint64_t seed) {
  Parameters whole;
  std::mutex mutex;
  sherd::test::run_ranks(ranks, [&](sherd::World world) {
    const auto config = io::read_model_folder_config(SHERD_TEST_SOURCE_DIR + folder);
    auto model = random_sharded(config, sherd::Mesh::shard(world), {}, seed);
    const std::lock_guard lock(mutex);
    for (const auto& shard : model.parameter_shards()) {
      at::Tensor& all = whole[shard.name];
      if (!all.defined()) {
        all = at::empty(shard.shape, at::kFloat);
      }
      all.flatten().narrow(0, shard.begin, shard.end - shard.begin).copy_(shard.value);
    }
  });
  return whole;
}

TEST(RandomSharded, IsNormalForMatricesZeroForBiasesAndOneForNorms) {
  const Parameters whole = random_parameters("/recipes/models/small-bloom", 2, 3);
  EXPECT_EQ(whole.size(), 4 * 12 + 5);
  for (const auto& [name, value] : whole) {
    if (value.dim() > 1) {
      EXPECT_NEAR(value.std().item<double>(), 0.02, 1e-3) << name;
      EXPECT_NEAR(value.mean().item<double>(), 0, 1e-3) << name;
    } else {
      EXPECT_TRUE(value.eq(name.ends_with("bias") ? 0 : 1).all().item<bool>()) << name;
    }
  }
}

TEST(RandomSharded, HasTheSameBitsOnAnyWorldSize) {
  for (const char* folder : {"/recipes/models/small-bloom", "/tests/data/tiny-llama3-hf"}) {
    const Parameters one = random_parameters(folder, 1, 3), three = random_parameters(folder, 3, 3);
    const Parameters other = random_parameters(folder, 1, 4);
    for (const auto& [name, value] : one) {
      EXPECT_TRUE(value.equal(three.at(name))) << name;
      EXPECT_EQ(value.equal(other.at(name)), value.dim() == 1) << name;
    }
  }
}

}  // namespace
}  // namespace llm::train
