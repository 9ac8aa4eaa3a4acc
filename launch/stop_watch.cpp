#include "launch/stop_watch.h"

#include <algorithm>
#include <utility>

#include <poll.h>

#include "files/quiet_thread.h"
#include "launch/end_process.h"
#include "launch/running_time.h"
#include "sherd/error.h"

namespace sherd::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenDeadlineLooks{200};
// To say what is lost before the launcher kills the process.
constexpr milliseconds kLongestMargin{1000};

}  // namespace

StopWatch::StopWatch(int rank, Questions questions)
    : rank_(rank), questions_(std::move(questions)), stop_(make_pipe()) {
  thread_ = files::start_quiet_thread([this] { watch(); });
}

StopWatch::~StopWatch() {
  stop_.write_end.close();
  thread_.join();
}

void StopWatch::watch() const {
  pollfd stopped{stop_.read_end.get(), POLLIN, 0};
  std::optional<RunningTime> since_announced;
  while (::poll(&stopped, 1, static_cast<int>(kBetweenDeadlineLooks.count())) <= 0) {
    const auto deadline = questions_.deadline();
    if (!deadline) {
      continue;
    }
    if (!since_announced) {
      since_announced.emplace();
    }
    const milliseconds margin = std::min<milliseconds>(kLongestMargin, milliseconds(*deadline) / 4);
    if (since_announced->tick() >= *deadline - margin) {
      end(*deadline);
    }
  }
}

void StopWatch::end(std::chrono::seconds deadline) const {
  const auto waiting = questions_.waiting();
  const std::string lost = questions_.lost();
  const ExitCode code = lost.empty() ? ExitCode::Stopped : ExitCode::StorageIo;
  end_process("sherd: rank " + std::to_string(rank_) + " was asked to stop within " +
                  std::to_string(deadline.count()) + " s and " +
                  (waiting ? "still waits for the others in " + *waiting : "is not done") + ". " +
                  (lost.empty() ? "Nothing is lost" : lost + " are lost: no checkpoint has them") +
                  "; stopping (exit " + std::to_string(static_cast<int>(code)) +
                  "). A larger --grace gives it more time",
              code);
}

}  // namespace sherd::launch
