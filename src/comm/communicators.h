#pragma once
// Makes the communicators that the engine knows as nothing but a Communicator
// (docs/design/communicators.md).

#include <chrono>
#include <memory>
#include <string>

#include "comm/c10d.h"
#include "comm/progress_board.h"
#include "comm/shared_memory.h"

namespace sherd::detail {

/// For ranks of several hosts: as many on each, which are consecutive in the group.
[[nodiscard]] std::unique_ptr<Communicator> make_hosts_communicator(ProcessGroups groups,
                                                                    HostMemory host);

/// For ranks that each have a device of their own.
[[nodiscard]] std::unique_ptr<Communicator> make_device_communicator(
    ProcessGroups groups, c10::Device device, ReduceScatter way = ReduceScatter::RankOrder);

/// For ranks whose devices do not exchange directly, for the reason `why`.
[[nodiscard]] std::unique_ptr<Communicator> make_staged_communicator(
    std::unique_ptr<Communicator> host, std::string why = "");

/// What ranks that are threads share of one communicator.
class InProcessHub;
[[nodiscard]] std::shared_ptr<InProcessHub> make_in_process_hub(
    const RankGroup& group, std::chrono::milliseconds timeout,
    std::shared_ptr<ProgressBoard> board);
[[nodiscard]] std::unique_ptr<Communicator> make_in_process_communicator(
    std::shared_ptr<InProcessHub> hub, int rank);

}  // namespace sherd::detail
