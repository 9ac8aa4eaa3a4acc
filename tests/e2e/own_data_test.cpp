// Data of one's own on ranks that are processes.

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(OwnData, BadRecordsEndARunBeforeWeightsAreRead) {
  const TempFolder folder;
  const fs::path model = copy_of_model(folder.path() / "model");
  fs::remove(model / "model.safetensors");
  const auto file = folder.write("my.jsonl", kGood + "\n{\"prompt\": \"a\"}\nno\n");
  const fs::path output = folder.path() / "run";
  Arguments arguments = train_on(file, output);
  arguments[3] = model.string();
  const Ended ended = expect_code(65, on_ranks(2, arguments));
  EXPECT_THAT(ended.err, HasSubstr("my.jsonl: 2 faults\n  line 2, byte 47: has no \"completion\"; "
                                   "its columns are \"prompt\""));
  EXPECT_THAT(ended.err, HasSubstr("line 3, byte 64: not JSON"));
  EXPECT_FALSE(fs::exists(output / "bad_samples.jsonl"));
}

// The name of the file does not tell its format, and one of its lines is bad.
TEST(OwnData, AnEvaluationOfARunReadsItsDataAsTheRunDid) {
  const TempFolder folder;
  const auto file = folder.write("my.jsonl", kGood + "\n" + kGood);
  const auto held = folder.write("held.txt", kGood + "\nbad\n" + kGood);
  const fs::path output = folder.path() / "run";
  expect_code(0, train_on(file, output) + Arguments{"--data.eval[0].path", held.string(),
                                                    "--data.eval[0].format", "jsonl",
                                                    "--data.on_bad_sample", "skip",
                                                    "--eval.generate", "false"});
  const Arguments eval = {"eval", output.string(), "--loss-only", "--json"};
  const auto own = json::parse(expect_code(0, eval).out);
  EXPECT_EQ(own["samples"], 2);
  EXPECT_EQ(own["skipped"], 1);

  const Arguments given = eval + Arguments{"--data", held.string()};
  EXPECT_THAT(expect_code(65, given).err, HasSubstr("held.txt: "));
  const Arguments lines = given + Arguments{"--format", "jsonl"};
  EXPECT_THAT(expect_code(65, lines).err, HasSubstr("line 2, byte "));
  const Arguments skip = lines + Arguments{"--on-bad-sample", "skip"};
  EXPECT_EQ(json::parse(expect_code(0, skip).out)["loss"], own["loss"]);
  EXPECT_THAT(expect_code(64, given + Arguments{"--format", "excel"}).err, HasSubstr("--format"));
  EXPECT_THAT(expect_code(64, given + Arguments{"--on-bad-sample", "x"}).err,
              HasSubstr("--on-bad-sample"));
  const auto [first, second] = run_unlike_ranks(skip, lines);
  EXPECT_EQ(first.code, 78) << first.err;
  EXPECT_THAT(first.err, HasSubstr("--on-bad-sample"));
}

}  // namespace
}  // namespace sherd::test
