#include "comm/shared_memory/layout.h"

#include <algorithm>

#include "comm/reduce_buffers.h"
#include "comm/shared_memory/group.h"

namespace sherd::detail {

namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kLineBytes = 64;

int64_t round_up(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}

// Large ranges begin at pages, so that ranks touch their own.
int64_t place(int64_t& end, int64_t bytes) {
  const int64_t begin = round_up(end, bytes < kPageBytes ? kLineBytes : kPageBytes);
  end = begin + bytes;
  return begin;
}

}  // namespace

SharedLayout::SharedLayout(const std::vector<SegmentSpec>& segments, int world_size)
    : world_size_(world_size) {
  int64_t end = line(static_cast<int>(segments.size()), 0);
  int64_t block_bytes = 0;
  int64_t buffers = SharedGroup::kReductions;
  for (const SegmentSpec& spec : segments) {
    const int64_t bytes = segment_bytes(spec, world_size);
    pieces_.push_back(place(end, bytes));
    if (spec.trainable && !spec.is_root) {
      block_bytes = std::max(block_bytes, bytes);
      ++buffers;
    }
  }
  int64_t reduce_end = 0;
  const auto add_buffers = [&](int64_t count, int64_t bytes) {
    for (int64_t i = 0; bytes > 0 && i < count; ++i) {
      reduce_.push_back({place(reduce_end, bytes), bytes});
    }
  };
  add_buffers(buffers, block_bytes);
  for (const SegmentSpec& spec : segments) {
    const int64_t bytes = spec.is_root ? segment_bytes(spec, world_size) : block_bytes;
    reduce_bytes_.push_back(bytes);
    if (spec.trainable && spec.is_root) {
      add_buffers(2, bytes);
    }
  }
  reduce_begin_ = round_up(end, kPageBytes);
  reduce_bytes_of_a_rank_ = round_up(reduce_end, kPageBytes);
  bytes_ = std::max(reduce_begin_ + reduce_bytes_of_a_rank_ * world_size, kPageBytes);
}

std::vector<SharedLayout::ReduceBuffer> SharedLayout::reduce_buffers(int rank) const {
  std::vector<ReduceBuffer> mine = reduce_;
  for (ReduceBuffer& buffer : mine) {
    buffer.offset += reduce_begin_ + reduce_bytes_of_a_rank_ * rank;
  }
  return mine;
}

}  // namespace sherd::detail
