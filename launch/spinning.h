#pragma once
// How long threads that wait for each other spin.

#include <optional>
#include <string>
#include <string_view>

#include "launch/rank_environment.h"

namespace sherd::launch {

/// Cores that this process may run on.
[[nodiscard]] int usable_cores();

/// Tasks other than this one that run at the moment, from the text of /proc/loadavg; 0 where it
/// does not say.
[[nodiscard]] int running_tasks_in(std::string_view loadavg);

/// OpenMP threads spin for milliseconds before they sleep, which costs nothing on idle cores, and
/// on busy ones takes the core from the thread that is waited for. The variable of the environment
/// that makes them spin shortly ("GOMP_SPINCOUNT=10000") where `threads` threads and the `busy`
/// tasks beside them exceed the cores; none where they have a core each. docs/design/threads.md has
/// the numbers.
[[nodiscard]] std::optional<std::string> spin_variable(int threads, int busy, int cores);

/// The same for this machine as it is now, for `ranks` ranks of OMP_NUM_THREADS threads (by default
/// of their share of the cores); none where the user has set GOMP_SPINCOUNT or OMP_WAIT_POLICY.
[[nodiscard]] std::optional<std::string> spin_variable_now(int ranks, const EnvLookup& get);

}  // namespace sherd::launch
