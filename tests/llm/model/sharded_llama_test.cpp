// A sharded Llama gives the losses and gradients of the plain one.

#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include "llm/model/llama.h"
#include "sherd/fully_shard.h"
#include "tests/llm/model/small_llama.h"
#include "tests/support/ranks.h"

namespace llm::model {
namespace {

at::Tensor loss_of(CausalLmImpl& model, const at::Tensor& ids, const at::Tensor& labels,
                   const at::Tensor& mask) {
  return model.loss_sum(ids, labels, mask);
}

class ShardedLlama : public testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(RanksAndTying, ShardedLlama,
                         testing::Combine(testing::Values(1, 2, 3), testing::Bool()));

TEST_P(ShardedLlama, HasThePlainModelsLossAndGradients) {
  const auto [ranks, tied] = GetParam();
  const LlamaConfig config = small_config(tied);
  const auto batch = make_batch({17, 5, 11, 8, 2}, config.vocab_size);
  Llama plain = make_llama(config);
  const at::Tensor expected = plain->loss_sum(batch.ids, batch.labels, batch.mask);
  expected.backward();

  std::mutex guard;
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
  for (const auto& parameter : plain->named_parameters()) {
    gradients[parameter.key()] = parameter.value().grad().flatten().clone();
  }
  sherd::test::run_ranks(ranks, [&](sherd::World world) {
    const int rank = world.rank();
    auto model = sherd::fully_shard(make_llama(config), sherd::Mesh::shard(std::move(world)));
    model.set_gradient_divide_factor(1);
    const auto mine = [&](const at::Tensor& all) { return all.slice(0, rank, all.size(0), ranks); };
    const at::Tensor part =
        model.run(loss_of, mine(batch.ids), mine(batch.labels), mine(batch.mask));
    part.backward();
    const std::lock_guard lock(guard);
    loss += part.item<double>();
    for (const auto& shard : model.parameter_shards()) {
      gradients.at(shard.name).slice(0, shard.begin, shard.end).sub_(shard.gradient);
    }
  });
  EXPECT_NEAR(loss, expected.item<double>(), 1e-5 * loss);
  for (const auto& parameter : plain->named_parameters()) {
    EXPECT_LE(gradients[parameter.key()].norm().item<double>(),
              2e-5 * parameter.value().grad().norm().item<double>())
        << parameter.key();
  }
}

TEST(ShardedLlamaDecoding, DecodesAsThePlainOne) {
  const LlamaConfig config = small_config();
  const auto batch = make_batch({6, 3}, config.vocab_size);
  Llama plain = make_llama(config);
  KvCache plain_cache(8);
  const at::Tensor expected = plain->decode(batch.ids, batch.mask, plain_cache);
  sherd::test::run_ranks(2, [&](sherd::World world) {
    auto model = sherd::fully_shard(make_llama(config), sherd::Mesh::shard(std::move(world)));
    KvCache cache(8);
    const auto decode = [&cache](CausalLmImpl& lm, const at::Tensor& ids, const at::Tensor& mask) {
      return lm.decode(ids, mask, cache);
    };
    EXPECT_TRUE(model.run(decode, batch.ids, batch.mask).equal(expected));
    model.world().barrier();  // a thread that leaves takes its shards with it
  });
}

}  // namespace
}  // namespace llm::model
