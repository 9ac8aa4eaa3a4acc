#pragma once
// What a checkpoint records about the run it belongs to.

#include <cstdint>
#include <string>

#include "llm/config/run_config.h"

namespace llm::train {

/// What a run learns from. A digest is empty where a checkpoint is older than digests.
struct DataIdentity {
  std::string path;              ///< of the training file, for messages
  std::int64_t samples = 0;      ///< of the training data
  std::string sha256;            ///< of the training file
  std::string tokenizer_sha256;  ///< of tokenizer.json
};

/// Kept as the checkpoint's note.
struct RunNote {
  std::int64_t step = 0;         ///< steps done: the position in the data follows from it
  std::int64_t total_steps = 0;  ///< the schedule's length
  DataIdentity data;
  std::string model;            ///< the source model's folder, absolute
  std::string config;           ///< the run's configuration, as TOML
  double loss_scale = 0;        ///< of a GradScaler after the step; 0: none was used
  std::int64_t good_steps = 0;  ///< steps since that scale changed
  std::string isa;     ///< the path of the processor (ops/cpu/isa.h); empty where not known
  std::string origin;  ///< the checkpoint or run that this one began from; empty: the model
};

/// The note of a run at step 0.
[[nodiscard]] RunNote note_of_run(const config::RunConfig& config, const DataIdentity& data,
                                  std::int64_t total_steps);

/// A notice for a run that continues from `then` on another path of the processor; else empty.
[[nodiscard]] std::string other_isa(const RunNote& then, const RunNote& now);

[[nodiscard]] std::string to_text(const RunNote& note);
/// Also of notes that older versions wrote. Throws sherd::Error(BadData), naming `folder`.
[[nodiscard]] RunNote note_from_text(const std::string& text, const std::string& folder);

/// The configuration that a note holds. Throws sherd::Error(BadData), naming `folder`.
[[nodiscard]] config::RunConfig config_of(const RunNote& note, const std::string& folder);

/// Refuses to resume with settings or data that would make it another run: data, order, batch,
/// optimizer or precision. A setting or digest that the checkpoint does not know, since it is
/// older, counts as what that version did, or as unchanged. Throws sherd::Error(Usage), listing all
/// that differs with both values and what to do.
void check_same_run(const RunNote& then, const RunNote& now, const std::string& folder);

}  // namespace llm::train
