#pragma once
// A configuration from the words of a command line: a file, and a flag for each key.

#include <functional>
#include <string>
#include <vector>

#include "app/rank.h"
#include "llm/config/run_config.h"

namespace app {

/// Takes the file out of a command's words and reads it with the flags that remain; `--resume X` is
/// short for `--checkpoint.resume X`. `say` is told of old names. Throws sherd::Error as
/// llm::config::load does.
[[nodiscard]] llm::config::RunConfig load_recipe(
    std::vector<std::string> words, const std::function<void(const std::string&)>& say);

/// The same on a rank: the first speaks for all, since their words are the same. On others throws
/// llm::train::ReportedElsewhere in its place.
[[nodiscard]] llm::config::RunConfig load_recipe_on(const Rank& rank,
                                                    const std::vector<std::string>& words);

}  // namespace app
