#include "llm/adapters/peft_weights.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/adapters/adapt.h"
#include "tests/llm/adapters/adapter_cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::adapters {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A copy of a case whose adapter_config.json has other fields.
void expect_refused_weights(const std::string& name, const Json& changes,
                            const std::vector<std::string>& messages) {
  const sherd::test::TempFolder copy;
  config::RunConfig run = test::run_of(name);
  Json config = Json::parse(std::ifstream(fs::path(run.adapter.path) / "adapter_config.json"));
  config.merge_patch(changes);
  std::ofstream(copy.path() / "adapter_config.json") << config.dump();
  fs::copy(fs::path(run.adapter.path) / "adapter_model.safetensors",
           copy.path() / "adapter_model.safetensors");
  const config::AdapterSection adapter = read_peft_config(copy.path().string()).adapter;
  model::CausalLm module = test::module_of(run.model.path);
  sherd::on_meta([&] { return adapt(*module, adapter); });
  sherd::test::expect_error([&] { require_peft_tensors(*module, adapter); },
                            sherd::ExitCode::BadData, messages);
}

TEST(PeftWeights, AreRefusedIfTheyAreNotThoseOfTheConfig) {
  SHERD_NEEDS_EXTRA_DATA("lora");
  expect_refused_weights(
      "llama-head", {{"modules_to_save", nullptr}},
      {"'base_model.model.lm_head.weight' belongs to nothing that adapter_config.json "
       "names"});
  expect_refused_weights(
      "llama-head", {{"layers_to_transform", {0, 1}}},
      {"'base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight' is missing"});
  expect_refused_weights("llama-fresh", {{"r", 4}},
                         {"lora_A.weight' has shape [3, ", "expected [4, "});
}

// Of a tied model PEFT trains a copy of the embedding, and leaves the head as it was.
TEST(PeftWeights, AreRefusedIfTheEmbeddingWasTrainedApartFromItsHead) {
  SHERD_NEEDS_EXTRA_DATA("lora");
  const sherd::test::TempFolder folder;
  config::AdapterSection adapter = test::lora({.names = {"q_proj"}});
  adapter.modules_to_save = {"embed_tokens"};
  model::CausalLm module = test::module_of();
  sherd::on_meta([&] { return adapt(*module, adapter); });
  adapter.path = folder.path().string();
  const auto specs = peft_specs(*module, adapter, at::kFloat);
  sherd::SafetensorsWriter file((folder.path() / "adapter_model.safetensors").string(), specs);
  for (const auto& spec : specs) {
    std::size_t numel = 1;
    for (const std::int64_t size : spec.shape) {
      numel *= static_cast<std::size_t>(size);
    }
    const std::vector<float> zeros(numel);
    file.write(spec.name, zeros.data(), numel * sizeof(float));
  }
  file.finish();
  const std::string text = peft_config_text(*module, adapter, "/base", /*tied_embedding=*/true);
  std::ofstream(folder.path() / "adapter_config.json") << text;
  EXPECT_NO_THROW(require_peft_tensors(*module, adapter));
  Json apart = Json::parse(text);
  apart["ensure_weight_tying"] = false;
  std::ofstream(folder.path() / "adapter_config.json") << apart.dump();
  sherd::test::expect_error([&] { require_peft_tensors(*module, adapter); },
                            sherd::ExitCode::BadData, {"PEFT trained it apart from the head"});
}

}  // namespace
}  // namespace llm::adapters
