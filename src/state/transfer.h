#pragma once
// Elements on their way between ranks, in stretches of bounded size.

#include <functional>

#include "state/entries.h"

namespace sherd::detail {

/// What a rank holds beside the tensors themselves while one travels.
inline constexpr int64_t kStagingBytes = int64_t{1} << 20;

/// Sends `numel` elements of rank `root`'s `source` [numel] to all ranks as `dtype`. `take(first,
/// values)` is called on every rank, the root too, with stretches in order; `values` is valid
/// during the call. Collective. Memory: kStagingBytes, on the root none where nothing is converted.
void broadcast_elements(World& world, int root, const at::Tensor& source, int64_t numel,
                        c10::ScalarType dtype,
                        const std::function<void(int64_t first, const at::Tensor& values)>& take);

/// Puts the whole tensor together from all ranks: in its shape and `dtype`, on the CPU, where it is
/// `wanted`; undefined elsewhere. Collective.
[[nodiscard]] at::Tensor collect(World& world, const std::vector<int>& senders,
                                 const StateEntry& entry, c10::ScalarType dtype, bool wanted);

}  // namespace sherd::detail
