#include "llm/text/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sherd/error.h"

namespace llm::text {
namespace {

TEST(Pattern, MatchesTheWholeTextAsPythonDoes) {
  const Pattern attention(R"(model\.layers\.\d+\.(?!mlp).*\.(?:q|o)_proj|.*\.up_proj)");
  EXPECT_TRUE(attention.matches_whole("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(attention.matches_whole("model.layers.11.self_attn.o_proj"));
  EXPECT_TRUE(attention.matches_whole("model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(attention.matches_whole("model.layers.0.mlp.o_proj"));
  EXPECT_FALSE(attention.matches_whole("model.layers.0.self_attn.q_proj.more"));
  EXPECT_FALSE(attention.matches_whole("a model.layers.0.self_attn.q_proj"));
  // The first alternative matches a part only, and the second one all.
  EXPECT_TRUE(Pattern("q|q_proj").matches_whole("q_proj"));
  EXPECT_TRUE(Pattern("(?<=^)q(?=_).*").matches_whole("q_proj"));
  EXPECT_FALSE(Pattern("").matches_whole("q_proj"));
}

TEST(Pattern, RefusesWhatDoesNotCompile) {
  for (const char* source : {"(q_proj", "[a", "*", "a)"}) {
    EXPECT_THAT([&] { return Pattern(source); },
                testing::ThrowsMessage<sherd::Error>(
                    testing::HasSubstr("\"" + std::string(source) + "\" is no regular expression")))
        << source;
  }
}

TEST(Pattern, EndsWhereItTakesTooManySteps) {
  const Pattern slow("(a*)*b");
  EXPECT_THROW(static_cast<void>(slow.matches_whole(std::string(64, 'a') + "c")), sherd::Error);
}

}  // namespace
}  // namespace llm::text
