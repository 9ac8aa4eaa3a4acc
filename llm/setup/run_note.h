#pragma once
// What a checkpoint records about the run it belongs to.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/inputs/run_data.h"
#include "llm/setup/base_weights.h"

namespace llm::setup {

/// What a model folder says, apart from its weights, that decides what is computed, by name.
using ModelValues = std::vector<std::pair<std::string, std::string>>;

/// The reference of a run that learns from preference pairs: its model before the first step. None
/// where the model is its own with the adapter off.
struct ReferenceKey {
  std::string sha256 = {};   ///< of everything that decides its log-probabilities
  std::string weights = {};  ///< start_weights() alone
  [[nodiscard]] bool empty() const { return sha256.empty(); }
  bool operator==(const ReferenceKey&) const = default;
};

/// Kept as the checkpoint's note.
struct RunNote {
  std::int64_t step = 0;         ///< steps done: the position in the data follows from it
  std::int64_t total_steps = 0;  ///< the schedule's length
  inputs::DataIdentity data;
  std::string model;            ///< the source model's folder, absolute
  ModelValues model_values;     ///< of that folder at the start; empty in older checkpoints
  std::string config;           ///< the run's configuration, as TOML
  double loss_scale = 0;        ///< of a GradScaler after the step; 0: none was used
  std::int64_t good_steps = 0;  ///< steps since that scale changed
  std::string isa;     ///< the path of the processor (ops/cpu/isa.h); empty where not known
  std::string origin;  ///< the checkpoint or run that this one began from; empty: the model
  /// The launch that began the run with checkpoint.resume = "overwrite" ("Slurm job 12", "torchrun
  /// abc", "a command"); empty: it did not begin like that.
  std::string overwritten_by;
  std::int64_t skipped_steps = 0;  ///< left out so far, as train.on_non_finite = "skip" does
  /// The text of the chat template by which conversations were learned; empty: none were.
  std::string chat_template = {};
  /// The weights of `model`, where only a part of the parameters is trained: the checkpoint holds
  /// that part. Empty: it holds the whole model.
  BaseWeights base = {};
  ReferenceKey reference = {};  ///< of the run at its first step
};

/// Who starts a run: what restarts by the same launcher have in common.
struct Launch {
  std::string id = "a command";  ///< "Slurm job 12", "torchrun abc"
  bool restarted = false;        ///< the launcher has started this launch before
};

/// The note of a run at step 0.
[[nodiscard]] RunNote note_of_run(const config::RunConfig& config, const inputs::DataIdentity& data,
                                  std::int64_t total_steps);

/// A notice for a run that continues from `then` on another path of the processor; else empty.
[[nodiscard]] std::string other_isa(const RunNote& then, const RunNote& now);

[[nodiscard]] std::string to_text(const RunNote& note);
/// Also of notes that older versions wrote. Throws sherd::Error(BadData), naming `folder`.
[[nodiscard]] RunNote note_from_text(const std::string& text, const std::string& folder);

/// The configuration that a note holds. Throws sherd::Error(BadData), naming `folder`.
[[nodiscard]] config::RunConfig config_of(const RunNote& note, const std::string& folder);

/// Refuses to resume what would be another run: with other OnResume::Fixed settings, another
/// content of the model folder, another base, or other training data. A setting or digest that the
/// checkpoint does not know, since it is older, counts as what that version did, or as unchanged.
/// Throws sherd::Error(Usage), listing all that differs with both values and what to do.
void check_same_run(const RunNote& then, const RunNote& now, const std::string& folder);

/// The OnResume::Numbers settings that differ, of runs that check_same_run() accepts. A length that
/// is given in another way and comes to the same number of steps does not differ. Throws
/// sherd::Error(BadData), naming `folder`.
[[nodiscard]] std::vector<config::Difference> changed_numbers(const RunNote& then,
                                                              const RunNote& now,
                                                              const std::string& folder);

/// "changed since step 4: optim.lr 0.001 -> 0.0001, …"; empty where nothing differs.
[[nodiscard]] std::string changes_line(std::int64_t step,
                                       const std::vector<config::Difference>& changes);

/// The values of a model folder that differ, a line each with both values; empty where none does,
/// or one of the two is not known.
[[nodiscard]] std::string changed_model(const ModelValues& then, const ModelValues& now);

}  // namespace llm::setup
