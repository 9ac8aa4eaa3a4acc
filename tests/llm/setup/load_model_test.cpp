#include "llm/setup/load_model.h"

#include <map>
#include <mutex>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "llm/io/hf_config.h"
#include "llm/plan/device.h"
#include "tests/support/ranks.h"

namespace llm::setup {
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

TEST(LossChunk, IsTheMostRowsOfLogitsThatFit) {
  constexpr std::int64_t kBloomRow = 2 * 250'880;
  const auto rows = [](const char* device, const LossChunk& asked, std::int64_t row_bytes) {
    return loss_chunk_tokens(asked, row_bytes, plan::device_of_name(device).memory_bytes);
  };
  EXPECT_EQ(rows("cpu", {}, kBloomRow), 512);
  EXPECT_EQ(rows("h200-141g", {}, kBloomRow), 8192);  // no more, whatever fits
  EXPECT_EQ(rows("h100-80g", {}, kBloomRow), (std::int64_t{81'559} << 20) / 32 / kBloomRow);
  EXPECT_EQ(rows("h200-141g", {.bytes = 1000 * kBloomRow + 1}, kBloomRow), 1000);
  EXPECT_EQ(rows("cpu", {.bytes = 1000 * kBloomRow}, kBloomRow), 1000);
  EXPECT_EQ(rows("cpu", {.bytes = 1}, kBloomRow), 1);
  EXPECT_EQ(rows("h200-141g", {.tokens = 64, .bytes = 1000 * kBloomRow}, kBloomRow), 64);
}

}  // namespace
}  // namespace llm::setup
