#pragma once
// NCCL between fake devices of one process: what Sherd asks of it, on a stream of its own.

#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tests/fake_device/streams.h"

namespace sherd::fake {

/// A process group, by rank, of ranks on these devices.
[[nodiscard]] std::vector<c10::intrusive_ptr<c10d::Backend>> make_fake_nccl(
    const std::vector<c10::Device>& devices);

}  // namespace sherd::fake
