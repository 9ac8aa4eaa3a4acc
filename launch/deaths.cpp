#include "launch/deaths.h"

#include <algorithm>
#include <csignal>

#include "sherd/error.h"

namespace sherd::launch {
namespace {

/// Of deaths seen at the same moment, the smallest is taken as the cause: a kill comes from
/// outside; an abort or an exit may be the answer to a lost connection; exit 76 is.
int likelihood(const Death& death) {
  if (death.status.signal != 0) {
    return death.status.signal == SIGABRT ? 1 : 0;
  }
  return death.is_survivor() ? 3 : 2;
}

}  // namespace

std::string Death::text() const {
  return "rank " + std::to_string(rank) + " " + status.text();
}

bool Death::is_survivor() const {
  return status.signal == 0 && status.code == static_cast<int>(ExitCode::PeerLost);
}

void Deaths::add(std::vector<Death> fresh) {
  std::stable_sort(fresh.begin(), fresh.end(),
                   [](const Death& a, const Death& b) { return likelihood(a) < likelihood(b); });
  all_.insert(all_.end(), fresh.begin(), fresh.end());
}

int Deaths::like_cause() const {
  const ExitStatus status = cause().status;
  return static_cast<int>(std::count_if(all_.begin(), all_.end(), [&](const Death& death) {
    return death.status.code == status.code && death.status.signal == status.signal;
  }));
}

const Death& Deaths::cause() const {
  const auto found = std::find_if(all_.begin(), all_.end(),
                                  [](const Death& death) { return !death.is_survivor(); });
  return found == all_.end() ? all_.front() : *found;
}

}  // namespace sherd::launch
