#pragma once
// Where everything lies in the memory that the ranks of a group share.

#include <vector>

#include "comm/shared_memory/counter.h"
#include "sherd/communicator.h"

namespace sherd::detail {

/// One rank's counters of one segment: a cache line, written by that rank alone.
struct alignas(64) SegmentLine {
  SharedCounter published;  ///< versions of its piece
  SharedCounter released;   ///< gathers whose bytes it does not read any more
};

/// Addresses in the region, as offsets: the same on every rank, from the specs alone.
/// - the ranks' lines of each segment;
/// - each segment's pieces side by side, as they lie gathered;
/// - each rank's reduce buffers: of the largest block's size, as many as could be in use at once
///   (one a segment, and those in flight), and two for each segment of the root. Pages are
///   allocated for those that are used.
class SharedLayout {
 public:
  SharedLayout() = default;
  SharedLayout(const std::vector<SegmentSpec>& segments, int world_size);

  [[nodiscard]] int64_t bytes() const { return bytes_; }
  [[nodiscard]] int64_t line(Communicator::Segment segment, int rank) const {
    return (int64_t{segment} * world_size_ + rank) * static_cast<int64_t>(sizeof(SegmentLine));
  }
  /// Of rank 0's piece; those of the others follow.
  [[nodiscard]] int64_t pieces(Communicator::Segment segment) const {
    return pieces_[static_cast<size_t>(segment)];
  }

  struct ReduceBuffer {
    int64_t offset;
    int64_t bytes;
  };
  [[nodiscard]] std::vector<ReduceBuffer> reduce_buffers(int rank) const;
  /// Bytes of the buffer that a segment uses.
  [[nodiscard]] int64_t reduce_buffer_bytes(Communicator::Segment segment) const {
    return reduce_bytes_[static_cast<size_t>(segment)];
  }

 private:
  int world_size_ = 1;
  int64_t bytes_ = 0;
  int64_t reduce_begin_ = 0;
  int64_t reduce_bytes_of_a_rank_ = 0;
  std::vector<int64_t> pieces_;        // by segment
  std::vector<int64_t> reduce_bytes_;  // by segment
  std::vector<ReduceBuffer> reduce_;   // of a rank, from the beginning of its own
};

}  // namespace sherd::detail
