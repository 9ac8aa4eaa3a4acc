// docs/adding-a-family.md: a family that the program does not have is read, trained, decoded and
// exported by the same code as its own.

#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/io/export.h"
#include "llm/io/hf_config.h"
#include "llm/setup/batch_tensors.h"
#include "llm/setup/load_model.h"
#include "sherd/optim.h"
#include "tests/llm/io/model_folders.h"
#include "tests/llm/io/stablelm_family.h"
#include "tests/support/ranks.h"

namespace llm::io {
namespace {

using Json = nlohmann::ordered_json;

const Json kConfig = {{"model_type", "stablelm"},
                      {"hidden_size", 48},
                      {"intermediate_size", 40},
                      {"num_hidden_layers", 2},
                      {"num_attention_heads", 3},
                      {"num_key_value_heads", 1},
                      {"vocab_size", 61},
                      {"layer_norm_eps", 1e-5},
                      {"partial_rotary_factor", 0.25},
                      {"tie_word_embeddings", false}};

HfConfig stablelm(const Json& changes = Json::object()) {
  Json config = kConfig;
  config.merge_patch(changes);
  config = Json::parse(config.dump());  // as a file's numbers are read
  const families::Family& family = families::stablelm_family();
  return {.family = &family,
          .shape = family.parse(families::JsonFields(config, "config.json")),
          .dtype = at::kFloat};
}

TEST(OwnFamily, ReadsItsConfiguration) {
  const model::DecoderConfig shape = stablelm().shape;
  EXPECT_EQ(shape.rope->rotated_size(shape.head_size), 4);  // of 16
  EXPECT_EQ(shape.context_length, 4'096);
  EXPECT_EQ(stablelm({{"partial_rotary_factor", nullptr}}).shape.rope->rotated_share, 0.25);
  expect_error(
      [] {
        static_cast<void>(stablelm({{"use_parallel_residual", true}}));
      },
      sherd::ExitCode::BadData,
      "config.json: \"use_parallel_residual\" true is not implemented, only false");
}

TEST(OwnFamily, ExportsTheNamesOfItsCheckpoints) {
  const auto model = build_model(stablelm());
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const auto& spec : export_specs(*model, at::kFloat)) {
    shapes[spec.name] = spec.shape;
  }
  EXPECT_EQ(shapes.size(), 26U);
  EXPECT_EQ(shapes["model.layers.1.input_layernorm.bias"], std::vector<std::int64_t>{48});
  EXPECT_EQ(shapes["model.layers.0.self_attn.k_proj.weight"], (std::vector<std::int64_t>{16, 48}));
  EXPECT_EQ(shapes["lm_head.weight"], (std::vector<std::int64_t>{61, 48}));
}

TEST(OwnFamily, DecodesWhatItComputes) {
  auto model = build_model(stablelm());
  const at::Tensor text = at::randint(61, {9}, at::kLong);
  const at::Tensor whole = model->logits(text, sherd::ops::Documents({0, 9})).detach();
  model::KvCache cache(9);
  at::Tensor scores = model->decode(text.narrow(0, 0, 5), sherd::ops::Documents({0, 5}), cache);
  for (std::int64_t read = 5; read < 9; ++read) {
    EXPECT_TRUE(scores[0].allclose(whole[read - 1], 1e-4, 1e-5)) << "after " << read << " tokens";
    scores = model->decode(text.narrow(0, read, 1), sherd::ops::Documents({0, 1}), cache);
  }
}

// Two ranks learn the same text, in which each token follows from the one before.
TEST(OwnFamily, LearnsOnTwoRanks) {
  sherd::test::run_ranks(2, [](sherd::World world) {
    auto model =
        setup::random_sharded(stablelm(), sherd::Mesh::shard(std::move(world)), {}, /*seed=*/1);
    const at::Tensor ids = at::arange(32, at::kLong).remainder(7);
    const model::TokenBatch batch{ids, ids, sherd::ops::Documents({0, 32})};
    sherd::AdamW optimizer(model, {.lr = 1e-2});
    double first = 0, last = 0;
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = setup::loss_sum(model, batch) / 62;
      loss.backward();
      optimizer.step();
      (step == 0 ? first : last) = 2 * loss.item<double>();
    }
    EXPECT_NEAR(first, std::log(61), 0.5);
    EXPECT_LT(last, first / 4);
  });
}

}  // namespace
}  // namespace llm::io
