#pragma once
// Where each parameter of a unit lies in its flat segments: pure arithmetic, no memory and no
// collective.
//
// A unit's parameters are laid side by side in segments, one for each dtype and trainability, each
// parameter at a 64-byte boundary. A segment is padded and cut into equal pieces, one a rank;
// pieces do not respect parameter bounds.

#include <cstdint>
#include <span>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace sherd::detail {

/// Parameters and pieces begin at multiples of it, so that a kernel sees the same alignment on
/// every world size and results do not depend on how a segment is cut.
inline constexpr int64_t kAlignmentBytes = 64;

struct ParameterSpec {
  int64_t numel = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< in which it travels
  bool trainable = true;
};

/// One parameter in a segment, in elements from the segment's start.
struct ParameterPlace {
  int parameter = 0;  ///< index into the specs
  int64_t offset = 0;
  int64_t numel = 0;
};

/// A range of elements.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
};

struct SegmentLayout {
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;  ///< of sums of its gradients
  bool trainable = true;
  int world_size = 1;
  c10::Device device = c10::Device(c10::kCPU);
  int64_t shard_numel = 0;  ///< elements of one rank's piece
  std::vector<ParameterPlace> places;

  [[nodiscard]] int64_t numel() const { return shard_numel * world_size; }
  [[nodiscard]] int64_t bytes() const {
    return numel() * static_cast<int64_t>(c10::elementSize(dtype));
  }
  /// Which elements of the parameter, counted from its own start, the rank's piece holds; empty
  /// where none.
  [[nodiscard]] Range held_by(const ParameterPlace& place, int rank) const;
  /// Where these elements begin in the piece; 0 where there are none.
  [[nodiscard]] int64_t start_in_piece(const ParameterPlace& place, int rank) const;
};

/// The segments of one unit, in the order in which their first parameters come. A piece can be cut
/// again into `replicas` parts that are aligned as well.
[[nodiscard]] std::vector<SegmentLayout> lay_out(std::span<const ParameterSpec> parameters,
                                                 int world_size, int replicas = 1,
                                                 c10::Device device = c10::Device(c10::kCPU));

}  // namespace sherd::detail
