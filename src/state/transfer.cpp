#include "state/transfer.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/own_work.h"

namespace sherd::detail {

void broadcast_elements(World& world, int root, const at::Tensor& source, int64_t numel,
                        c10::ScalarType dtype,
                        const std::function<void(int64_t first, const at::Tensor& values)>& take) {
  const at::NoGradGuard no_grad;
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t stretch = std::min(numel, kStagingBytes / element);
  const bool sends = world.rank() == root;
  const bool in_place =
      sends && source.scalar_type() == dtype && source.is_contiguous() && source.is_cpu();
  const at::Tensor staging =
      own_work([&] { return in_place ? source : at::empty({stretch}, dtype); });
  for (int64_t first = 0; first < numel; first += stretch) {
    const int64_t count = std::min(stretch, numel - first);
    const at::Tensor values = staging.narrow(0, in_place ? first : 0, count);
    if (sends && !in_place) {
      values.copy_(source.narrow(0, first, count));
    }
    // On the root the bytes are only read.
    world.broadcast(const_cast<void*>(values.const_data_ptr()), count * element, root);
    take(first, values);
  }
}

at::Tensor collect(World& world, const std::vector<int>& senders, const StateEntry& entry,
                   c10::ScalarType dtype, bool wanted) {
  const at::Tensor whole =
      own_work([&] { return wanted ? at::empty(entry.shape, dtype) : at::Tensor(); });
  for (size_t shard_rank = 0; shard_rank < entry.pieces.size(); ++shard_rank) {
    const Range& piece = entry.pieces[shard_rank];
    const int sender = senders[shard_rank];
    const at::Tensor source =
        world.rank() == sender && piece.size() > 0
            ? entry.mine.narrow(piece.begin - entry.begin, piece.size()).read()
            : at::Tensor();
    broadcast_elements(
        world, sender, source, piece.size(), dtype, [&](int64_t first, const at::Tensor& values) {
          if (wanted) {
            whole.view({-1}).narrow(0, piece.begin + first, values.numel()).copy_(values);
          }
        });
  }
  return whole;
}

}  // namespace sherd::detail
