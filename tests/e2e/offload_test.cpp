// A disk instead of memory: less memory of a process, and nothing that a dead process leaves.

#include <csignal>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// A shape whose 100 million parameters are more than all else that a step takes.
std::string wide_shape(const TempFolder& folder) {
  auto config = nlohmann::json::parse(
      read_file(SHERD_TEST_SOURCE_DIR "/recipes/models/wide-bloom/config.json"));
  config["hidden_size"] = 1024;
  std::ofstream(folder.path() / "config.json") << config.dump();
  return folder.path() / "config.json";
}

// Gradients are clipped and parameters gathered from there, over process groups.
TEST(Offload, OfAllPartsTrainsToTheSameBitsAndLeavesNothing) {
  const TempFolder folder;
  const fs::path disk = folder.path() / "disk";
  for (const int ranks : {1, 2}) {
    const fs::path plain = folder.path() / ("plain" + std::to_string(ranks));
    const fs::path run = folder.path() / ("run" + std::to_string(ranks));
    expect_code(0, on_ranks(ranks, in_bf16(plain)));
    const Ended ended = expect_code(0, on_ranks(ranks, in_bf16(run) + all_on_disk(disk)));
    const std::string place = " in '" + disk.string() + "', ";
    EXPECT_THAT(ended.out, HasSubstr("on the disk: masters and moments" + place + "gradients" +
                                     place + "parameters" + place));
    if (ranks > 1) {
      EXPECT_THAT(ended.out, HasSubstr("exchange between ranks: process groups (gloo)"));
    }
    expect_same(run, plain);
    EXPECT_THAT(listing(disk), IsEmpty());
  }
}

TEST(Offload, OfAllPartsIsCheckedAndEvaluated) {
  const TempFolder folder;
  Arguments words = in_bf16(folder.path() / "run") + all_on_disk(folder.path() / "disk");
  words.front() = "check";
  EXPECT_THAT(expect_code(0, words + Arguments{"-n", "2"}).out, HasSubstr("ok: 11 items"));
  expect_code(0, in_bf16(folder.path() / "evaluated") + all_on_disk(folder.path() / "disk") +
                     Arguments{"--data.eval", kQuestions, "--eval.every", "epoch"});
}

TEST(Offload, LeavesNothingWhereItIsKilledAndGoesOnWithoutIt) {
  const TempFolder folder;
  const fs::path disk = folder.path() / "disk";
  expect_code(0, in_bf16(folder.path() / "plain"));
  {
    Program killed(in_bf16(folder.path() / "run") + on_disk(disk));
    killed.wait_for("step 3/");
    killed.signal(SIGKILL);
    EXPECT_EQ(killed.finish().code, 128 + SIGKILL);
  }
  EXPECT_THAT(listing(disk), IsEmpty());
  const Ended resumed = expect_code(0, in_bf16(folder.path() / "run"));
  EXPECT_THAT(resumed.out, HasSubstr("resum"));
  EXPECT_EQ(exported_weights(folder.path() / "run"), exported_weights(folder.path() / "plain"));
}

// Under a limit of memory that the same run without a disk exceeds.
TEST(Offload, TrainsWhereMemoryIsTooSmallOtherwise) {
  const TempFolder folder;
  const auto bench = [&](const Arguments& more, const std::string& line) {
    const Arguments words = {"bench",   "--json", "--model",  wide_shape(folder),
                             "--steps", "3",      "--seq",    "32",
                             "--dtype", "bf16",   "--warmup", "0"};
    Program program(words + more, {}, line);
    return program.finish();
  };
  const std::string limited = "ulimit -d 1400000; exec \"$0\" \"$@\"";
  const Ended plain = bench({}, "");
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(bench({}, limited).code, 81);
  const Ended ended = bench({"--offload-optimizer", folder.path().string()}, limited);
  ASSERT_EQ(ended.code, 0) << ended.err;
  const auto expected = nlohmann::json::parse(plain.out);
  const auto found = nlohmann::json::parse(ended.out);
  EXPECT_EQ(found["losses"], expected["losses"]);
  EXPECT_EQ(found["grad_norms"], expected["grad_norms"]);
  EXPECT_GT(found["offloaded_bytes"], 0);
  EXPECT_EQ(expected["offloaded_bytes"], 0);
}

}  // namespace
}  // namespace sherd::test
