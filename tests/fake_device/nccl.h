#pragma once
// NCCL between fake devices of one process: what Sherd asks of it, on a stream of its own.

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tests/fake_device/streams.h"

namespace sherd::fake {

/// A process group, by rank, of ranks on these devices.
[[nodiscard]] std::vector<c10::intrusive_ptr<c10d::Backend>> make_fake_nccl(
    const std::vector<c10::Device>& devices);

/// From now on the rank's network fails: `exchange` 0: where it connects; n: at its nth exchange
/// over any of its groups. Rank −1: nothing fails.
void break_network(int rank, int exchange);
/// What NCCL said last on a rank, as c10d passes it on.
[[nodiscard]] std::string last_nccl_error(int rank);

}  // namespace sherd::fake
