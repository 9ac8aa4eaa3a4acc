#pragma once
// Elements on their way between ranks, a chunk of bounded size at a time.

#include <exception>
#include <functional>
#include <string>

#include "state/entries.h"

namespace sherd::detail {

/// The most that a rank holds in addition to the tensors themselves while one is broadcast.
inline constexpr int64_t kStagingBytes = int64_t{1} << 20;
/// The most that a rank sends to rank 0 at a time.
inline constexpr int64_t kSentBytes = int64_t{16} << 20;

/// Sends `numel` elements of rank `root`'s `source` [numel] to all ranks as `dtype`. `take(first,
/// values)` is called on every rank, the root too, with chunks in order; `values` is valid
/// during the call. Collective. Memory: kStagingBytes, on the root none where nothing is converted.
void broadcast_elements(World& world, int root, const at::Tensor& source, int64_t numel,
                        c10::ScalarType dtype,
                        const std::function<void(int64_t first, const at::Tensor& values)>& take);

/// Puts the whole tensor together from all ranks, in its shape and `dtype` on the CPU: on rank 0
/// if `rank0_only`, else on every rank. Returns an undefined tensor elsewhere. Collective. Memory:
/// the tensor where it is returned; on a rank that sends to rank 0, kSentBytes where values are
/// converted or do not lie in host memory; with broadcasts, kStagingBytes.
[[nodiscard]] at::Tensor collect(World& world, const std::vector<int>& senders,
                                 const StateEntry& entry, c10::ScalarType dtype, bool rank0_only);

/// Calls a visitor on some ranks and lets all ranks fail where one visitor has thrown: at the
/// latest when 256 MiB of tensors have been visited. After a failure a rank's visitor is not called
/// again, but the rank goes on to exchange until all have agreed.
class Visits {
 public:
  /// `failure`: how the Error begins that all ranks throw.
  Visits(World& world, std::string failure) : world_(world), failure_(std::move(failure)) {}

  /// Calls `visit`, which sees `bytes` bytes, unless an earlier call has thrown on this rank.
  /// Collective: all ranks give the same `bytes`. Throws as agree().
  void add(int64_t bytes, const std::function<void()>& visit);
  /// Agrees on the last visits. Collective.
  void finish();

 private:
  World& world_;
  std::string failure_;
  int64_t unagreed_bytes_ = 0;
  std::exception_ptr thrown_;
};

}  // namespace sherd::detail
