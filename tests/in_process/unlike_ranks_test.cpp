// Ranks that see other content under the same names: each host has its own copy of an input.

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Pair {
  Ended first;
  Ended second;
};

// Rank 0 has the case's model `a`, rank 1 its model `b`.
Pair train_unlike(const std::string& name, const Arguments& more = {}) {
  const TempFolder folder;
  const fs::path input = kCases + name;
  const auto of = [&](const char* model) {
    return train_case(input / model, input / "data.jsonl", folder.path() / "run") + more;
  };
  auto [first, second] = run_unlike_ranks(of("a"), of("b"));
  EXPECT_EQ(first.code, 78) << first.out << first.err;
  EXPECT_EQ(second.code, 78) << second.out << second.err;
  EXPECT_FALSE(fs::exists(folder.path() / "run/checkpoints"));
  return {first, second};
}

TEST(UnlikeRanks, AreToldThatTheirEndTokensDiffer) {
  const auto [first, second] = train_unlike("ranks-with-another-end-token");
  EXPECT_THAT(first.err, HasSubstr("the end token (tokenizer_config.json, "));
  EXPECT_THAT(first.err, HasSubstr("is \"</s>\" (id 2) on rank 0 and \"<unk>\" (id 0) on rank 1"));
  EXPECT_THAT(second.err, Not(HasSubstr("the end token")));  // told once
}

TEST(UnlikeRanks, AreToldThatTheirWeightsDiffer) {
  for (const char* strategy : {"full_shard", "no_shard"}) {
    const auto [first, second] =
        train_unlike("ranks-with-other-weights", {"--parallel.strategy", strategy});
    EXPECT_THAT(first.err, HasSubstr("model.safetensors is 11 tensors of "));
    EXPECT_THAT(first.err, HasSubstr("(sampled) on rank 0 and 11 tensors of "));
  }
}

TEST(UnlikeRanks, OfOneModelInTwoFoldersTrain) {
  const TempFolder folder;
  const fs::path input = kCases + "ranks-with-another-end-token";
  fs::copy(input / "a", folder.path() / "copy");
  std::ofstream(folder.path() / "copy/config.json", std::ios::app) << "\n";
  const auto [first, second] = run_unlike_ranks(
      train_case(input / "a", input / "data.jsonl", folder.path() / "run"),
      train_case(folder.path() / "copy", input / "data.jsonl", folder.path() / "run"));
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
}

}  // namespace
}  // namespace sherd::test
