#pragma once
// What a rank has done over process groups, which match messages by their order alone.

#include <cstdint>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "sherd/communicator.h"

namespace sherd::detail {

/// [Note: Ranks out of step]
/// A process group that gathers unit 'a' on one rank and unit 'b' of equal size on another moves
/// the bytes all the same. So each rank keeps a number that all its collectives so far have gone
/// into. It travels with the gradients of each unit, where messages of their own are cheap, and
/// with every all-reduce, one of which comes before each update: what differs is told before
/// anything is made of it.
class History {
 public:
  enum class Kind : uint64_t { Gather = 1, Reduction = 2 };
  void add(Kind kind, Communicator::Segment segment, c10::ScalarType dtype);
  /// The same on ranks that have done the same; a whole number that a double holds.
  [[nodiscard]] double signature() const { return static_cast<double>(hash_ >> 12U); }

 private:
  uint64_t hash_ = 0;
};

/// Throws Error(RanksDisagree) unless the others' signatures, by rank, are this rank's own.
void check_signatures(std::span<const double> signatures, int rank, const std::string& at);

/// What a rank sends to all-reduce values: these, and its signature.
[[nodiscard]] at::Tensor signed_values(std::span<const double> values, const History& history);
/// Checks the signatures in what all ranks sent, and reduces the values in rank order.
void reduce_signed_values(std::span<double> values, const at::Tensor& all, ReduceOp op, int rank);

}  // namespace sherd::detail
