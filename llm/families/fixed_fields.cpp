#include "llm/families/fixed_fields.h"

#include <algorithm>

namespace llm::families {

using Json = nlohmann::ordered_json;

void refuse_unless(const JsonFields& fields, const std::vector<FixedField>& table) {
  for (const FixedField& fixed : table) {
    const Json* found = fields.find(fixed.field);
    if (found != nullptr && *found != fixed.value) {
      fields.fail(fixed.field,
                  found->dump() + " is not implemented" +
                      (fixed.value.is_null() ? ", only null" : ", only " + fixed.value.dump()));
    }
  }
}

void refuse_other_computations(const JsonFields& fields) {
  refuse_unless(fields, {{"quantization_config", nullptr},
                         {"pruned_heads", Json::object()},
                         {"is_encoder_decoder", false},
                         {"add_cross_attention", false}});
}

namespace {

// Code beside the weights may compute anything, unless it is what transformers has under that name.
void refuse_other_code(const JsonFields& fields, const std::vector<const char*>& implemented) {
  const Json* code = fields.find("auto_map");
  if (code == nullptr) {
    return;
  }
  const std::string model =
      code->is_object() ? code->value("AutoModelForCausalLM", Json()).dump() : code->dump();
  const bool is_implemented =
      std::any_of(implemented.begin(), implemented.end(),
                  [&](const char* name) { return model.ends_with(std::string(".") + name + '"'); });
  if (!is_implemented) {
    fields.fail("auto_map", code->dump() + " names code of its own, which Sherd does not run");
  }
}

}  // namespace

void refuse_other_architectures(const JsonFields& fields,
                                const std::vector<const char*>& implemented) {
  refuse_other_code(fields, implemented);
  const Json* found = fields.find("architectures");
  const auto is_found = [&](const char* name) { return *found == Json::array({name}); };
  if (found != nullptr && std::none_of(implemented.begin(), implemented.end(), is_found)) {
    fields.fail("architectures", found->dump() + " is not implemented, only " +
                                     Json::array({implemented.front()}).dump());
  }
}

}  // namespace llm::families
