// What one run has tokenized, the next one uses.

#include "tests/in_process/run_program.h"
#include "tests/support/test_data.h"

namespace sherd::test {
namespace {

TEST(TokenCache, IsFilledByOneRunAndUsedByTheNext) {
  const TempFolder folder;
  const Arguments cache = {"XDG_CACHE_HOME=" + folder.path().string()};
  expect_code(0, on_ranks(2, train(folder.path() / "first", "3")), cache);
  const fs::path kept = folder.path() / "sherd/tokens";
  ASSERT_EQ(std::distance(fs::directory_iterator(kept), {}), 1);
  const fs::path file = fs::directory_iterator(kept)->path();
  const auto written = fs::last_write_time(file);
  const auto size = fs::file_size(file);
  expect_code(0, on_ranks(2, train(folder.path() / "second", "3")), cache);
  EXPECT_EQ(fs::last_write_time(file), written);
  EXPECT_EQ(column(folder.path() / "second", "loss"), column(folder.path() / "first", "loss"));

  fs::resize_file(file, size - 1);  // damaged: encoded again, and mended
  expect_code(0, on_ranks(2, train(folder.path() / "third", "3")), cache);
  EXPECT_EQ(column(folder.path() / "third", "loss"), column(folder.path() / "first", "loss"));
  EXPECT_EQ(fs::file_size(file), size);

  expect_code(0,
              train(folder.path() / "fourth", "1") + Arguments{"--data.cache", kept / "elsewhere"});
  EXPECT_EQ(std::distance(fs::directory_iterator(kept / "elsewhere"), {}), 1);
}

TEST(TokenCache, ThatCannotBeWrittenIsTold) {
  const TempFolder folder;
  folder.write("file", "");
  const Ended ended = expect_code(
      0, train(folder.path() / "run", "1") + Arguments{"--data.cache", folder.path() / "file"});
  EXPECT_THAT(ended.out,
              testing::HasSubstr("tokens are not kept for the next run: " +
                                 (folder.path() / "file").string() + " cannot be written to: "));
}

// What `sherd data prepare` has made, a run uses.
TEST(DataPrepare, MakesWhatTheRunUses) {
  const TempFolder folder;
  const Arguments cache = {"--data.cache", folder.path() / "cache"};
  Arguments words = train(folder.path() / "run", "1") + cache;
  Arguments prepare = {"data", "prepare", "--json"};
  prepare.insert(prepare.end(), words.begin() + 1, words.end());
  const Ended prepared = expect_code(0, prepare);
  EXPECT_THAT(prepared.out, testing::StartsWith("{\"folder\":"));
  EXPECT_THAT(prepared.err, testing::HasSubstr("prepared in " + folder.path().string()));
  EXPECT_FALSE(fs::exists(folder.path() / "run"));
  ASSERT_EQ(std::distance(fs::directory_iterator(folder.path() / "cache"), {}), 1);
  const fs::path store = fs::directory_iterator(folder.path() / "cache")->path();
  const auto written = fs::last_write_time(store);
  expect_code(0, words);
  EXPECT_EQ(fs::last_write_time(store), written);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path() / "cache"), {}), 1);
}

TEST(DataPrepare, IsAJobBeforeTheRunUnderSlurm) {
  const TempFolder folder;
  const Arguments job = {"slurm", (folder.path() / "my.toml").string(), "--prepare-first"};
  fs::copy_file(SHERD_TEST_SOURCE_DIR "/recipes/stories260k-squad-32.toml",
                folder.path() / "my.toml");
  EXPECT_THAT(expect_code(64, job).err,
              testing::HasSubstr("--prepare-first makes two job files: name one with --out"));
  const fs::path file = folder.path() / "job.sbatch";
  expect_code(
      0, job + Arguments{"--gpus-per-node", "2", "-o", file, "--", "--time=5", "--gres=gpu:2"});
  const std::string prepare = bytes_of(folder.path() / "job.prepare.sbatch");
  EXPECT_THAT(prepare, testing::HasSubstr(" data prepare "));
  EXPECT_THAT(prepare, testing::HasSubstr("--time=5"));
  EXPECT_THAT(prepare, testing::HasSubstr("--job-name=my-prepare"));
  EXPECT_THAT(prepare, testing::Not(testing::HasSubstr("gpu")));
  EXPECT_THAT(bytes_of(file), testing::HasSubstr("--gres=gpu:2"));
}

}  // namespace
}  // namespace sherd::test
