#include "files/sha256.h"

#include <gtest/gtest.h>

namespace sherd::files {
namespace {

// The examples of FIPS 180-2, appendix B.
TEST(Sha256, GivesTheStandardsDigests) {
  EXPECT_EQ(sha256_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, OfAStreamIsThatOfAllOfIt) {
  Sha256 digest;
  const std::string block(1000, 'a');
  for (int i = 0; i < 1000; ++i) {
    digest.add(block.data(), block.size());
  }
  EXPECT_EQ(digest.finish(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace sherd::files
