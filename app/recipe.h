#pragma once
// A configuration from the words of a command line: a file, and a flag for each key.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "app/rank.h"
#include "llm/config/run_config.h"

namespace app {

/// Takes the file out of a command's words and reads it with the flags that remain; `--resume X` is
/// short for `--checkpoint.resume X`, and a run's folder for the config.toml in it. `say` is told
/// of old names; `most_threads` as llm::config::load takes it. Throws sherd::Error as that does.
[[nodiscard]] llm::config::RunConfig load_recipe(std::vector<std::string> words,
                                                 const std::function<void(const std::string&)>& say,
                                                 std::optional<int> most_threads = std::nullopt);

/// The same for a verb that writes nothing, and so needs no train.output.
[[nodiscard]] llm::config::RunConfig load_recipe_to_read(
    std::vector<std::string> words, const std::function<void(const std::string&)>& say);

/// load_recipe() on a rank, which is to compute here: more threads than there are processors are a
/// fault. The first speaks for all, since their words are the same. On others throws
/// llm::train::ReportedElsewhere in its place.
[[nodiscard]] llm::config::RunConfig load_recipe_on(const Rank& rank,
                                                    const std::vector<std::string>& words,
                                                    bool json_on_stdout = false);

/// `--help` of a verb whose other words are load_recipe's shows them.
void show_recipe_in_usage(CLI::App& verb);

}  // namespace app
