#pragma once
// A preview as text, JSON and HTML.

#include <cstddef>
#include <string>
#include <vector>

#include "llm/inputs/previewed_sample.h"

namespace llm::inputs {

/// How supervised text is marked on a terminal.
enum class Marks { Brackets, Colour };

/// Whether a long sample is shown without its middle.
enum class Clip { None, Middle };

/// "lengths: 12 to 40 tokens, median 20, 95 % within 31; 12.5 % supervised; no padding (…)";
/// without the last part where no micro-batch could be padded.
[[nodiscard]] std::string figures_line(const DataFigures& figures);

/// A sample on one line, supervised text in [[ ]]: "34 tokens, 3 supervised; 30 tokens cut off:
/// Who?[[ Lily</s>]]".
[[nodiscard]] std::string one_line(const PreviewedSample& sample);

/// How many tokens, of which file, and what was cut: "squad.json, q7, step 1: 34 tokens, 3
/// supervised; 30 tokens cut off (120 bytes)".
[[nodiscard]] std::string title_of(const PreviewedSample& sample);

/// The first `characters` of a text on one line, printable, with … where there is more.
[[nodiscard]] std::string begin_of(const std::string& text, std::size_t characters);

/// A text without the middle of what is longer than a screen or two, unless `clip` is None. Cuts no
/// character.
[[nodiscard]] std::string clipped_middle(const std::string& text, Clip clip);

/// What may be wrong with the samples, a line each: duplicates, and samples that teach nothing.
[[nodiscard]] std::vector<std::string> doubts_of(const DataPreview& preview);

/// Why a sample's conversation makes several: "sample 1 of 2 of its conversation: …". Empty if it
/// makes one.
[[nodiscard]] std::string unrolling_text(const PreviewedSample& sample);

/// "120 conversations; 3 make several samples: …". Empty if there are none.
[[nodiscard]] std::string line_of(const ConversationFigures& figures);

/// Samples of each file: "a.jsonl: 20 samples, 3 skipped".
[[nodiscard]] std::string line_of(const TrainingPart& part);
/// The records that yield no sample, a line each: "skipped: a.jsonl: line 3, byte 57: has no …". Of
/// many the first 20, and how many more there are.
[[nodiscard]] std::vector<std::string> lines_of(const std::vector<text::BadSample>& skipped);

/// For people, without a line end; the text of data can do nothing to a terminal. Lines have at
/// most 80 columns, except those of samples and names that are longer. With Clip::Middle at most
/// 2,000 characters of each part.
[[nodiscard]] std::string to_text(const DataPreview& preview, Marks marks, Clip clip = Clip::None);
[[nodiscard]] std::string to_text(const std::vector<DealtSample>& dealt, Marks marks);
/// One line, which can do nothing to a terminal either.
[[nodiscard]] std::string to_json(const DataPreview& preview);
[[nodiscard]] std::string to_json(const std::vector<DealtSample>& dealt);
/// A page that needs no other file. Clips as to_text().
[[nodiscard]] std::string to_html(const DataPreview& preview, Clip clip = Clip::None);

}  // namespace llm::inputs
