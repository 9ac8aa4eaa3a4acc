#include "launch/descriptor_limit.h"

#include <string>

#include <sys/resource.h>

#include "sherd/error.h"

namespace sherd::launch {

void raise_descriptor_limit(unsigned long least) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return;
  }
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised{limit.rlim_max, limit.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) {
      limit = raised;
    }
  }
  if (limit.rlim_cur < least) {
    throw Error(ExitCode::Unavailable,
                "this process may hold " + std::to_string(limit.rlim_cur) +
                    " files and connections open, and needs " + std::to_string(least) +
                    ": raise the hard limit (ulimit -Hn, LimitNOFILE, docker run --ulimit nofile)");
  }
}

}  // namespace sherd::launch
