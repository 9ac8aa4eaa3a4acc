#pragma once
// Where a run starts: at the model or at a checkpoint, without losing a later one.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/inputs/run_data.h"
#include "llm/model/causal_lm.h"
#include "llm/setup/run_note.h"
#include "llm/track/progress.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"

namespace llm::train {

/// A checkpoint that a run may begin from.
struct Candidate {
  std::string folder;
  std::int64_t step = 0;
  std::vector<config::Difference> changes = {};  ///< changed_numbers() since it was saved
};

/// What `checkpoint.resume` comes to.
struct ResumePlan {
  std::vector<Candidate> candidates;  ///< newest first; the next one serves if one is damaged
  std::string origin;                 ///< RunNote::origin
  bool overwrite = false;             ///< an earlier run's checkpoints are to be deleted
  std::string overwritten_by = {};    ///< RunNote::overwritten_by
};

/// Decides from what is on disk, before any weights are loaded:
///   "auto"       the newest checkpoint of train.output, if there is one;
///   "never"      the model; refused where train.output holds checkpoints;
///   "overwrite"  the model; an earlier run's checkpoints in train.output are deleted. It acts
///   once:
///                where the newest of them are of a run that this launch, or a command with the
///                same settings and data that has not come to its end, began by overwriting, it is
///                "auto";
///   a path       that checkpoint, or that run's newest; refused where train.output holds later
///                ones, unless they are of a run that began from this path: then the newest of
///                those, so that the same command continues.
/// A damaged checkpoint is passed over, with a line, where there is an older good one. Collective;
/// `model` holds shapes only. Throws the same sherd::Error on every rank: InputMissing, BadData,
/// Usage for another run's settings, model or data, CannotWrite where checkpoints would be lost.
[[nodiscard]] ResumePlan plan_resume(const config::RunConfig& config, const setup::RunNote& now,
                                     const model::CausalLmImpl& model, const setup::Launch& launch,
                                     sherd::World& world, const track::Say& say);

/// The folder of the checkpoint that `config` would begin at, as far as names tell; empty: at the
/// model. None where more has to be read to know. Not collective.
[[nodiscard]] std::optional<std::string> likely_start(const config::RunConfig& config);

/// The configuration, as TOML, of the checkpoint that `config` would continue from, as far as that
/// is known before the data is read; empty if there is none that can be read. Not collective.
[[nodiscard]] std::string config_to_resume(const config::RunConfig& config,
                                           const setup::Launch& launch);

/// The base that the newest checkpoint names which `config` would continue from; none if there is
/// none that can be read. Its digest need not be computed again. Not collective.
[[nodiscard]] setup::BaseWeights known_base(const config::RunConfig& config);

/// Restores model and optimizer from the first candidate that is not damaged; a damaged one of
/// train.output is set aside. Returns the one used, or step 0 and no folder. Collective. Throws
/// sherd::Error as sherd::load_checkpoint does, if none is left.
[[nodiscard]] Candidate restore(const ResumePlan& plan, const config::RunConfig& config,
                                sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer,
                                const track::Say& say);

}  // namespace llm::train
