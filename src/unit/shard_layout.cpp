#include "unit/shard_layout.h"

#include <algorithm>

namespace sherd::detail {

namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t alignment_numel(c10::ScalarType dtype) {
  return kAlignmentBytes / static_cast<int64_t>(c10::elementSize(dtype));
}

SegmentLayout& segment_for(std::vector<SegmentLayout>& segments, const ParameterSpec& spec,
                           int world_size) {
  auto found = std::find_if(segments.begin(), segments.end(), [&](const SegmentLayout& segment) {
    return segment.dtype == spec.dtype && segment.trainable == spec.trainable;
  });
  if (found != segments.end()) {
    return *found;
  }
  SegmentLayout& added = segments.emplace_back();
  added.dtype = spec.dtype;
  added.trainable = spec.trainable;
  added.world_size = world_size;
  return added;
}

}  // namespace

Range SegmentLayout::held_by(const ParameterPlace& place, int rank) const {
  const int64_t piece = rank * shard_numel;
  const int64_t begin = std::clamp<int64_t>(piece - place.offset, 0, place.numel);
  const int64_t end = std::clamp<int64_t>(piece + shard_numel - place.offset, 0, place.numel);
  return {begin, end};
}

int64_t SegmentLayout::start_in_piece(const ParameterPlace& place, int rank) const {
  const Range held = held_by(place, rank);
  return held.size() == 0 ? 0 : place.offset + held.begin - rank * shard_numel;
}

std::vector<SegmentLayout> lay_out(std::span<const ParameterSpec> parameters, int world_size,
                                   int replicas, c10::Device device) {
  std::vector<SegmentLayout> segments;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterSpec& spec = parameters[i];
    SegmentLayout& segment = segment_for(segments, spec, world_size);
    const int64_t used =
        segment.places.empty() ? 0 : segment.places.back().offset + segment.places.back().numel;
    const int64_t offset = round_up(used, alignment_numel(spec.dtype));
    segment.places.push_back({static_cast<int>(i), offset, spec.numel});
  }
  for (SegmentLayout& segment : segments) {
    const int64_t used = segment.places.back().offset + segment.places.back().numel;
    segment.device = device;
    segment.shard_numel = round_up(round_up(used, world_size) / world_size,
                                   alignment_numel(segment.dtype) * replicas);
  }
  return segments;
}

}  // namespace sherd::detail
