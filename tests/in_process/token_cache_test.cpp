// What one run has tokenized, the next one uses.

#include "tests/in_process/run_program.h"

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

}  // namespace
}  // namespace sherd::test
