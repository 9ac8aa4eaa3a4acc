// A run leaves a Hugging Face folder at its end.

#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Both folders hold the same files, bit by bit.
void expect_same_folders(const fs::path& left, const fs::path& right) {
  auto names = listing(left);
  EXPECT_THAT(listing(right), testing::UnorderedElementsAreArray(names));
  for (const std::string& name : names) {
    EXPECT_TRUE(read_file(left / name) == read_file(right / name)) << name;
  }
}

TEST(RunExport, OfTheEndIsWhatSherdExportMakes) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run = on_ranks(2, train(output, "2")) +
                        Arguments{"--train.micro_batch", "6", "--checkpoint.export", "end"};
  EXPECT_THAT(expect_code(0, run).out, HasSubstr("exported " + output.string()));
  const fs::path by_hand = folder.path() / "hf";
  expect_code(0, {"export", "--checkpoint", output, "--out", by_hand});
  expect_same_folders(output / "export", by_hand);
  EXPECT_TRUE(fs::exists(output / "export/LICENSE"));

  // Made once; made again where it is gone, or where a killed run left a part of it.
  EXPECT_THAT(expect_code(0, run).out, Not(HasSubstr("exported")));
  fs::remove_all(output / "export");
  fs::create_directory(output / "export.tmp");
  std::ofstream(output / "export.tmp/model.safetensors") << "half";
  EXPECT_THAT(expect_code(0, run).out, HasSubstr("exported"));
  expect_same_folders(output / "export", by_hand);
  EXPECT_FALSE(fs::exists(output / "export.tmp"));
}

TEST(RunExport, OfTheBestIsThatCheckpoint) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run = evaluated(output, "3", "1 steps") + kFirstIsBest +
                        Arguments{"--checkpoint.every", "never", "--optim.lr", "1e-2"};
  // Without its checkpoint there is nothing to export.
  expect_code(0, run);
  const Arguments best = {"--checkpoint.export", "best"};
  EXPECT_THAT(expect_code(66, run + best).err,
              HasSubstr("there is no checkpoint of the best evaluation, em 0.0 at step 1"));
  EXPECT_FALSE(fs::exists(output / "export"));

  expect_code(0, run + best + Arguments{"--resume", "overwrite"});
  const fs::path checkpoints = output / "checkpoints";
  const std::string exported = read_file(output / "export/model.safetensors");
  EXPECT_TRUE(exported == exported_weights(checkpoints / "step-00000001"));
  EXPECT_FALSE(exported == exported_weights(checkpoints / "step-00000003"));
}

// What cannot be copied at the end is refused before weights are read.
TEST(RunExport, ThatCannotBeMadeEndsTheRunAtItsStart) {
  const TempFolder folder;
  const fs::path model = copy_of_model(folder.path() / "model");
  fs::create_symlink("/etc/passwd", model / "NOTICE");
  const fs::path output = folder.path() / "run";
  Arguments run = on_ranks(2, train(output, "1") + Arguments{"--train.micro_batch", "6"});
  std::replace(run.begin(), run.end(), kModel, model.string());
  const Ended ended = expect_code(65, run + Arguments{"--checkpoint.export", "end"});
  EXPECT_THAT(ended.err, HasSubstr("NOTICE: links to /etc/passwd, outside of its folder"));
  EXPECT_FALSE(fs::exists(output / "checkpoints"));
  expect_code(0, run);
}

TEST(RunExport, ReplacesNoFolderOfTheUsers) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  fs::create_directories(output / "export");
  std::ofstream(output / "export/thesis.txt") << "text";
  const Ended ended = expect_code(73, train(output, "1") + Arguments{"--checkpoint.export", "end"});
  EXPECT_THAT(ended.err, HasSubstr("export' is there and was not left by a run"));
  EXPECT_EQ(read_file(output / "export/thesis.txt"), "text");
}

}  // namespace
}  // namespace sherd::test
