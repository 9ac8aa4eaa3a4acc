#pragma once
// How a run begins: what is read and chosen before there is a model.

#include "llm/config/run_config.h"
#include "llm/inputs/batch.h"
#include "llm/inputs/run_data.h"
#include "llm/plan/run_plan.h"
#include "llm/setup/load_model.h"
#include "llm/setup/run_note.h"
#include "llm/text/tokenizer.h"
#include "llm/track/progress.h"
#include "sherd/world.h"

namespace llm::train {

/// The configuration with its choices made, but for a micro-batch that the data decides: a resumed
/// run computes as it started. Collective.
[[nodiscard]] config::RunConfig resolved(const config::RunConfig& config, sherd::World& world,
                                         const setup::Launch& launch = {});

/// What a run works on. `sherd check`, `data preview` and `watch` look at it without a run.
struct RunInputs : inputs::OpenData {
  setup::ModelShape model;
};

/// Reads tokenizer, shapes and data of a resolved configuration. Collective. Throws the same
/// sherd::Error on every rank: InputMissing, BadData, RanksDisagree, Usage. `say` is called on rank
/// 0 alone; `progress`, null on other ranks, is told what takes long.
[[nodiscard]] RunInputs open_inputs(const config::RunConfig& resolved, sherd::World& world,
                                    const track::Say& say, track::Progress* progress = nullptr);

/// Checks that model and checkpoints fit, before anything is allocated. Collective. Throws
/// sherd::Error: CannotWrite, OutOfMemory.
void require_room(const config::RunConfig& config, const setup::ModelShape& shape,
                  const inputs::RunLength& length, sherd::World& world, const track::Say& say);
/// Checks the disk alone: most_checkpoints() must fit beside what is there, counting the run's
/// earlier checkpoints, and so must the export at the end. Collective. Throws
/// sherd::Error(CannotWrite).
void require_room_on_disk(const config::RunConfig& config, const setup::ModelShape& shape,
                          const inputs::RunLength& length, sherd::World& world);

}  // namespace llm::train
