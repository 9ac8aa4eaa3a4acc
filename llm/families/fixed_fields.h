#pragma once
// Fields of a config.json that change what a model computes, and the values of them that are
// implemented. What a family does not know it refuses by name.

#include <vector>

#include "llm/families/json_fields.h"

namespace llm::families {

/// A field and the only value that is implemented.
struct FixedField {
  const char* field;
  nlohmann::ordered_json value;
};

/// Throws Error(BadData) for the first of these fields that has another value. Missing is allowed.
void refuse_unless(const JsonFields& fields, const std::vector<FixedField>& table);

/// Refuses what no family implements: quantized weights, code of the model's own, pruned heads,
/// encoders.
void refuse_other_computations(const JsonFields& fields);

/// Refuses `architectures` unless it is missing or a list of one of `implemented`. The first of
/// them is named in the message.
void refuse_other_architectures(const JsonFields& fields,
                                const std::vector<const char*>& implemented);

}  // namespace llm::families
