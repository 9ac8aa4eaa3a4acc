#include <string_view>

#include "llm/families/family.h"

namespace llm::families {

const Family& bloom_family();
const Family& gemma2_family();
const Family& gemma3_family();
const Family& gpt2_family();
const Family& granite_family();
const Family& llama_family();
const Family& mistral_family();
const Family& olmo2_family();
const Family& olmo3_family();
const Family& phi3_family();
const Family& qwen2_family();
const Family& qwen3_family();
const Family& smollm3_family();

const std::vector<const Family*>& all_families() {
  static const std::vector<const Family*> all = {
      &llama_family(),   &qwen2_family(),  &qwen3_family(),  &mistral_family(), &smollm3_family(),
      &phi3_family(),    &gemma2_family(), &gemma3_family(), &olmo2_family(),   &olmo3_family(),
      &granite_family(), &gpt2_family(),   &bloom_family()};
  return all;
}

const Family* find_family(const std::string& model_type) {
  for (const Family* family : all_families()) {
    if (std::string_view(family->model_type) == model_type) {
      return family;
    }
  }
  return nullptr;
}

}  // namespace llm::families
