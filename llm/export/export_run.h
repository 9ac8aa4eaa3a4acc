#pragma once
// The Hugging Face folder that a run leaves at its end: `checkpoint.export`.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "llm/config/run_config.h"
#include "llm/runs/best_evaluation.h"
#include "llm/setup/load_model.h"
#include "llm/track/progress.h"
#include "sherd/world.h"

namespace llm::exports {

/// Where it lies: `export` in the run's folder. `export.json` beside it says of which checkpoint it
/// is, and that a run left it.
[[nodiscard]] std::string export_folder(const std::string& output);

/// Refuses a folder in its place that no run left: it would be replaced. Not collective: rank 0
/// does it. Throws sherd::Error(CannotWrite).
void require_place_of_export(const config::RunConfig& config);

/// What the export takes on the disk of the run's folder: weights and what is copied beside them; 0
/// where none is made. Not collective. Throws sherd::Error for what would end the export of a
/// finished run: as io::copied_bytes() and reading the weights' headers do.
[[nodiscard]] std::int64_t export_bytes(const config::RunConfig& config,
                                        const setup::ModelShape& shape);

/// Exports, as `config` says, the checkpoint in `last` or that of the best evaluation, unless that
/// has been done. The folder appears under its name whole, in the place of an earlier one. Rank 0
/// works, and the others wait a tensor at a time. Collective. False if rank 0 was asked to stop
/// before the end: then nothing of it is left. Where no evaluation is the best, that is told, and
/// nothing exported. Throws sherd::Error on every rank: InputMissing
/// where the best checkpoint is gone, and as CheckpointExport does.
[[nodiscard]] bool export_run(const config::RunConfig& config, const std::string& last,
                              const std::optional<runs::BestEvaluation>& best, sherd::World& world,
                              const std::function<bool()>& stop_requested, const track::Say& say);

}  // namespace llm::exports
