#pragma once
// What a rank has done, and whether the others have done the same.

#include <cstdint>

#include "sherd/communicator.h"

namespace sherd::detail {

inline constexpr uint64_t kHistoryFactor = 0xD1342543DE82EF95U;  // odd: it has an inverse

/// [Note: Ranks out of step]
/// Process groups match messages by their order alone: one that gathers unit 'a' on one rank and
/// unit 'b' of equal size on another moves the bytes all the same. So each rank keeps a number that
/// all its collectives so far have gone into. It travels with the gradients of each unit, together
/// with whose they are and in which dtype, and with every all-reduce, one of which comes before
/// each update: what differs is told before anything is made of it. Over NCCL the host would have
/// to wait for it, so there it goes between hosts alone, beside what they agree on before each
/// update (Gradients::agree_on_use()).
///
/// The number is a polynomial in a factor, so that what a graph of the device did can be added
/// again without knowing its parts (Communicator::count_again()).
inline void add_to_history(Communicator::Counts& counts, Collective::Operation operation,
                           int64_t what, int64_t how) {
  const uint64_t words[] = {static_cast<uint64_t>(operation), static_cast<uint64_t>(what),
                            static_cast<uint64_t>(how)};
  uint64_t mixed = 0;
  for (const uint64_t word : words) {
    mixed = (mixed ^ word) * 0x9E3779B97F4A7C15U;  // odd, so that no bit is lost
    mixed ^= mixed >> 29U;
  }
  counts.history = counts.history * kHistoryFactor + mixed;
  ++counts.operations;
}

/// The same on ranks that have done the same; a whole number that a double holds.
[[nodiscard]] inline double signature_of(uint64_t history) {
  return static_cast<double>(history >> 12U);
}

/// Throws Error(RanksDisagree) in the name of `at`: ranks of a group, by their rank in the world,
/// that have done other things.
[[noreturn]] void tell_out_of_step(const std::string& at, int rank, int other);

}  // namespace sherd::detail
