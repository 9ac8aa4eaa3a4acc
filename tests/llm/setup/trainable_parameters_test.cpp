// The parameters that patterns leave trainable.

#include "llm/setup/trainable_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/setup/load_model.h"
#include "tests/support/expect_error.h"

namespace llm::setup {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;

model::CausalLm shapes() {
  return model_shape(SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf").shapes;
}

std::vector<std::string> trained_with(const std::vector<std::string>& patterns) {
  model::CausalLm model = shapes();
  freeze_all_but(*model, patterns);
  std::vector<std::string> names;
  for (const auto& parameter : model->named_parameters()) {
    if (parameter.value().requires_grad()) {
      names.push_back(parameter.key());
    }
  }
  return names;
}

TEST(TrainableParameters, AreAllWithoutPatterns) {
  EXPECT_EQ(trained_with({}).size(), shapes()->named_parameters().size());
}

TEST(TrainableParameters, AreThoseWhoseWholeNameAPatternMatches) {
  EXPECT_THAT(trained_with({"model.norm.weight"}), testing::ElementsAre("model.norm.weight"));
  EXPECT_THAT(trained_with({R"(.*\.(q|v)_proj\.weight)"}), testing::SizeIs(10));
  // With a lookahead: all layers but the first two.
  EXPECT_THAT(trained_with({R"(model\.layers\.(?![01]\.).*input_layernorm\.weight)"}),
              testing::ElementsAre("model.layers.2.input_layernorm.weight",
                                   "model.layers.3.input_layernorm.weight",
                                   "model.layers.4.input_layernorm.weight"));
  EXPECT_THAT(trained_with({"model.norm.weight", "model.embed_tokens.*"}),
              testing::UnorderedElementsAre("model.norm.weight", "model.embed_tokens.weight"));
}

TEST(TrainableParameters, ThatNoParameterHasAreRefusedWithTheNearest) {
  expect_error(
      [] {
        trained_with({"model.norm.weight", "model.norms.weight"});
      },
      ExitCode::Usage,
      {"model.trainable: \"model.norms.weight\" matches the whole name of no parameter",
       "Nearest are model.norm.weight, "});
  expect_error([] { trained_with({"norm"}); }, ExitCode::Usage,
               {"\"norm\" matches the whole name of no parameter"});
  expect_error([] { trained_with({"model.layers.(.*"}); }, ExitCode::Usage,
               {"model.trainable: \"model.layers.(.*\" is no regular expression"});
}

}  // namespace
}  // namespace llm::setup
