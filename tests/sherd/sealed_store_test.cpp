#include "rendezvous/sealed_store.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tests/support/expect_error.h"

namespace sherd::test {
namespace {

using detail::SealedStore;

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

class Sealed : public ::testing::Test {
 protected:
  [[nodiscard]] SealedStore with(const std::string& secret) const { return {common_, secret}; }

  c10::intrusive_ptr<c10d::HashStore> common_ = c10::make_intrusive<c10d::HashStore>();
};

TEST_F(Sealed, RanksOfAJobReadWhatTheyWrite) {
  SealedStore one = with("secret");
  SealedStore other = with("secret");
  one.set("0/0", bytes_of(""));
  one.set("0/1", bytes_of(std::string("address\0 of rank 1", 18)));
  EXPECT_EQ(other.get("0/0"), bytes_of(""));
  EXPECT_EQ(other.get("0/1"), bytes_of(std::string("address\0 of rank 1", 18)));
  EXPECT_TRUE(other.check({"0/0", "0/1"}));
  EXPECT_EQ(one.add("count", 2), 2);
  EXPECT_EQ(other.add("count", 1), 3);
  other.wait({"0/0"}, std::chrono::milliseconds(100));
  EXPECT_EQ(other.clone()->get("0/0"), bytes_of(""));
  one.set("0/2", bytes_of("old"));
  EXPECT_EQ(other.compareSet("0/2", bytes_of("old"), bytes_of("new")), bytes_of("new"));
  EXPECT_EQ(one.compareSet("0/2", bytes_of("old"), bytes_of("newer")), bytes_of("new"));
  EXPECT_TRUE(one.deleteKey("0/0"));
  EXPECT_FALSE(other.check({"0/0"}));
}

TEST_F(Sealed, AnotherJobHasOtherKeys) {
  SealedStore one = with("secret");
  SealedStore other = with("another");
  one.set("0/0", bytes_of("mine"));
  EXPECT_FALSE(other.check({"0/0"}));
  other.set("0/0", bytes_of("theirs"));
  EXPECT_EQ(one.get("0/0"), bytes_of("mine"));
}

// Whoever reads the list of keys can overwrite values, but not forge them.
TEST_F(Sealed, WhatNoRankHasWrittenIsRefused) {
  SealedStore store = with("secret");
  store.set("0/1", bytes_of("right"));
  std::string place;
  for (const std::string& key : common_->listKeys()) {
    place = key.find("0/1") != std::string::npos ? key : place;
  }
  ASSERT_NE(place, "");
  const std::vector<uint8_t> genuine = common_->get(place);
  std::vector<uint8_t> changed = genuine;
  changed.back() ^= 1;
  for (const std::vector<uint8_t>& value :
       {std::vector<uint8_t>{}, std::vector<uint8_t>(31, 0), std::vector<uint8_t>(8192, 0xff),
        changed, std::vector<uint8_t>(genuine.begin(), genuine.end() - 1)}) {
    common_->set(place, value);
    expect_error([&] { store.get("0/1"); }, ExitCode::Unavailable,
                 {"under '0/1' " + std::to_string(value.size()) +
                  " bytes that no rank of this job has written. Another program uses its port"});
  }
  common_->set(place, genuine);
  EXPECT_EQ(store.get("0/1"), bytes_of("right"));
  // A genuine value under another key is none there.
  store.set("0/2", bytes_of("other"));
  common_->set(place.substr(0, place.size() - 1) + "2", genuine);
  EXPECT_THROW(store.get("0/2"), Error);
}

}  // namespace
}  // namespace sherd::test
