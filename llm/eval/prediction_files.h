#pragma once
// The answers of an evaluation as files.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "llm/eval/prediction.h"

namespace llm::eval {

/// What the files of an evaluation after `step` are called, without an extension:
/// "predictions-120", of another file than the first of data.eval "predictions-120-1".
[[nodiscard]] std::string predictions_name(std::int64_t step, std::size_t data_file);

/// Writes `<name>.json`, as SQuAD's own evaluation script reads it, and `<name>.jsonl`, with
/// questions and scores, each whole or not at all. Not collective: rank 0 does it. Throws
/// sherd::Error: CannotWrite, StorageIo.
void write_predictions(const std::filesystem::path& folder, const std::string& name,
                       std::span<const Prediction> predictions);

/// True for a file name that write_predictions() gives.
[[nodiscard]] bool is_predictions_file(const std::filesystem::path& file);

/// Removes those of evaluations after `step`, which a run that goes on from there makes anew. Not
/// collective.
void remove_predictions_after(std::int64_t step, const std::filesystem::path& folder);

}  // namespace llm::eval
