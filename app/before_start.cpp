#include "app/before_start.h"

#include <thread>

#include <fmt/core.h>

#include "app/launch.h"
#include "app/recipe.h"
#include "launch/spinning.h"
#include "llm/inputs/data_options.h"
#include "sherd/error.h"

namespace app {

namespace {

constexpr int kMostRanksOfACore = 8;

}  // namespace

void require_cores_for(int ranks) {
  const int cores = sherd::launch::usable_cores();
  const int most = kMostRanksOfACore * cores;
  if (ranks > most) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("{} ranks are too many for the {} of this host: they would wait for each other "
                    "most of the time. Give at most {}, or start them anyway with sherd launch -n "
                    "{} --oversubscribe.",
                    ranks, cores == 1 ? "one core" : std::to_string(cores) + " cores", most,
                    ranks));
  }
}

void require_sound(const std::vector<std::string>& command, int world) {
  const std::string verb = command.size() > 1 ? command[1] : "";
  if (verb != "train" && verb != "check") {
    return;
  }
  std::vector<std::string> words(command.begin() + 2, command.end());
  static_cast<void>(take_ranks(words));
  std::erase(words, verb == "train" ? "--dry-run" : "--json");
  const llm::config::RunConfig config = load_recipe(
      words, [](const std::string&) {}, static_cast<int>(std::thread::hardware_concurrency()));
  static_cast<void>(llm::inputs::batch_shape(config.train, world));
}

}  // namespace app
