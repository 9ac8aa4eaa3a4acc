#pragma once
// The folder of a run: tried before anything that takes long, written to when the run begins.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/text/bad_sample.h"
#include "sherd/world.h"

namespace llm::train {

/// Does `work`, which writes `name` and of which no run fails: where the disk is full, `warn` says
/// so. Returns whether there was room. Throws what else `work` throws.
bool if_there_is_room(const std::string& name,
                      const std::function<void(const std::string& line)>& warn,
                      const std::function<void()>& work);

/// Where the step log goes: the path of its sink, or a file in the output folder.
[[nodiscard]] std::filesystem::path log_path(const config::RunConfig& config);

/// Where a run that has ended leaves its figures.
[[nodiscard]] std::string summary_path(const std::string& output);

/// Tries to write where checkpoints and the log will go, and leaves nothing. The folder is there.
/// A run writes each file of its folder under a temporary name and renames it; a link in the place
/// of one is refused. Not collective: rank 0 does it. Throws sherd::Error(CannotWrite), naming the
/// path.
void try_output(const config::RunConfig& config);

/// Tries train.output on every rank, after rank 0 has locked it: all must find there what rank 0
/// writes, since each writes its part of a checkpoint, and all must be able to write. Collective;
/// nothing is left. Throws the same sherd::Error on every rank: RanksDisagree, naming the ranks
/// that see another folder and where they looked; CannotWrite.
void require_one_output(const config::RunConfig& config, sherd::World& world);
/// The same of something that rank 0 has just made in train.output or next to it: all must find
/// `made`. Collective. Throws sherd::Error(RanksDisagree).
void require_seen_by_all(const std::filesystem::path& made, sherd::World& world);

/// Removes the temporary files that a killed run has left in the folder, and nothing else. Call it
/// with the lock held. Not collective.
void remove_temporary_files(const std::string& output);

/// try_output() of a run that is only planned: the folder may be missing, and is missing again
/// afterwards. Not collective. Throws sherd::Error(CannotWrite), naming the path.
void try_planned_output(const config::RunConfig& config);

/// Lists samples that were left out in `bad_samples.jsonl` of the folder, and says how many;
/// removes that file where there are none. Not collective. Throws sherd::Error(CannotWrite,
/// StorageIo).
void write_bad_samples(const std::string& output, const std::vector<text::BadSample>& bad,
                       const std::function<void(const std::string& line)>& say);

/// Leaves the whole configuration in the folder, as `config.toml`. Not collective. Throws
/// sherd::Error(CannotWrite).
void write_config(const config::RunConfig& config);

}  // namespace llm::train
