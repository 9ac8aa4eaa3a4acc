#pragma once
// What is told where memory has ended.

#include <functional>

#include "llm/train/start.h"

namespace llm::train {

/// Calls `work`. Where it fails because a device has no memory left, throws
/// sherd::Error(OutOfMemory) that says what the run was planned to take of a rank's device, what
/// LibTorch held there, and up to three settings that take less by plan. On the CPU, whose memory
/// the plans would need as well, the failure goes on as it is. Not collective.
void with_memory_advice(const RunInputs& run, const sherd::World& world,
                        const std::function<void()>& work);

}  // namespace llm::train
