#pragma once
// The folder of a run: tried before anything that takes long, written to when the run begins.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/text/bad_sample.h"

namespace llm::train {

/// Where the step log goes: the path of its sink, or a file in the output folder.
[[nodiscard]] std::filesystem::path log_path(const config::RunConfig& config);

/// Where a run that has ended leaves its figures.
[[nodiscard]] std::string summary_path(const std::string& output);

/// Tries to write where checkpoints and the log will go, and leaves nothing. The folder is there.
/// Not collective: rank 0 does it. Throws sherd::Error(CannotWrite), naming the path.
void try_output(const config::RunConfig& config);

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
