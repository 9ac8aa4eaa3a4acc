#pragma once
// Reads a configuration from a command line: a file, and a flag for each key.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "app/rank.h"
#include "llm/config/run_config.h"

namespace app {

/// Takes the file out of a command's words and reads it with the remaining flags. `--resume X` is
/// short for `--checkpoint.resume X`, and a run's folder for the config.toml in it. Reports old
/// names through `say`; `most_threads` is that of llm::config::load. Throws as that does.
[[nodiscard]] llm::config::RunConfig load_recipe(std::vector<std::string> words,
                                                 const std::function<void(const std::string&)>& say,
                                                 std::optional<int> most_threads = std::nullopt);

/// The same for a verb that writes nothing, and so needs no train.output.
[[nodiscard]] llm::config::RunConfig load_recipe_to_read(
    std::vector<std::string> words, const std::function<void(const std::string&)>& say);

/// load_recipe() on a rank that will compute here: more threads than processors are an error. All
/// ranks have the same words, so the first one reports errors; the others throw
/// llm::setup::ReportedElsewhere.
[[nodiscard]] llm::config::RunConfig load_recipe_on(const Rank& rank,
                                                    const std::vector<std::string>& words,
                                                    bool json_on_stdout = false);

/// Shows the words of load_recipe() in the usage line of `--help`.
void show_recipe_in_usage(CLI::App& verb);

}  // namespace app
