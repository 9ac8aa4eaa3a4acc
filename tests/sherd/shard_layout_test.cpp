#include "src/unit/shard_layout.h"

#include <random>

#include <gtest/gtest.h>

namespace sherd::detail {
namespace {

std::vector<ParameterSpec> random_parameters(std::mt19937& random) {
  const auto up_to = [&](int64_t limit) {
    return std::uniform_int_distribution<int64_t>(1, limit)(random);
  };
  std::vector<ParameterSpec> specs;
  const int64_t count = up_to(12);
  for (int64_t i = 0; i < count; ++i) {
    specs.push_back({up_to(3) == 1 ? up_to(4) : up_to(500),
                     up_to(2) == 1 ? c10::kFloat : c10::kBFloat16, up_to(3) != 1});
  }
  return specs;
}

// Every element of every parameter lies in exactly one piece, at the place the layout says.
void check_covered(const SegmentLayout& layout) {
  for (const ParameterPlace& place : layout.places) {
    int64_t next = 0;
    for (int rank = 0; rank < layout.world_size; ++rank) {
      const Range held = layout.held_by(place, rank);
      if (held.size() == 0) {
        continue;
      }
      ASSERT_EQ(held.begin, next);
      ASSERT_GE(place.offset + held.begin, rank * layout.shard_numel);
      ASSERT_LE(place.offset + held.end, (rank + 1) * layout.shard_numel);
      next = held.end;
    }
    ASSERT_EQ(next, place.numel);
  }
}

void check_aligned(const SegmentLayout& layout) {
  const int64_t alignment = kAlignmentBytes / static_cast<int64_t>(c10::elementSize(layout.dtype));
  ASSERT_EQ(layout.shard_numel % alignment, 0);
  int64_t end = 0;
  for (const ParameterPlace& place : layout.places) {
    ASSERT_EQ(place.offset % alignment, 0);
    ASSERT_GE(place.offset, end);
    ASSERT_LT(place.offset - end, alignment);
    end = place.offset + place.numel;
  }
  ASSERT_LE(end, layout.numel());
  ASSERT_LT(layout.numel() - end, alignment * layout.world_size);
}

TEST(ShardLayout, CutsEveryElementIntoExactlyOnePiece) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const auto specs = random_parameters(random);
    const int world_size = 1 + round % 9;
    std::vector<int> seen(specs.size(), 0);
    for (const SegmentLayout& layout : lay_out(specs, world_size)) {
      check_covered(layout);
      check_aligned(layout);
      for (const ParameterPlace& place : layout.places) {
        const auto& spec = specs[static_cast<size_t>(place.parameter)];
        ++seen[static_cast<size_t>(place.parameter)];
        ASSERT_EQ(place.numel, spec.numel);
        ASSERT_EQ(layout.dtype, spec.dtype);
        ASSERT_EQ(layout.trainable, spec.trainable);
      }
    }
    ASSERT_EQ(seen, std::vector<int>(specs.size(), 1));
  }
}

TEST(ShardLayout, OneSegmentForEachDtypeAndTrainability) {
  const std::vector<ParameterSpec> specs = {{10, c10::kFloat, true},
                                            {20, c10::kFloat, false},
                                            {30, c10::kBFloat16, true},
                                            {40, c10::kFloat, true}};
  const auto layouts = lay_out(specs, 2);
  ASSERT_EQ(layouts.size(), 3U);
  ASSERT_EQ(layouts[0].places.size(), 2U);
  EXPECT_EQ(layouts[0].places[1].parameter, 3);
  EXPECT_EQ(layouts[0].places[1].offset, 16);
  EXPECT_EQ(layouts[0].shard_numel, 32);
  EXPECT_EQ(layouts[2].bytes(), 2 * 64);
}

TEST(ShardLayout, PlacesDoNotDependOnTheNumberOfRanks) {
  std::mt19937 random(2);
  const auto specs = random_parameters(random);
  const auto one = lay_out(specs, 1);
  const auto many = lay_out(specs, 7);
  for (size_t s = 0; s < one.size(); ++s) {
    for (size_t i = 0; i < one[s].places.size(); ++i) {
      EXPECT_EQ(one[s].places[i].offset, many[s].places[i].offset);
    }
  }
}

TEST(ShardLayout, NoParametersMakeNoSegment) {
  EXPECT_TRUE(lay_out({}, 4).empty());
}

}  // namespace
}  // namespace sherd::detail
