// `sherd recipes`: what ships with the program, and copies of it.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

TEST(Recipes, ListsWhatShips) {
  const Ended ended = expect_code(0, {"recipes", "ls"});
  EXPECT_THAT(ended.out, HasSubstr("\nsmall-bloom-squad-32 "));
  EXPECT_THAT(ended.out, HasSubstr("\nworkshop/small-bloom "));
  std::istringstream lines(ended.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_GT(line.find_last_not_of(' '), line.find("  ") + 2) << line;  // each has its words
    EXPECT_LT(line.size(), 160U) << line;
  }
}

// A line of the comment at the head may be "#" alone.
TEST(Recipes, AreSummedUpByTheFirstSentenceOfTheirHead) {
  const TempFolder folder;
  fs::create_directories(folder.path() / "bin");
  fs::create_directories(folder.path() / "share/sherd/recipes");
  const fs::path program = folder.path() / "bin/sherd";
  fs::copy_file(SHERD_TEST_BINARY_DIR "/bin/sherd", program);
  folder.write("share/sherd/recipes/one.toml", "#\n# One of\n#\n# mine. And more.\nx = 1\n");
  folder.write("share/sherd/recipes/two.toml", "# Two\n#");
  const Ended ended = Program({}, {}, "exec " + program.string() + " recipes ls").finish();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "one  One of mine\ntwo  Two\n");
}

TEST(Recipes, ACopyRunsFromAnyFolder) {
  const TempFolder folder;
  const fs::path copy = folder.path() / "my.toml";
  EXPECT_EQ(expect_code(0, {"recipes", "cp", "small-bloom-squad-32", copy.string()}).out,
            copy.string() + "\n");
  const Ended ended =
      Program({"train", copy.string(), "--dry-run", "--train.output", folder.path() / "run"}, {},
              "cd / && exec \"$0\" \"$@\"")
          .finish();
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  expect_code(0, {"recipes", "cp", "workshop/small-bloom", folder.path().string()});
  EXPECT_THAT(read_file(folder.path() / "small-bloom.toml"),
              HasSubstr("/recipes/workshop/small-bloom-run.toml\""));
}

TEST(Recipes, RefusesWhatIsNotThereAndWhatIs) {
  const TempFolder folder;
  const std::string kept = folder.write("kept.toml", "mine");
  EXPECT_THAT(expect_code(73, {"recipes", "cp", "small-bloom-squad-32", kept}).err,
              HasSubstr(kept + ": is there already, and is kept"));
  EXPECT_EQ(read_file(kept), "mine");
  EXPECT_THAT(expect_code(64, {"recipes", "cp", "small-bloom-squad-23"}).err,
              HasSubstr("there is no recipe 'small-bloom-squad-23'; is it small-bloom-squad-32?"));
  expect_code(64, {"recipes"});
  expect_code(64, {"recipes", "cp"});
}

}  // namespace
}  // namespace sherd::test
