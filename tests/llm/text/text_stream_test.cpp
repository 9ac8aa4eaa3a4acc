#include "llm/text/text_stream.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "llm/text/utf8.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

constexpr auto kStories = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";

// Parts that joined are the text, none of which ends within a character.
std::string streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  TextStream stream(tokenizer);
  std::string joined;
  for (const TokenId id : ids) {
    const std::string part = stream.take(id);
    EXPECT_FALSE(first_byte_without_utf8(part)) << joined << "|" << part;
    EXPECT_FALSE(part.ends_with("\xEF\xBF\xBD")) << joined << "|" << part;
    joined += part;
  }
  return joined + stream.rest();
}

TEST(TextStream, GivesTheDecodedTextInParts) {
  const Tokenizer tokenizer = Tokenizer::from_folder(kStories);
  // The small vocabulary spells most of these characters in bytes.
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text += "Once upon a time, Zoë saw a 🦊 and a 狐狸.\nThe end \t of  it. ";
  }
  const auto ids = tokenizer.encode(text, SpecialTokens::Leave).ids;
  ASSERT_GT(ids.size(), 200U);  // more than are kept
  EXPECT_EQ(streamed(tokenizer, ids), tokenizer.decode(ids));
}

TEST(TextStream, GivesAWordBeforeItIsFollowed) {
  const Tokenizer tokenizer = Tokenizer::from_folder(kStories);
  const auto ids = tokenizer.encode("Once", SpecialTokens::Leave).ids;
  TextStream stream(tokenizer);
  std::string text;
  for (const TokenId id : ids) {
    text += stream.take(id);
  }
  EXPECT_EQ(text, "Once");
  EXPECT_EQ(stream.rest(), "");
}

TEST(TextStream, EndsAnUnfinishedCharacter) {
  const Tokenizer tokenizer = Tokenizer::from_folder(kStories);
  auto ids = tokenizer.encode("a🦊", SpecialTokens::Leave).ids;
  ids.pop_back();
  EXPECT_EQ(streamed(tokenizer, ids), tokenizer.decode(ids));
  EXPECT_NE(tokenizer.decode(ids).find("\xEF\xBF\xBD"), std::string::npos);
}

}  // namespace
}  // namespace llm::text
