// Adapters in the models of all families. What they compute and their gradients follow from the
// same model with merged weights W + s·B·A: dA = s·Bᵀ·dW and dB = s·dW·Aᵀ.

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "llm/io/hf_config.h"
#include "llm/model/dropout_keys.h"
#include "llm/model/kv_cache.h"
#include "llm/model/random_weights.h"
#include "sherd/fully_shard.h"
#include "sherd/state_dict.h"
#include "tests/llm/model/adapted.h"
#include "tests/llm/model/small_bloom.h"
#include "tests/llm/model/small_llama.h"
#include "tests/support/ranks.h"
#include "tests/support/test_data.h"

namespace llm::model {
namespace {

CausalLm seeded_model(const io::HfConfig& config) {
  torch::manual_seed(3);
  return io::build_model(config);
}

// The modules with an adapter, by name.
std::map<std::string, const sherd::LoraModule*> adapted_modules(const CausalLm& model) {
  std::map<std::string, const sherd::LoraModule*> found;
  for (const auto& item : model->named_modules("", /*include_self=*/false)) {
    const auto* const module = dynamic_cast<const sherd::LoraModule*>(item.value().get());
    if (module != nullptr && module->lora() != nullptr) {
      found[item.key()] = module;
    }
  }
  return found;
}

// A weight as [outputs, inputs], also Conv1D's.
at::Tensor as_map(const at::Tensor& weight, const CausalLm& model) {
  return model->family() == "gpt2" ? weight.t() : weight;
}

void expect_near(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  EXPECT_LE((found - expected).abs().max().item<double>(),
            1e-4 * expected.abs().max().item<double>() + 1e-9)
      << what;
}

void expect_merged_models_results(CausalLm adapted, CausalLm merged, const TokenBatch& batch) {
  const auto modules = adapted_modules(adapted);
  auto weights = merged->named_parameters();
  for (const auto& [name, module] : modules) {
    const at::NoGradGuard no_grad;
    const sherd::LoraAdapter& adapter = *module->lora();
    as_map(weights[name + ".weight"], merged).add_(adapter.B.mm(adapter.A), adapter.scale);
  }
  const at::Tensor found = adapted->loss_sum(batch.ids_T, batch.labels_T, batch.documents);
  const at::Tensor expected = merged->loss_sum(batch.ids_T, batch.labels_T, batch.documents);
  expect_near(found, expected, "loss");
  expect_near(adapted->logits(batch.ids_T, batch.documents).detach(),
              merged->logits(batch.ids_T, batch.documents).detach(), "logits");
  found.backward();
  expected.backward();
  for (const auto& [name, module] : modules) {
    const sherd::LoraAdapter& adapter = *module->lora();
    const at::Tensor dW = as_map(weights[name + ".weight"].grad(), merged);
    expect_near(adapter.A.grad(), adapter.B.t().mm(dW).detach() * adapter.scale, name + ", A");
    expect_near(adapter.B.grad(), dW.mm(adapter.A.t()).detach() * adapter.scale, name + ", B");
  }
  for (const auto& item : adapted->named_parameters()) {
    EXPECT_EQ(item.value().grad().defined(), item.key().find("lora_") != std::string::npos)
        << item.key();
  }
}

class LoraOfFamily : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, LoraOfFamily,
                         testing::Values("gemma2", "gemma3", "gpt2", "granite", "llama-linear",
                                         "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(LoraOfFamily, HasTheMergedModelsResults) {
  const std::string folder = std::string("families/") + GetParam();
  SHERD_NEEDS_EXTRA_DATA(folder);
  const auto config = io::read_model_folder_config(sherd::test::extra_data(folder)->string());
  CausalLm adapted = seeded_model(config);
  add_adapters(adapted, {.shape = {.rank = 3, .alpha = 4}});
  expect_merged_models_results(adapted, seeded_model(config),
                               make_batch({17, 5, 11}, config.shape.vocab_size));
}

TEST(LoraOfBloom, HasTheMergedModelsResults) {
  for (const bool is_tied : {true, false}) {
    CausalLm adapted = make_bloom(small_bloom_config(is_tied));
    add_adapters(adapted, {.shape = {.rank = 3, .alpha = 4}});
    expect_merged_models_results(adapted, make_bloom(small_bloom_config(is_tied)),
                                 make_batch({17, 5, 11}, kVocabulary));
  }
}

TEST(LoraOfALlama, HasTheMergedModelsResultsWhereverTheAdaptersAre) {
  for (const std::vector<std::string>& targets : std::vector<std::vector<std::string>>{
           {"q_proj", "v_proj"}, {"lm_head"}, {"1.self_attn.k_proj", "down_proj"}, {"up_proj"}}) {
    for (const int64_t chunk : {512, 3}) {
      CausalLm adapted = make_llama(small_llama_config());
      add_adapters(adapted, {.shape = {.rank = 5, .alpha = 4}, .targets = targets});
      adapted->set_loss_chunk_tokens(chunk);
      expect_merged_models_results(adapted, make_llama(small_llama_config()),
                                   make_batch({17, 5, 11}, kVocabulary));
    }
  }
}

TEST(LoraOfALlama, ThatIsFreshOrOffHasTheBasesBits) {
  const auto batch = make_batch({17, 5, 11}, kVocabulary);
  CausalLm base = make_llama(small_llama_config());
  CausalLm fresh = make_llama(small_llama_config());
  sherd::lora(*fresh, {.shape = {.rank = 5, .alpha = 4}});
  CausalLm off = make_llama(small_llama_config());
  add_adapters(off, {.shape = {.rank = 5, .alpha = 4}});
  sherd::enable_lora(*off, false);
  const at::Tensor expected = base->loss_sum(batch.ids_T, batch.labels_T, batch.documents);
  for (CausalLm model : {fresh, off}) {
    EXPECT_TRUE(at::equal(expected, model->loss_sum(batch.ids_T, batch.labels_T, batch.documents)));
  }
}

TEST(LoraOfALlama, DecodesAsItReads) {
  CausalLm model = make_llama(small_llama_config());
  add_adapters(model, {.shape = {.rank = 5, .alpha = 4, .dropout = 0.5}});
  const auto batch = make_batch({6, 3}, kVocabulary);
  KvCache cache(8);
  const at::Tensor found = model->decode(batch.ids_T, batch.documents, cache);
  const at::Tensor all = model->logits(batch.ids_T, batch.documents).detach();
  expect_near(found, all.index_select(0, batch.documents.last_tokens()), "scores");
}

TEST(DropoutKeys, AreTheSampleTheStepAndThePositions) {
  const auto keys = [](std::uint64_t seed, std::int64_t step, std::vector<std::int64_t> samples,
                       std::vector<std::int64_t> lengths) {
    return dropout_keys(seed, step, samples, sherd::ops::Documents::of_lengths(lengths).bounds());
  };
  const at::Tensor all = keys(1, 2, {8, 4}, {5, 3});
  const auto* first = all.const_data_ptr<int64_t>();
  EXPECT_EQ(std::set<int64_t>(first, first + 8).size(), 8U);  // each position has its own
  EXPECT_TRUE(at::equal(all.slice(0, 5, 8), keys(1, 2, {4}, {3})));
  EXPECT_TRUE(at::equal(all.slice(0, 0, 5), keys(1, 2, {8}, {9}).slice(0, 0, 5)));
  for (const at::Tensor& other :
       {keys(2, 2, {4}, {3}), keys(1, 3, {4}, {3}), keys(1, 2, {5}, {3})}) {
    EXPECT_EQ(other.eq(all.slice(0, 5, 8)).sum().item<int64_t>(), 0);
  }
  EXPECT_THROW(static_cast<void>(keys(1, 2, {8}, {5, 3})), c10::Error);
}

// The mask of a document does not depend on others in the batch.
TEST(LoraOfALlama, DropsTheSameAlone) {
  CausalLm model = make_llama(small_llama_config());
  add_adapters(model, {.shape = {.rank = 5, .alpha = 40, .dropout = 0.5}});
  EXPECT_TRUE(has_dropout(*model));
  const auto batch = make_batch({17, 5, 11}, kVocabulary);
  const std::vector<std::int64_t> samples = {30, 10, 20};
  const auto loss_of = [&](const TokenBatch& of, std::span<const std::int64_t> numbers) {
    const at::Tensor keys = dropout_keys(1, 2, numbers, of.documents.bounds());
    return model->loss_sum(of.ids_T, of.labels_T, of.documents, keys).item<double>();
  };
  double apart = 0;
  for (int64_t d = 0; d < 3; ++d) {
    apart += loss_of(document_of(batch, d), std::span(samples).subspan(static_cast<size_t>(d), 1));
  }
  const double together = loss_of(batch, samples);
  EXPECT_NEAR(together, apart, 1e-5 * together);
  const double without =
      model->loss_sum(batch.ids_T, batch.labels_T, batch.documents).item<double>();
  EXPECT_GT(std::abs(without - together), 1e-2);
}

TEST(LoraOfALlama, HasRandomWeightsThatDoNotDependOnTheRanks) {
  const auto config = small_llama_config();
  const auto made = [&](sherd::World world) {
    auto model = sherd::fully_shard(sherd::on_meta([&] {
                                      CausalLm lm = families::find_family("llama")->build(config);
                                      sherd::lora(*lm, {.shape = {.rank = 5, .alpha = 4}});
                                      return lm;
                                    }),
                                    sherd::Mesh::shard(std::move(world)));
    sherd::initialize(model, 9, random_weights(*model.module(), 0.02));
    return model;
  };
  const auto alone = made(sherd::World::alone());
  std::map<std::string, at::Tensor> whole;
  for (const auto& shard : alone.parameter_shards()) {
    whole[shard.name] = shard.value.clone();
  }
  const at::Tensor& A = whole.at("model.layers.1.mlp.down_proj.lora_A.weight");
  EXPECT_LE(A.abs().max().item<double>(), 1 / std::sqrt(29.0));
  EXPECT_GE(A.abs().max().item<double>(), 0.9 / std::sqrt(29.0));
  sherd::test::run_ranks(3, [&](const sherd::World& world) {
    const auto model = made(world);
    for (const auto& shard : model.parameter_shards()) {
      TORCH_CHECK(at::equal(shard.value, whole.at(shard.name).slice(0, shard.begin, shard.end)),
                  shard.name);
    }
  });
}

}  // namespace
}  // namespace llm::model
