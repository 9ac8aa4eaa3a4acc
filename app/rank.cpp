#include "app/rank.h"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <iostream>
#include <optional>

#include <poll.h>
#include <unistd.h>

#include "app/live_line.h"
#include "files/system_text.h"
#include "launch/signals.h"
#include "launch/stop_request.h"
#include "llm/setup/agreement.h"
#include "llm/text/printable.h"
#include "sherd/error.h"
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
  if (on_signal_ == OnSignal::RequestStop) {
    const auto waiting = [world]() -> std::optional<std::string> {
      const auto wait = world.waiting();
      return wait ? std::optional(wait->what) : std::nullopt;
    };
    stop_watch_ = std::make_unique<sherd::launch::StopWatch>(
        environment_.rank,
        sherd::launch::StopWatch::Questions{[watch = watch_.get()] { return watch->stop_within(); },
                                            waiting, lost_});
  }
  return world;
}

void Rank::await_report() const {
  const bool is_told = environment_.supervisor_fd.has_value();
  watch_->await_loss(std::chrono::seconds(is_told ? 10 : 3));
}

int Rank::run(const std::function<int()>& work) {
  try {
    return work();
  } catch (const llm::setup::ReportedElsewhere&) {
    await_report();
    throw;
  }
}

void say(const std::string& line, bool json_on_stdout) {
  const std::string text = fitted(line, json_on_stdout ? STDERR_FILENO : STDOUT_FILENO);
  (json_on_stdout ? std::cerr : std::cout) << text << std::endl;  // seen at once, also in a pipe
}

void print_result(const std::string& line) {
  write_result(line + "\n");
}

void write_result(const std::string& text) {
  std::cout.flush();
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t put = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (put >= 0) {
      done += static_cast<std::size_t>(put);
    } else if (errno == EAGAIN) {  // another program has left it so
      pollfd ready{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      const std::string why = sherd::files::errno_text(errno);
      throw sherd::Error(sherd::ExitCode::StorageIo,
                         "standard output cannot be written to: " + why +
                             ". What was printed before is not the whole result.");
    }
  }
}

std::string for_stdout(const std::string& text) {
  return ::isatty(STDOUT_FILENO) == 1 ? llm::text::printable(text, llm::text::Lines::Keep) : text;
}

}  // namespace app
