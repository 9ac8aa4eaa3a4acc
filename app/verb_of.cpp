#include "app/verb_of.h"

#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "app/launch.h"
#include "app/verbs.h"
#include "launch/rank_environment.h"
#include "sherd/error.h"

namespace app {
namespace {

// An unknown word in place of the command; CLI11 would only say that a subcommand is missing.
void check_verb(const CLI::App& program, const std::string& word) {
  bool known = word.empty() || word.front() == '-';
  std::string verbs;
  for (const CLI::App* verb : program.get_subcommands(nullptr)) {
    known = known || verb->get_name() == word;
    verbs += (verbs.empty() ? "" : ", ") + verb->get_name();
  }
  if (!known) {
    throw sherd::Error(sherd::ExitCode::Usage, "unknown command '" + word + "': the commands are " +
                                                   verbs + ". See sherd --help.");
  }
}

// Only one of several ranks prints the help.
bool is_first_rank() {
  try {
    return sherd::launch::detect(sherd::launch::process_environment).rank == 0;
  } catch (const sherd::Error&) {
    return true;
  }
}

// `sherd help` and `sherd help train` as flags.
std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words = command_line(argc, argv);  // the last comes first
  if (!words.empty() && words.back() == "help") {
    words.pop_back();
    words.insert(words.begin(), "--help");
  }
  return words;
}

// Prints CLI11's error with the verb whose help explains more.
void report(const CLI::App& program, const CLI::ParseError& error) {
  std::string verb = program.get_name();
  for (const CLI::App* used : program.get_subcommands()) {
    verb += " " + used->get_name();
  }
  std::cerr << fmt::format("{}: {}. See {} --help.", verb, error.what(), verb) << std::endl;
}

}  // namespace

Verb verb_of(int argc, char** argv) {
  CLI::App program("Fine-tune, evaluate and export Hugging Face models, sharded over processes.");
  program.name("sherd");
  program.set_version_flag("--version", fmt::format("{}.{}.{}", sherd::kVersion.major,
                                                    sherd::kVersion.minor, sherd::kVersion.patch));
  program.require_subcommand(1);
  Verb chosen;
  add_train(program, chosen);
  add_eval(program, chosen);
  add_generate(program, chosen);
  add_chat(program, chosen);
  add_export(program, chosen);
  add_import(program, chosen);
  add_bandwidth(program, chosen);
  add_bench(program, chosen);
  add_plan(program, chosen);
  add_check(program, chosen);
  add_sweep(program, chosen);
  add_data(program, chosen);
  add_compare(program, chosen);
  add_watch(program, chosen);
  add_launch(program, chosen);
  add_slurm(program, chosen);
  add_fetch(program, chosen);
  add_recipes(program, chosen);
  add_doctor(program, chosen);
  std::vector<std::string> words = words_of(argc, argv);
  check_verb(program, words.empty() ? "" : words.back());
  try {
    program.parse(words);
  } catch (const CLI::ParseError& error) {
    const bool is_help = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    if (!is_help) {
      report(program, error);
    } else if (is_first_rank()) {
      program.exit(error);
    }
    return [is_help] {
      return static_cast<int>(is_help ? sherd::ExitCode::Done : sherd::ExitCode::Usage);
    };
  }
  return chosen;
}

}  // namespace app
