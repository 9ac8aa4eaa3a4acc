#include "launch/stop_watch.h"

#include <algorithm>
#include <utility>

#include <poll.h>

#include "launch/end_process.h"
#include "launch/quiet_thread.h"
#include "launch/stop_request.h"

namespace sherd::launch {
namespace {

constexpr std::chrono::milliseconds kLongestNap{500};

}  // namespace

StopWatch::StopWatch(int rank, std::chrono::milliseconds grace,
                     std::function<std::optional<Waiting>()> waiting)
    : rank_(rank), grace_(grace), waiting_(std::move(waiting)), stop_(make_pipe()) {
  thread_ = start_quiet_thread([this] { watch(); });
}

StopWatch::~StopWatch() {
  stop_.write_end.close();
  thread_.join();
}

void StopWatch::watch() const {
  pollfd stopped{stop_.read_end.get(), POLLIN, 0};
  while (::poll(&stopped, 1, static_cast<int>(kLongestNap.count())) <= 0) {
    look();
  }
}

void StopWatch::look() const {
  const auto asked = StopRequest::requested_at();
  const auto waiting = asked ? waiting_() : std::nullopt;
  if (!waiting) {
    return;
  }
  const auto waited = std::chrono::steady_clock::now() - std::max(waiting->since, *asked);
  if (waited >= grace_) {
    end_process("sherd: rank " + std::to_string(rank_) + " was asked to stop, and has waited " +
                    std::to_string(std::chrono::ceil<std::chrono::seconds>(grace_).count()) +
                    " s for the others in " + waiting->what +
                    "; stopping (exit 75): the same command goes on from the last checkpoint",
                ExitCode::Stopped);
  }
}

}  // namespace sherd::launch
