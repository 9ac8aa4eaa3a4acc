// sherd launch -n RANKS VERB … | sherd launch -n RANKS -- PROGRAM …

#include "app/launch.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include <fmt/core.h>
#include <unistd.h>

#include "app/before_start.h"
#include "app/numbers.h"
#include "app/verbs.h"
#include "launch/rank_environment.h"
#include "launch/spinning.h"
#include "launch/supervisor.h"
#include "llm/text/printable.h"
#include "sherd/error.h"

namespace app {

namespace {

using sherd::Error;
using sherd::ExitCode;
using sherd::launch::LaunchOptions;

// This program again, as it was called.
std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> command;
  for (std::string word; std::getline(file, word, '\0');) {
    command.push_back(word);
  }
  command.at(0) = std::filesystem::read_symlink("/proc/self/exe").string();
  return command;
}

// True if exit code 1 is an answer of all ranks, by the words after the program's.
bool answers(const std::vector<std::string>& command) {
  const std::string verb = command.size() > 1 ? command[1] : "";
  const bool is_dry = std::find(command.begin(), command.end(), "--dry-run") != command.end();
  return verb == "check" || verb == "bandwidth" || (verb == "train" && is_dry);
}

// OpenMP reads its variables when it is loaded, and that has happened: the program starts again.
void spin_shortly_where_cores_are_busy() {
  auto variable = sherd::launch::spin_variable_now(1, sherd::launch::process_environment);
  if (!variable) {
    return;
  }
  const std::size_t equals = variable->find('=');
  ::setenv(variable->substr(0, equals).c_str(), variable->substr(equals + 1).c_str(), 1);
  std::vector<std::string> command = own_command();
  std::vector<char*> words;
  for (std::string& word : command) {
    words.push_back(word.data());
  }
  words.push_back(nullptr);
  ::execv(words[0], words.data());  // if that fails, the program continues unchanged
}

int ranks_in(const std::string& text) {
  int ranks = 0;
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, ranks);
  if (fault != std::errc{} || stop != end || ranks < 1 || ranks > LaunchOptions::kMostRanks) {
    throw Error(ExitCode::Usage,
                text.empty() ? fmt::format("-n needs a number of ranks, from 1 to {}",
                                           LaunchOptions::kMostRanks)
                             : fmt::format("-n {} is not a number of ranks: give one from 1 to {}",
                                           text, LaunchOptions::kMostRanks));
  }
  return ranks;
}

bool asks_for_help(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "--help" || word == "-h" || word == "--version";
  });
}

// CLI11 consumes a `--`, but leaves everything from the first word that is not a flag untouched.
constexpr const char* kProgram = "program";

constexpr std::array kVerbs{"train", "eval", "generate", "bench", "check", "bandwidth"};

// torchrun takes its flags with underscores as well: --nproc_per_node. Those of what is launched
// stay as they are.
void name_flags_with_dashes(std::vector<std::string>& words) {
  for (std::string& word : words) {
    if (word == "--" || std::find(kVerbs.begin(), kVerbs.end(), word) != kVerbs.end()) {
      return;
    }
    if (word.starts_with("--")) {
      std::replace(word.begin(), std::find(word.begin(), word.end(), '='), '_', '-');
    }
  }
}

// A verb of this program, which gives true, or after `--` any program.
bool set_command(LaunchOptions& options, const std::vector<std::string>& words) {
  options.command = words;
  if (words.size() > 1 && words[0] == kProgram && words[1] == "--") {
    options.command.erase(options.command.begin(), options.command.begin() + 2);
    return false;
  }
  if (words.empty() || std::find(kVerbs.begin(), kVerbs.end(), words.front()) == kVerbs.end()) {
    throw Error(ExitCode::Usage,
                "sherd launch starts `train`, `eval`, `generate`, `bench`, `check` or `bandwidth`, "
                "and after `--` any program: "
                "sherd launch -n 2 train my.toml, sherd launch -n 2 -- ./my_program" +
                    (words.empty() ? std::string() : "; got '" + words.front() + "'"));
  }
  options.command.insert(options.command.begin(),
                         std::filesystem::read_symlink("/proc/self/exe").string());
  options.holds_stop_signals = true;
  options.answers = answers(options.command);
  if (asks_for_help(words)) {
    options.ranks = 1;  // one of them prints it
  }
  return true;
}

// `sherd slurm … -- --time=1:00:00` as `sherd slurm … --sbatch=--time=1:00:00`.
void name_options_of_sbatch(std::vector<std::string>& words) {
  const auto mark = std::find(words.begin(), words.end(), "--");
  if (mark != words.end()) {
    std::for_each(mark + 1, words.end(), [](std::string& word) { word = "--sbatch=" + word; });
    words.erase(mark);
  }
}

}  // namespace

std::vector<std::string> command_line(int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (!words.empty() && words.front() == "launch") {
    name_flags_with_dashes(words);
    const auto mark = std::find(words.begin(), words.end(), "--");
    if (mark != words.end()) {
      words.insert(mark, kProgram);
    }
  }
  if (!words.empty() && (words.front() == "slurm" || words.front() == "sweep")) {
    name_options_of_sbatch(words);
  }
  std::reverse(words.begin(), words.end());
  return words;
}

std::optional<int> take_ranks(std::vector<std::string>& words) {
  for (auto word = words.begin(); word != words.end(); ++word) {
    const bool is_long = word->starts_with("--ranks=");
    if (is_long || (word->starts_with("-n") && word->size() > 2)) {
      const int ranks = ranks_in(word->substr(is_long ? 8 : 2));
      words.erase(word);
      return ranks;
    }
    if (*word == "-n" || *word == "--ranks") {
      const int ranks = ranks_in(word + 1 == words.end() ? "" : *(word + 1));
      words.erase(word, word + 2);
      return ranks;
    }
  }
  return std::nullopt;
}

std::optional<int> start_ranks(std::optional<int> ranks) {
  using sherd::launch::Launcher;
  const auto environment = sherd::launch::detect(sherd::launch::process_environment);
  // A launcher that started one process has not said how many ranks there are: the shell of
  // `srun --pty`, `mpirun -n 1`, a container with RANK=0 WORLD_SIZE=1.
  const bool is_only_process =
      environment.world_size == 1 && environment.launcher != Launcher::SherdLaunch;
  if (is_only_process && ranks.value_or(1) > 1) {
    require_cores_for(*ranks);
    require_sound(own_command(), *ranks);
    return sherd::launch::supervise({.command = own_command(),
                                     .ranks = *ranks,
                                     .holds_stop_signals = true,
                                     .answers = answers(own_command())});
  }
  if (environment.launcher == Launcher::Alone) {
    spin_shortly_where_cores_are_busy();
    return std::nullopt;
  }
  if (ranks && *ranks != environment.world_size) {
    throw Error(ExitCode::Usage,
                fmt::format("-n {} differs from the {} that {} started: leave -n out", *ranks,
                            llm::text::counted(environment.world_size, "rank"),
                            to_text(environment.launcher)));
  }
  return std::nullopt;
}

void add_launch(CLI::App& program, Verb& chosen) {
  CLI::App* verb = program.add_subcommand(
      "launch", "Start a verb or a program on several ranks of this host and supervise them");
  auto options = std::make_shared<LaunchOptions>();
  auto timeout_s = std::make_shared<std::optional<int>>();
  auto grace_s = std::make_shared<std::optional<int>>();
  const int longest = static_cast<int>(sherd::launch::kLongestTimeout.count());
  verb->add_option("-n,--ranks,--nproc-per-node", options->ranks, "ranks to start on this host")
      ->required();
  auto* port = verb->add_option("--port", options->port,
                                "port of the rendezvous on 127.0.0.1 (default: a free one)")
                   ->check(within(1, 65535));
  auto oversubscribe = std::make_shared<bool>(false);
  verb->add_flag("--oversubscribe", *oversubscribe, "start more than eight ranks per core");
  auto hosts = std::make_shared<sherd::launch::LaunchHosts>();
  auto* nodes = verb->add_option("--nnodes,--nodes", hosts->hosts,
                                 "number of hosts; run sherd launch on each, with the same -n")
                    ->check(within(1, sherd::launch::LaunchHosts::kMostHosts))
                    ->excludes(port);
  const auto of_hosts = [&](const char* flags, auto& value, const char* what) {
    return verb->add_option(flags, value, what)->needs(nodes);
  };
  of_hosts("--node-rank", hosts->number, "number of this host, from 0");
  of_hosts("--master-addr", hosts->master_address, "name or address of host 0");
  of_hosts("--master-port", hosts->master_port,
           "port of rank 0, the same on all hosts (default: 29500)")
      ->check(within(1, 65535));
  verb->add_option("--timeout", *timeout_s,
                   "seconds that ranks wait for each other before they exit with 80 (default: 600)")
      ->check(within(1, longest));
  verb->add_option("--grace", *grace_s,
                   "seconds that ranks have to stop on request before they are killed (default: "
                   "what they need; once one has stopped, 60 s and three saves)")
      ->check(within(1, longest));
  verb->prefix_command();
  verb->footer(
      "Examples: sherd launch -n 2 train my.toml --optim.lr 1e-5\n"
      "          sherd launch -n 2 -- ./my_program its arguments\n"
      "          sherd launch --nnodes 2 --node-rank 0 --master-addr host0 -n 8 train my.toml");
  verb->callback([verb, options, hosts, nodes, timeout_s, grace_s, oversubscribe, &chosen] {
    const bool is_verb = set_command(*options, verb->remaining());
    if (nodes->count() > 0 && hosts->hosts > 1) {
      options->hosts = *hosts;
    }
    if (*timeout_s) {
      options->timeout = std::chrono::seconds(**timeout_s);
    }
    if (*grace_s) {
      options->stop_grace = std::chrono::seconds(**grace_s);
    }
    // Another number of ranks is refused by supervise().
    const bool may_start = options->ranks >= 1 && options->ranks <= LaunchOptions::kMostRanks;
    if (is_verb && may_start && !asks_for_help(options->command)) {
      if (!*oversubscribe) {
        require_cores_for(options->ranks);
      }
      require_sound(options->command, hosts->hosts * options->ranks);
    }
    chosen = [options] { return sherd::launch::supervise(*options); };
  });
}

}  // namespace app
