#include "llm/text/json_positions.h"

#include <gtest/gtest.h>

namespace llm::text {
namespace {

TEST(JsonPositions, AreThoseOfPointers) {
  const std::string text =
      "\xef\xbb\xbf{\n \"a\": [1, {\"b\" : \"]},\\\"\"},\n  [true]\n],\n \"c\": -2.5e3}";
  const auto found =
      json_positions(text, {"", "/a", "/a/0", "/a/1", "/a/1/b", "/a/2/0", "/c", "/none", "/a/3"});
  const auto value = [&](const std::string& pointer) {
    const JsonPosition& at = found.at(pointer);
    return text.substr(at.begin_byte, at.end_byte - at.begin_byte);
  };
  EXPECT_EQ(found.size(), 7U);
  EXPECT_EQ(value(""), text.substr(3));
  EXPECT_EQ(value("/a/0"), "1");
  EXPECT_EQ(value("/a/1"), R"({"b" : "]},\""})");
  EXPECT_EQ(value("/a/1/b"), R"("]},\"")");
  EXPECT_EQ(value("/a/2/0"), "true");
  EXPECT_EQ(value("/c"), "-2.5e3");
  EXPECT_EQ(found.at("/a").line, 2);
  EXPECT_EQ(found.at("/a/2/0").line, 3);
  EXPECT_EQ(found.at("/c").line, 5);
}

TEST(JsonPositions, OfAFieldThatIsThereTwiceTheLastCounts) {
  const auto found = json_positions(R"({"a": 1, "a": [2]})", {"/a", "/a/0"});
  EXPECT_EQ(found.at("/a").begin_byte, 14U);
  EXPECT_EQ(found.at("/a/0").begin_byte, 15U);
}

}  // namespace
}  // namespace llm::text
