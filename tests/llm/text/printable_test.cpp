// What data and models may do to a terminal: nothing.

#include "llm/text/printable.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/text/utf8.h"

namespace llm::text {
namespace {

TEST(Printable, LeavesWritingAsItIs) {
  const std::string text = "Åsa 🦙 lives\tin Malmö: שלום, 漢字, é\u0301.";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, TakesCommandsFromATerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb\x07\r"), "a\\x1b[2Jb\\x07\\x0d");
  EXPECT_EQ(printable("a\x7f"), "a\\u007f");
  EXPECT_EQ(printable("\u009b2J\u0085\u0080\u009f"), "\\u009b2J\\u0085\\u0080\\u009f");  // C1
  EXPECT_EQ(printable(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\u00a0"), "\u00a0");  // the first after C1
}

TEST(Printable, KeepsTextInItsOrder) {
  EXPECT_EQ(printable("\u202Eabc\u202C\u2066\u2069\u200F\u061C"),
            "\\u202eabc\\u202c\\u2066\\u2069\\u200f\\u061c");
  EXPECT_EQ(printable("a\u2028b\u2029"), "a\\u2028b\\u2029");
}

TEST(Printable, ShowsLinesAsIsWanted) {
  EXPECT_EQ(printable("a\nb"), "a\\nb");
  EXPECT_EQ(printable("a\nb", Lines::Keep), "a\nb");
}

TEST(Printable, ShowsBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("caf\xc3"), "caf\\xc3");
  EXPECT_EQ(printable("\x9b[2J"), "\\x9b[2J");  // C1 of terminals that know no UTF-8
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
}

TEST(Printable, JsonStaysTheSameJson) {
  const nlohmann::json json = {{"text", "a\x1b\u009b\u202E\x7f\n\u2028é"}};
  const std::string line = printable(json.dump());
  EXPECT_EQ(line.find("\u009b"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(line), json);
}

TEST(Printable, QuotesAreShort) {
  EXPECT_EQ(in_quotes("a\"\n\u202E"), R"("a\"\n\u202e")");
  EXPECT_EQ(in_quotes("ab漢字", 3), "\"ab漢…\"");  // no part of a character
  EXPECT_EQ(in_quotes(std::string(1000, 'x')), "\"" + std::string(40, 'x') + "…\"");
}

TEST(Utf8, IsKnownFromOtherBytes) {
  EXPECT_FALSE(first_byte_without_utf8("Åsa 🦙 \U0010FFFF"));
  for (const std::string bad :
       {"\xff", "\xc0\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\x80", "\xe6\xbc", "\xc3("}) {
    EXPECT_EQ(first_byte_without_utf8("é" + bad), 2U) << bad;
  }
}

}  // namespace
}  // namespace llm::text
