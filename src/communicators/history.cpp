#include "communicators/history.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "communicators/reduce_buffers.h"
#include "sherd/error.h"

namespace sherd::detail {

void History::add(Kind kind, Communicator::Segment segment, c10::ScalarType dtype) {
  const uint64_t words[] = {static_cast<uint64_t>(kind), static_cast<uint64_t>(segment),
                            static_cast<uint64_t>(dtype)};
  for (const uint64_t word : words) {
    hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15U;  // odd, so that no bit is lost
    hash_ ^= hash_ >> 29U;
  }
}

void check_signatures(std::span<const double> signatures, int rank, const std::string& at) {
  for (size_t other = 0; other < signatures.size(); ++other) {
    if (signatures[other] != signatures[static_cast<size_t>(rank)]) {
      throw Error(ExitCode::RanksDisagree,
                  at + ": ranks are out of step. Rank " + std::to_string(other) +
                      " of this group has run other units, or in another order, than rank " +
                      std::to_string(rank) +
                      ". Every rank must run the same units in the same order; "
                      "ShardOptions::debug names the first difference.");
    }
  }
}

at::Tensor signed_values(std::span<const double> values, const History& history) {
  const auto count = static_cast<int64_t>(values.size());
  at::Tensor sent = at::empty({count + 1}, at::kDouble);
  std::copy(values.begin(), values.end(), sent.mutable_data_ptr<double>());
  sent.mutable_data_ptr<double>()[count] = history.signature();
  return sent;
}

void reduce_signed_values(std::span<double> values, const at::Tensor& all, ReduceOp op, int rank) {
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor by_rank = all.view({-1, count + 1});
  const at::Tensor signatures = by_rank.select(1, count).contiguous();
  check_signatures({signatures.const_data_ptr<double>(), static_cast<size_t>(signatures.numel())},
                   rank, "all-reduce");
  reduce_in_rank_order(values, by_rank.narrow(1, 0, count).contiguous(), op);
}

}  // namespace sherd::detail
