#pragma once
// The flag --ignore-fields, for every program that reads a config.json.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace app {

inline void add_ignore_fields(CLI::App& command, std::vector<std::string>& fields) {
  command.add_option("--ignore-fields", fields, "fields of config.json to ignore: A,B")
      ->delimiter(',')
      ->allow_extra_args(false);
}

}  // namespace app
