#pragma once
// What is told where memory has ended.

#include "llm/train/start.h"

namespace llm::train {

/// Of the exception that is handled: throws it, but where a device had no memory left a
/// sherd::Error(OutOfMemory) that says what the run was planned to take of a rank's device, what
/// LibTorch held there, and up to three settings that take less by plan. On the CPU, whose memory
/// the plans would need as well, it throws the exception itself. Not collective.
[[noreturn]] void throw_with_memory_advice(const RunInputs& run, const sherd::World& world);

}  // namespace llm::train
