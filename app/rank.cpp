#include "app/rank.h"

#include <chrono>
#include <iostream>
#include <optional>

#include "launch/signals.h"
#include "launch/stop_request.h"
#include "llm/train/agreement.h"
#include "sherd/fully_shard.h"

namespace app {

using sherd::launch::Launcher;

Rank::Rank(OnSignal on_signal)
    : environment_(sherd::launch::detect(sherd::launch::process_environment)),
      on_signal_(on_signal) {
  if (on_signal == OnSignal::RequestStop) {
    sherd::launch::StopRequest::install(environment_.launcher != Launcher::Alone);
  }
  sherd::launch::release_stop_signals();
  sherd::explain_access_to_sharded_parameters();
  watch_ = std::make_unique<sherd::launch::PeerWatch>(environment_);
}

sherd::World Rank::join(const sherd::WorldOptions& options) {
  sherd::World world = sherd::World::from_environment(options);
  if (on_signal_ == OnSignal::RequestStop && world.size() > 1) {
    const std::chrono::milliseconds timeout = options.timeout.value_or(
        environment_.timeout ? std::chrono::milliseconds(*environment_.timeout)
                             : sherd::WorldOptions::kDefaultTimeout);
    stop_watch_ = std::make_unique<sherd::launch::StopWatch>(
        environment_.rank, timeout / 10,
        [world]() -> std::optional<sherd::launch::StopWatch::Waiting> {
          const auto wait = world.waiting();
          return wait ? std::optional(sherd::launch::StopWatch::Waiting{wait->what, wait->since})
                      : std::nullopt;
        });
  }
  return world;
}

int Rank::run(const std::function<int()>& work) {
  try {
    return work();
  } catch (const llm::train::ReportedElsewhere&) {
    const bool is_told = environment_.supervisor_fd.has_value();
    watch_->await_loss(std::chrono::seconds(is_told ? 10 : 1));
    throw;
  }
}

void say(const std::string& line, bool json_on_stdout) {
  (json_on_stdout ? std::cerr : std::cout) << line << std::endl;  // seen at once, also in a pipe
}

}  // namespace app
