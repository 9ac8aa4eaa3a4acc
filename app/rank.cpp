#include "app/rank.h"

#include <iostream>

#include "launch/stop_request.h"
#include "sherd/fully_shard.h"

namespace app {

using sherd::launch::Launcher;

Rank::Rank(OnSignal on_signal)
    : environment_(sherd::launch::detect(sherd::launch::process_environment)) {
  if (on_signal == OnSignal::RequestStop) {
    sherd::launch::StopRequest::install(environment_.launcher != Launcher::Alone);
  }
  sherd::explain_access_to_sharded_parameters();
  watch_ = std::make_unique<sherd::launch::PeerWatch>(environment_);
}

sherd::World Rank::join(const sherd::WorldOptions& options) {
  return sherd::World::from_environment(options);
}

void say(const std::string& line, bool json_on_stdout) {
  (json_on_stdout ? std::cerr : std::cout) << line << std::endl;  // seen at once, also in a pipe
}

}  // namespace app
