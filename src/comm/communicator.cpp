#include "sherd/communicator.h"

#include <cstdlib>

#include <ATen/core/Tensor.h>

#include "comm/identity.h"

namespace sherd {

namespace {

// By Newton's steps, which double the bits that are right; an odd number is right in three.
constexpr std::uint64_t inverse(std::uint64_t odd) {
  std::uint64_t result = odd;
  for (int bits = 3; bits < 64; bits *= 2) {
    result *= 2 - odd * result;
  }
  return result;
}
static_assert(inverse(detail::kHistoryFactor) * detail::kHistoryFactor == 1);

// What a history is multiplied by in so many operations, or in what undoes them.
std::uint64_t factor_of(std::int64_t operations) {
  std::uint64_t base = operations < 0 ? inverse(detail::kHistoryFactor) : detail::kHistoryFactor;
  std::uint64_t result = 1;
  for (auto left = static_cast<std::uint64_t>(std::abs(operations)); left > 0; left /= 2) {
    result *= left % 2 == 1 ? base : 1;
    base *= base;
  }
  return result;
}

}  // namespace

void Communicator::all_reduce_on_device(const at::Tensor& values, ReduceOp op) {
  const at::Tensor on_host = values.cpu();
  all_reduce({on_host.mutable_data_ptr<double>(), static_cast<size_t>(on_host.numel())}, op);
  at::Tensor target = values;
  target.copy_(on_host);
}

Communicator::Counts Communicator::Counts::since(const Counts& before) const noexcept {
  return {gathers - before.gathers,
          reductions - before.reductions,
          replications - before.replications,
          all_reduces - before.all_reduces,
          bytes_sent - before.bytes_sent,
          operations - before.operations,
          history - before.history * factor_of(operations - before.operations)};
}

void Communicator::count_again(const Counts& captured) noexcept {
  counts_.gathers += captured.gathers;
  counts_.reductions += captured.reductions;
  counts_.replications += captured.replications;
  counts_.all_reduces += captured.all_reduces;
  counts_.bytes_sent += captured.bytes_sent;
  counts_.operations += captured.operations;
  counts_.history = counts_.history * factor_of(captured.operations) + captured.history;
}

}  // namespace sherd
