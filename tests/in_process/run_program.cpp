#include "tests/in_process/run_program.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

#include "app/failure.h"
#include "app/hub_names.h"
#include "app/launch.h"
#include "app/rank.h"
#include "app/recipe.h"
#include "app/threads.h"
#include "app/train.h"
#include "app/verb_of.h"
#include "launch/rank_environment.h"
#include "llm/setup/device.h"
#include "llm/train/trainer.h"
#include "sherd/backend.h"
#include "sherd/world.h"
#include "tests/in_process/captured.h"

namespace sherd::test {

namespace {

using Clock = std::chrono::steady_clock;

// Ranks of one `sherd train`: what they are asked, and how each of them ended.
struct Ranks {
  std::vector<Arguments> words;  // of each
  Stop stop = {};
  std::atomic<Clock::time_point> asked_at = Clock::time_point{};
  std::vector<std::optional<app::Failure>> failures = {};
  std::vector<int> codes = {};

  [[nodiscard]] bool is_asked() const { return asked_at.load() != Clock::time_point{}; }
};

llm::train::RunHooks hooks_of(Ranks& ranks, int rank) {
  llm::train::RunHooks hooks = app::hooks_that_print(launch::detect(launch::process_environment));
  hooks.output.say = [&ranks, print = hooks.output.say](const std::string& line) {
    print(line);
    if (!ranks.stop.text.empty() && !ranks.is_asked() &&
        line.find(ranks.stop.text) != std::string::npos) {
      ranks.asked_at = Clock::now();
    }
  };
  hooks.stop_requested = [&ranks, rank,
                          in_vain = std::make_shared<std::atomic<int>>(ranks.stop.asked_before)] {
    return ranks.is_asked() && ranks.stop.rank.value_or(rank) == rank && (*in_vain)-- <= 0;
  };
  return hooks;
}

// What `sherd train` does on a rank (app/train.cpp), but for signals and sockets.
int train_on_rank(Ranks& ranks, int rank, const World& world) {
  Arguments words = ranks.words.at(static_cast<std::size_t>(rank));
  const bool dry = std::erase(words, "--dry-run") > 0;
  llm::config::RunConfig config = app::load_recipe(
      words,
      [&](const std::string& line) {
        if (rank == 0) {
          app::say(line);
        }
      },
      static_cast<int>(std::thread::hardware_concurrency()));
  app::HubNames({.may_fetch = !dry}).resolve(config);
  if (config.device.threads) {
    app::use_threads(*config.device.threads);
  }
  const Gpus none{{}, "ranks that are threads of a test compute on the CPU."};
  static_cast<void>(llm::setup::chosen_device(config.device.kind, none, world.size(),
                                              [](const std::string& /*line*/) {}));
  const llm::train::RunHooks hooks = hooks_of(ranks, rank);
  return dry ? (llm::train::dry_run(config, world, hooks) ? 0 : 1)
             : app::exit_code_of(llm::train::run(config, world, hooks), config, world, hooks);
}

// On a thread for each; the others of a rank that fails alone fail when they have waited for it.
void train_on_threads(Ranks& ranks) {
  const int size = static_cast<int>(ranks.words.size());
  const int threads_before = at::get_num_threads();
  std::vector<World> worlds =
      size == 1 ? std::vector<World>{World::alone()} : World::in_process(size);
  ranks.failures.resize(worlds.size());
  ranks.codes.resize(worlds.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    threads.emplace_back([&ranks, rank, at, world = std::move(worlds[at])] {
      try {
        ranks.codes[at] = train_on_rank(ranks, rank, world);
      } catch (const std::exception&) {
        ranks.failures[at] = app::current_failure();
        ranks.codes[at] = static_cast<int>(ranks.failures[at]->code);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  at::set_num_threads(threads_before);
}

// As a launcher: the first failure of a rank that speaks for itself is told.
int train_alike(const Arguments& words, int size, const Stop& stop, double& seconds) {
  Ranks ranks{std::vector<Arguments>(static_cast<std::size_t>(size), words), stop};
  const Clock::time_point begun_at = Clock::now();
  train_on_threads(ranks);
  seconds = std::chrono::duration<double>(Clock::now() -
                                          (ranks.is_asked() ? ranks.asked_at.load() : begun_at))
                .count();
  for (const auto& failure : ranks.failures) {
    if (failure && !failure->message.empty()) {
      return app::report(*failure);
    }
  }
  return *std::max_element(ranks.codes.begin(), ranks.codes.end());
}

// The number of ranks; what remains are the verb and its words.
int take_launch(Arguments& arguments) {
  int ranks = 1;
  if (arguments.size() > 3 && arguments[0] == "launch" && arguments[1] == "-n") {
    ranks = std::stoi(arguments[2]);
    arguments.erase(arguments.begin(), arguments.begin() + 3);
  }
  const std::string& verb = arguments.front();
  if (verb == "data" || verb == "plan") {  // which start none
    return ranks;
  }
  return app::take_ranks(arguments).value_or(ranks);
}

int run_verb(Arguments arguments) {
  arguments.insert(arguments.begin(), "sherd");
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  try {
    return app::verb_of(static_cast<int>(argv.size()), argv.data())();
  } catch (const std::exception&) {
    return app::report(app::current_failure());
  }
}

int run_in_process(Arguments arguments, const Stop& stop, double& seconds) {
  const Arguments given = arguments;
  int ranks = 1;
  try {
    ranks = take_launch(arguments);
  } catch (const std::exception&) {
    return app::report(app::current_failure());
  }
  if (arguments.front() != "train") {
    if (ranks > 1 || given.front() == "launch") {
      throw std::invalid_argument(arguments.front() + " on several ranks needs processes");
    }
    return run_verb(given);
  }
  arguments.erase(arguments.begin());
  return train_alike(arguments, ranks, stop, seconds);
}

}  // namespace

Ended run_program(const Arguments& arguments, const Arguments& variables) {
  double seconds = 0;
  Ended ended = captured(variables, [&] { return run_in_process(arguments, {}, seconds); });
  ended.seconds = seconds;
  return ended;
}

Ended run_until(const Stop& stop, const Arguments& arguments) {
  double seconds = 0;
  Ended ended = captured({}, [&] { return run_in_process(arguments, stop, seconds); });
  ended.seconds = seconds;
  return ended;
}

std::pair<Ended, Ended> run_unlike_ranks(const Arguments& zero, const Arguments& one) {
  Ranks ranks{{{zero.begin() + 1, zero.end()}, {one.begin() + 1, one.end()}}};
  const Ended both = captured({}, [&] {
    train_on_threads(ranks);
    return 0;
  });
  const auto ended = [&](std::size_t rank) {
    const auto& failure = ranks.failures[rank];
    return Ended{ranks.codes[rank], rank == 0 ? both.out : "",
                 (rank == 0 ? both.err : "") + (failure ? failure->message : "")};
  };
  return {ended(0), ended(1)};
}

}  // namespace sherd::test
