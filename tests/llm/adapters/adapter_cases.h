#pragma once
// Adapters that PEFT saved, over tiny models (lora/ of SHERD_TEST_DATA), and small ones of the
// project.

#include <filesystem>
#include <string>

#include "llm/adapters/peft_config.h"
#include "llm/config/run_config.h"
#include "llm/io/hf_config.h"
#include "sherd/fully_shard.h"
#include "tests/support/test_data.h"

namespace llm::adapters::test {

inline constexpr const char* kCases[] = {"llama-fresh",    "llama-rslora", "llama-head",
                                         "qwen3-patterns", "qwen3-regex",  "gemma3-fresh",
                                         "gemma3-layers",  "gpt2-conv1d"};

inline std::string folder_of(const std::string& name) {
  return (*sherd::test::extra_data("lora") / name).string();
}

/// A run that starts from a case's adapter, over the base that the case names.
inline config::RunConfig run_of(const std::string& name) {
  const PeftConfig peft = read_peft_config(folder_of(name));
  config::RunConfig config;
  config.model.path = base_folder_of(peft);
  config.adapter = peft.adapter;
  return config;
}

inline const std::string kStories = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";

/// The module of a folder, on meta.
inline model::CausalLm module_of(const std::string& folder = kStories) {
  return sherd::on_meta([&] { return io::build_model(io::read_model_folder_config(folder)); });
}

inline config::AdapterSection lora(config::ModuleChoice targets) {
  config::AdapterSection adapter;
  adapter.kind = config::AdapterKind::Lora;
  adapter.targets = std::move(targets);
  return adapter;
}

}  // namespace llm::adapters::test
