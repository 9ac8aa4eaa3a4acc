#include "ops/documents.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::ops {
namespace {

std::vector<int64_t> numbers(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.scalar_type(), at::kLong);
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

TEST(Documents, LieSideBySide) {
  const Documents documents({0, 3, 4, 6});
  EXPECT_EQ(documents.count(), 3);
  EXPECT_EQ(documents.tokens(), 6);
  EXPECT_EQ(documents.longest(), 3);
  EXPECT_EQ(documents.begin(1), 3);
  EXPECT_EQ(documents.end(1), 4);
  EXPECT_EQ(documents.length(2), 2);
  EXPECT_EQ(Documents::of_lengths(std::vector<int64_t>{3, 1, 2}).bounds(), documents.bounds());
  EXPECT_EQ(Documents::of_equal_length(2, 4).bounds(), (std::vector<int64_t>{0, 4, 8}));
}

TEST(Documents, PositionsBeginAnewInEach) {
  const Documents documents({0, 3, 4, 6});
  EXPECT_EQ(numbers(documents.positions()), (std::vector<int64_t>{0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(numbers(documents.first_tokens()), (std::vector<int64_t>{0, 3, 4}));
  EXPECT_EQ(numbers(documents.last_tokens()), (std::vector<int64_t>{2, 3, 5}));
}

TEST(Documents, HaveTheirBoundsOnADeviceOnceForAllCopies) {
  const Documents documents({0, 3, 4, 6});
  const at::Tensor bounds = documents.bounds_on(at::kCPU);
  EXPECT_TRUE(bounds.equal(at::tensor({0, 3, 4, 6}, at::kInt)));
  const Documents copy = documents;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_TRUE(copy.bounds_on(at::kCPU).is_same(bounds));
  EXPECT_FALSE(Documents({0, 3, 4, 6}).bounds_on(at::kCPU).is_same(bounds));
  EXPECT_TRUE(documents.bounds_on(at::kMeta).is_meta());
  EXPECT_TRUE(documents.bounds_on(at::kCPU).equal(bounds));
}

TEST(Documents, KnowWhetherTheyHaveOneLength) {
  EXPECT_TRUE(Documents({0, 3, 6}).have_equal_lengths());
  EXPECT_FALSE(Documents({0, 3, 4, 6}).have_equal_lengths());
  EXPECT_FALSE(Documents({0, 1, 4, 6}).have_equal_lengths());
  EXPECT_TRUE(Documents().have_equal_lengths());
}

TEST(Documents, MayBeNone) {
  const Documents none;
  EXPECT_EQ(none.count() + none.tokens() + none.longest(), 0);
  EXPECT_EQ(none.positions().numel() + none.first_tokens().numel() + none.last_tokens().numel(), 0);
}

TEST(Documents, RefusesWhatDoesNotAscendFromZero) {
  const auto refuses = [](std::vector<int64_t> bounds, const char* message) {
    EXPECT_THAT([&] { (void)Documents(bounds); },
                testing::ThrowsMessage<c10::Error>(testing::HasSubstr(message)));
  };
  refuses({}, "expected bounds that begin with 0");
  refuses({1, 2}, "expected bounds that begin with 0");
  refuses({0, 3, 3}, "document 1 ends at token 3, where it begins or before (3)");
  refuses({0, 3, 2}, "document 1 ends at token 2, where it begins or before (3)");
}

}  // namespace
}  // namespace sherd::ops
