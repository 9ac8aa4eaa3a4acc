#pragma once
// Validators of flags. CLI11's own checks would print technical bounds and the numbers of
// enumerators in --help.

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace app {

/// "must be a number above 0".
[[nodiscard]] CLI::Validator above_zero();

/// "must be a number above 0 or none".
[[nodiscard]] CLI::Validator above_zero_or_none();

/// "must be a number of at least 0".
[[nodiscard]] CLI::Validator at_least_zero();

/// "must be a number from 0 to 1".
[[nodiscard]] CLI::Validator from_zero_to_one();

/// An integer within bounds that `--help` does not show.
[[nodiscard]] CLI::Validator within(std::int64_t least, std::int64_t most);

/// Lets the option take one of these words, in any spelling that the configuration accepts
/// (llm::config::spelling), and stores the listed spelling. `--help` shows "a|b|c".
CLI::Option* one_of(CLI::Option* option, const std::vector<std::string>& words);

/// Returns the keys of a map, for an option whose values it holds.
template <class Map>
[[nodiscard]] std::vector<std::string> names_in(const Map& map) {
  std::vector<std::string> names;
  for (const auto& [name, value] : map) {
    names.push_back(name);
  }
  return names;
}

}  // namespace app
