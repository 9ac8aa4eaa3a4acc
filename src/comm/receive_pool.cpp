#include "comm/receive_pool.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <c10/util/Exception.h>

namespace sherd::detail {

namespace {

bool is_smaller(const Buffer& buffer, int64_t bytes) {
  return buffer.bytes() < bytes;
}

}  // namespace

bool ReceivePool::has_room_for(int64_t bytes) const {
  return lent_bytes_ + bytes <= limit_bytes_ || (!free_.empty() && free_.back().bytes() >= bytes);
}

Buffer ReceivePool::take(int64_t bytes) {
  TORCH_INTERNAL_ASSERT(has_room_for(bytes), "more is received at once than was planned");
  const auto found = std::lower_bound(free_.begin(), free_.end(), bytes, is_smaller);
  Buffer taken;
  if (found != free_.end()) {
    taken = std::move(*found);
    free_.erase(found);
  } else {
    const auto held = [&] {
      return std::accumulate(free_.begin(), free_.end(), lent_bytes_,
                             [](int64_t sum, const Buffer& b) { return sum + b.bytes(); });
    };
    while (!free_.empty() && held() + bytes > limit_bytes_) {
      free_.erase(free_.begin());
    }
    taken = Buffer(bytes, MemoryKind::ReceiveBuffer, ledger_, device_);
  }
  lent_bytes_ += taken.bytes();
  return taken;
}

void ReceivePool::give(Buffer buffer) {
  lent_bytes_ -= buffer.bytes();
  const auto place = std::lower_bound(free_.begin(), free_.end(), buffer.bytes(), is_smaller);
  free_.insert(place, std::move(buffer));
}

}  // namespace sherd::detail
