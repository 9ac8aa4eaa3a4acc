// The Llama family (1 to 3.x). Names of modules and parameters are those of Hugging Face's
// checkpoints.  Paper: arXiv:2302.13971.

#include "llm/families/family.h"
#include "llm/families/fixed_fields.h"
#include "llm/families/llama_like.h"
#include "llm/families/window_fields.h"

namespace llm::families {
namespace {

model::DecoderConfig parse_llama(const JsonFields& fields) {
  refuse_other_layers(fields, {"LlamaForCausalLM"});
  refuse_unless(fields, {{"sliding_window", nullptr}, {"use_sliding_window", false}});
  refuse_windows(fields);
  return read_shape(fields, {});
}

model::CausalLm build_llama(const model::DecoderConfig& config) {
  return build_llama_like("llama", config);
}

}  // namespace

const Family& llama_family();  // families.cpp names it

const Family& llama_family() {
  static const Family family = {.model_type = "llama",
                                .parse = &parse_llama,
                                .build = &build_llama,
                                .tensors = {.derived = {"rotary_emb.inv_freq"}},
                                .harmless_fields = {"pretraining_tp", "is_llama_config"}};
  return family;
}

}  // namespace llm::families
