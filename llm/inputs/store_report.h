#pragma once
// What a store tells of its source, as JSON.

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "llm/inputs/dataset.h"
#include "llm/text/bad_sample.h"
#include "llm/text/questions.h"

namespace llm::inputs {

[[nodiscard]] nlohmann::json json_of(const DatasetReport& report);
/// Without the name.
[[nodiscard]] DatasetReport report_of(const nlohmann::json& fields);

[[nodiscard]] nlohmann::json json_of(const std::vector<text::BadSample>& samples);
[[nodiscard]] std::vector<text::BadSample> bad_samples_of(const nlohmann::json& list);

/// A record as evaluation needs it: without its context.
[[nodiscard]] std::string text_of(const text::Question& question);
[[nodiscard]] text::Question question_of(std::string_view text);

/// JSON in one line; bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string dumped(const nlohmann::json& value);

}  // namespace llm::inputs
