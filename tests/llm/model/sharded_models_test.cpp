// A sharded model gives the losses, gradients and scores of the plain one.

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include "ops/plain/plain_backend.h"
#include "ops/with_backend.h"
#include "sherd/fully_shard.h"
#include "tests/llm/model/small_bloom.h"
#include "tests/llm/model/small_llama.h"
#include "tests/support/ranks.h"

namespace llm::model {
namespace {

at::Tensor loss_of(CausalLmImpl& model, const at::Tensor& ids, const at::Tensor& labels,
                   const sherd::ops::Documents& documents) {
  return model.loss_sum(ids, labels, documents);
}

// Documents `first`, `first` + n, …
TokenBatch every_nth(const TokenBatch& batch, int64_t first, int64_t n) {
  std::vector<at::Tensor> ids, labels;
  std::vector<int64_t> lengths;
  for (int64_t d = first; d < batch.documents.count(); d += n) {
    const TokenBatch one = document_of(batch, d);
    ids.push_back(one.ids_T);
    labels.push_back(one.labels_T);
    lengths.push_back(batch.documents.length(d));
  }
  return {at::cat(ids), at::cat(labels), sherd::ops::Documents::of_lengths(lengths)};
}

template <class Build>
void expect_plain_loss_and_gradients(int ranks, const Build& build) {
  const auto batch = make_batch({17, 5, 11, 8, 2}, kVocabulary);
  auto plain = build();
  const at::Tensor expected = plain->loss_sum(batch.ids_T, batch.labels_T, batch.documents);
  expected.backward();

  std::mutex guard;
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
  for (const auto& parameter : plain->named_parameters()) {
    gradients[parameter.key()] = parameter.value().grad().flatten().clone();
  }
  sherd::test::run_ranks(ranks, [&](sherd::World world) {
    const int rank = world.rank();
    auto model = sherd::fully_shard(build(), sherd::Mesh::shard(std::move(world)));
    model.set_gradient_divide_factor(1);
    const TokenBatch mine = every_nth(batch, rank, ranks);
    const at::Tensor part = model.run(loss_of, mine.ids_T, mine.labels_T, mine.documents);
    part.backward();
    const std::lock_guard lock(guard);
    loss += part.item<double>();
    for (const auto& shard : model.parameter_shards()) {
      gradients.at(shard.name).slice(0, shard.begin, shard.end).sub_(shard.gradient);
    }
  });
  EXPECT_NEAR(loss, expected.item<double>(), 1e-5 * loss);
  const torch::OrderedDict<std::string, at::Tensor> parameters = plain->named_parameters();
  for (const auto& parameter : parameters) {
    EXPECT_LE(gradients[parameter.key()].norm().item<double>(),
              2e-5 * parameter.value().grad().norm().item<double>())
        << parameter.key();
  }
}

class ShardedModels : public testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(RanksAndTying, ShardedModels,
                         testing::Combine(testing::Values(1, 2, 3), testing::Bool()));

TEST_P(ShardedModels, LlamaHasThePlainModelsLossAndGradients) {
  const auto [ranks, tied] = GetParam();
  expect_plain_loss_and_gradients(
      ranks, [config = small_llama_config(tied)] { return make_llama(config); });
}

TEST_P(ShardedModels, BloomHasThePlainModelsLossAndGradients) {
  const auto [ranks, tied] = GetParam();
  expect_plain_loss_and_gradients(
      ranks, [config = small_bloom_config(tied)] { return make_bloom(config); });
}

// The plain back end, which counts products of all threads.
std::atomic<int64_t> products = 0;
void counted_mm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  products += 1;
  sherd::ops::plain::plain_backend().mm(out, a, b);
}

const sherd::ops::Backend& counting_backend(bool joins_products) {
  static const auto with = [](bool joins) {
    sherd::ops::Backend backend = sherd::ops::plain::plain_backend();
    backend.mm = &counted_mm;
    backend.joins_products = joins;
    return backend;
  };
  static const sherd::ops::Backend joining = with(true), separate = with(false);
  return joins_products ? joining : separate;
}

// One product for queries, keys and values, one for gate and up, whose weights lie side by side in
// their unit: forward, back to the input, and into the weights' slots.
TEST(ShardedLlama, ComputesSideBySideWeightsInOneProduct) {
  DecoderConfig config = small_llama_config();
  config.hidden_size = 16;  // whole 64 bytes: no gap between weights
  const auto batch = make_batch({17, 5, 11}, config.vocab_size);
  const auto run = [&](bool joins_products) {
    std::vector<at::Tensor> gradients;
    products = 0;
    sherd::test::run_ranks(1, [&](sherd::World world) {
      const sherd::ops::WithBackend on_this_thread(counting_backend(joins_products));
      auto model = sherd::fully_shard(make_llama(config), sherd::Mesh::shard(std::move(world)));
      model.run(loss_of, batch.ids_T, batch.labels_T, batch.documents).backward();
      for (const auto& shard : model.parameter_shards()) {
        gradients.push_back(shard.gradient.clone());
      }
    });
    return gradients;
  };
  const std::vector<at::Tensor> expected = run(false);
  const int64_t separate = products;
  const std::vector<at::Tensor> found = run(true);
  EXPECT_EQ(separate - products, config.layers * 3 * (2 + 1));
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_LE((found[i] - expected[i]).norm().item<double>(),
              1e-5 * expected[i].norm().item<double>())
        << i;
  }
}

// Slopes rounded to param_dtype, as units round the tensors they are called with, would differ.
TEST(ShardedBloomInBf16, KeepsAlibiInFp32) {
  const DecoderConfig config = small_bloom_config();
  const auto batch = make_batch({60, 41}, config.vocab_size);
  CausalLm plain = make_bloom(config);
  plain->to(at::kBFloat16);
  const at::Tensor expected = plain->loss_sum(batch.ids_T, batch.labels_T, batch.documents);
  sherd::test::run_ranks(2, [&](sherd::World world) {
    sherd::ShardOptions options;
    options.precision.param_dtype = c10::kBFloat16;
    auto model =
        sherd::fully_shard(make_bloom(config), sherd::Mesh::shard(std::move(world)), options);
    const at::Tensor loss = model.run(loss_of, batch.ids_T, batch.labels_T, batch.documents);
    EXPECT_EQ(loss.item<float>(), expected.item<float>());
    model.world().barrier();  // a thread that leaves takes its shards with it
  });
}

TEST(ShardedLlamaDecoding, DecodesAsThePlainOne) {
  const DecoderConfig config = small_llama_config();
  const auto batch = make_batch({6, 3}, config.vocab_size);
  CausalLm plain = make_llama(config);
  KvCache plain_cache(8);
  const at::Tensor expected = plain->decode(batch.ids_T, batch.documents, plain_cache);
  sherd::test::run_ranks(2, [&](sherd::World world) {
    auto model = sherd::fully_shard(make_llama(config), sherd::Mesh::shard(std::move(world)));
    KvCache cache(8);
    const auto decode = [&cache](CausalLmImpl& lm, const at::Tensor& ids,
                                 const sherd::ops::Documents& documents) {
      return lm.decode(ids, documents, cache);
    };
    EXPECT_TRUE(model.run(decode, batch.ids_T, batch.documents).equal(expected));
    model.world().barrier();  // a thread that leaves takes its shards with it
  });
}

}  // namespace
}  // namespace llm::model
