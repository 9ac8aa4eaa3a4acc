// Models whose frozen weights are in 8 bits, compared with the same ones with the numbers that the
// blocks stand for.

#include "llm/model/quantized.h"

#include <cstring>
#include <mutex>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "llm/families/family.h"
#include "ops/q8_0.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "tests/llm/model/test_batch.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace llm::model {
namespace {

namespace q8_0 = sherd::ops::q8_0;

struct QuantizedCase {
  const char* family;
  DecoderConfig config;
};

// Rows of multiples of 32, but for the feed-forward part's last map in the first.
QuantizedCase quantized_llama(int64_t feed_forward_size = 172) {
  return {"llama",
          {.hidden_size = 64,
           .feed_forward_size = feed_forward_size,
           .layers = 2,
           .heads = 4,
           .key_heads = 2,
           .head_size = 16,
           .vocab_size = kVocabulary,
           .context_length = 64,
           .norm_epsilon = 1e-5,
           .initializer_range = 0.3,
           .tied_embedding = false,
           .rope = RopeConfig{}}};
}

QuantizedCase fused_llama() {
  QuantizedCase fused = quantized_llama(96);
  fused.family = "phi3";
  fused.config.fused_projections = true;
  return fused;
}

QuantizedCase with_heads_of_their_own(const char* family) {
  QuantizedCase other = quantized_llama(128);
  other.family = family;
  other.config.key_heads = other.config.heads;
  other.config.tied_embedding = true;
  other.config.rope = std::nullopt;
  other.config.learned_positions = other.family == std::string("gpt2");
  return other;
}

// The same values each time, on whatever thread; norms alone are trained.
CausalLm build_frozen(const QuantizedCase& of) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(3);
  CausalLm model = families::find_family(of.family)->build(of.config);
  for (const auto& parameter : model->named_parameters()) {
    parameter.value().requires_grad_(parameter.value().dim() == 1 &&
                                     parameter.key().find("norm") != std::string::npos);
  }
  if (of.family == std::string("gpt2")) {
    for (const auto& parameter : model->named_parameters()) {
      parameter.value().requires_grad_(parameter.key().find(".ln_") != std::string::npos);
    }
  }
  return model;
}

CausalLm build_quantized(const QuantizedCase& of) {
  CausalLm model = build_frozen(of);
  quantize_q8_0(*model);
  return model;
}

// Each quantized weight as the matrix that it stands for.
CausalLm build_dequantized(const QuantizedCase& of) {
  const at::NoGradGuard no_grad;
  CausalLm model = build_quantized(of);
  for (const auto& parameter : model->named_parameters()) {
    if (q8_0::is_quantized(parameter.value())) {
      at::Tensor weight = parameter.value();
      weight.set_data(q8_0::dequantized(weight, at::kFloat));
    }
  }
  return model;
}

at::Tensor quantized_loss(CausalLmImpl& model, const at::Tensor& ids, const at::Tensor& labels,
                          const sherd::ops::Documents& documents) {
  return model.loss_sum(ids, labels, documents);
}

class QuantizedModels : public testing::TestWithParam<QuantizedCase> {};
INSTANTIATE_TEST_SUITE_P(Families, QuantizedModels,
                         testing::Values(quantized_llama(), fused_llama(),
                                         with_heads_of_their_own("bloom"),
                                         with_heads_of_their_own("gpt2")),
                         [](const auto& one) { return one.param.family; });

TEST_P(QuantizedModels, ComputeWhatTheirNumbersDo) {
  const TokenBatch batch = make_batch({17, 5, 11}, kVocabulary);
  CausalLm quantized = build_quantized(GetParam()), plain = build_dequantized(GetParam());
  const auto loss_of = [&](CausalLm& model) {
    at::Tensor loss = model->loss_sum(batch.ids_T, batch.labels_T, batch.documents);
    loss.backward();
    return loss.item<double>();
  };
  const double expected = loss_of(plain);
  EXPECT_NEAR(loss_of(quantized), expected, 1e-6 * expected);
  const auto parameters = plain->named_parameters();
  int compared = 0;
  for (const auto& parameter : quantized->named_parameters()) {
    if (parameter.value().requires_grad()) {
      const at::Tensor gradient = parameters[parameter.key()].grad();
      EXPECT_LE((parameter.value().grad() - gradient).norm().item<double>(),
                1e-5 * gradient.norm().item<double>())
          << parameter.key();
      ++compared;
    }
  }
  EXPECT_GT(compared, 3);
  const at::NoGradGuard no_grad;
  const at::Tensor logits = plain->logits(batch.ids_T, batch.documents);
  EXPECT_LE((quantized->logits(batch.ids_T, batch.documents) - logits).norm().item<double>(),
            1e-6 * logits.norm().item<double>());
}

// Masters of the norms after three steps, and the losses.
std::vector<at::Tensor> trained(int ranks, int micro_batches, bool checkpoints) {
  const TokenBatch batch = make_batch({17, 5, 11, 8, 2, 9}, kVocabulary);
  std::vector<at::Tensor> results;
  std::mutex guard;
  sherd::test::run_ranks(ranks, [&](sherd::World world) {
    const int rank = world.rank();
    auto model = sherd::fully_shard(
        build_quantized(quantized_llama()), sherd::Mesh::shard(std::move(world)),
        {.precision = {.param_dtype = at::kBFloat16},
         .units = sherd::unit_policy::every_unit({.checkpoint_activations = checkpoints})});
    model.set_gradient_divide_factor(1);
    sherd::AdamW optimizer(model, {.lr = 1e-2});
    for (int step = 0; step < 3; ++step) {
      for (int i = 0; i < micro_batches; ++i) {
        const TokenBatch one = document_of(batch, i * ranks + rank);
        model.run(quantized_loss, one.ids_T, one.labels_T, one.documents).backward();
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    const sherd::StateDict state = sherd::full_state_dict(model);
    const std::lock_guard lock(guard);
    for (const auto& item : state) {
      results.push_back(item.value());
    }
  });
  return results;
}

void expect_same_tensors(const std::vector<at::Tensor>& found,
                         const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  }
}

TEST(QuantizedModel, TrainsToTheSameBitsOnAnyNumberOfRanks) {
  expect_same_tensors(trained(2, 1, false), trained(1, 2, false));
  expect_same_tensors(trained(3, 1, false), trained(1, 3, false));
}

TEST(QuantizedModel, TrainsToTheSameBitsWithCheckpointedActivations) {
  expect_same_tensors(trained(2, 1, true), trained(2, 1, false));
}

// 34 bytes for 32 numbers, where bf16 has 64.
TEST(QuantizedModel, HoldsAndGathersAboutHalfOfBf16) {
  const auto bytes_of = [](CausalLm model) {
    for (const at::Tensor& parameter : model->parameters()) {
      parameter.requires_grad_(false);
    }
    return sherd::fully_shard(std::move(model), sherd::Mesh::shard(sherd::World::alone()),
                              {.precision = {.param_dtype = at::kBFloat16}})
        .memory()
        .bytes(sherd::MemoryKind::TravellingShard);
  };
  const QuantizedCase of = quantized_llama(512);
  int64_t products = 0, others = 0;
  for (const auto& parameter : build_quantized(of)->named_parameters()) {
    const bool is_quantized = q8_0::is_quantized(parameter.value());
    products +=
        is_quantized ? 2 * parameter.value().size(0) * q8_0::columns_of(parameter.value()) : 0;
    others += is_quantized ? 0 : 2 * parameter.value().numel();
  }
  EXPECT_LE(bytes_of(build_quantized(of)) - others, products * 55 / 100);
  EXPECT_GE(bytes_of(build_frozen(of)) - others, products);
}

TEST(QuantizedModel, KeepsWhatIsNoMapOfALayerAndWhatDoesNotFit) {
  CausalLm model = build_frozen(quantized_llama());
  quantize_q8_0(*model);
  std::vector<std::string> names;
  for (const auto& parameter : model->named_parameters()) {
    if (q8_0::is_quantized(parameter.value()) && parameter.key().starts_with("model.layers.0.")) {
      names.push_back(parameter.key().substr(15));
    }
    EXPECT_TRUE(q8_0::is_quantized(parameter.value()) ==
                (parameter.value().scalar_type() != at::kFloat));
  }
  EXPECT_THAT(names,
              testing::UnorderedElementsAre("self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                            "self_attn.v_proj.weight", "self_attn.o_proj.weight",
                                            "mlp.gate_proj.weight", "mlp.up_proj.weight"));
  EXPECT_EQ(unquantized_line(*model),
            "model.quantize: 2 weights are not quantized, because rows of Q8_0 are a multiple of "
            "32 numbers: model.layers.0.mlp.down_proj.weight has rows of 172; and so on");
  EXPECT_EQ(unquantized_line(*build_quantized(fused_llama())), "");
}

TEST(QuantizedModel, RefusesAWeightThatIsToBeTrained) {
  CausalLm model = build_frozen(quantized_llama());
  model->named_parameters()["model.layers.1.mlp.up_proj.weight"].requires_grad_(true);
  sherd::test::expect_error(
      [&] { quantize_q8_0(*model); }, sherd::ExitCode::Usage,
      {"model.quantize = \"q8_0\" keeps model.layers.1.mlp.up_proj.weight in 8 bits, in which it "
       "cannot be trained: train an adapter",
       "or set model.quantize = \"none\""});
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_FALSE(q8_0::is_quantized(parameter));
  }
}

}  // namespace
}  // namespace llm::model
