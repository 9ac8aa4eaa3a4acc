#pragma once
// Slurm's short forms for lists of hosts and of task counts.

#include <string>
#include <string_view>
#include <vector>

namespace sherd::launch {

/// The hosts of a Slurm node list, in order: "gpu[01-03,7],login" is gpu01, gpu02, gpu03, gpu7,
/// login. A name may hold several brackets; the leftmost varies slowest. Throws `Error` (Usage)
/// with the list and what is wrong in it: a bracket not closed, a range that runs backwards or is
/// not a number, an empty name, more than 65,536 hosts.
[[nodiscard]] std::vector<std::string> expand_host_list(std::string_view list);

/// The tasks on each node from Slurm's SLURM_TASKS_PER_NODE: "2(x3),1" is 2, 2, 2, 1. Throws
/// `Error` (Usage) with the text if it is malformed.
[[nodiscard]] std::vector<int> expand_tasks_per_node(std::string_view text);

}  // namespace sherd::launch
