// `sherd recipes`: what ships with the program, and copies of it.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

TEST(Recipes, ListsWhatShips) {
  const Ended ended = expect_code(0, {"recipes", "ls"});
  EXPECT_EQ(expect_code(0, {"recipes", "list"}).out, ended.out);
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
}

// The program as it is installed, with all that ships beside it and nothing else.
class InstalledRecipes : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(program_.parent_path());
    fs::create_directories(elsewhere_);
    fs::create_directories(folder_.path() / "share/sherd");
    fs::copy_file(SHERD_TEST_BINARY_DIR "/bin/sherd", program_);
    fs::copy(SHERD_TEST_SOURCE_DIR "/recipes", folder_.path() / "share/sherd/recipes",
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }

  // In a folder where nothing is.
  Ended run(const Arguments& arguments) {
    return Program(arguments, {},
                   "cd " + elsewhere_.string() + " && exec " + program_.string() + " \"$@\"")
        .finish();
  }
  static bool is_sweep(const std::string& text) { return text.find("\n[[run]]") != text.npos; }
  // "x" in `recipe = "x"`.
  static std::string recipe_of(const std::string& sweep) {
    const std::string key = "\nrecipe = \"";
    const std::size_t begin = sweep.find(key) + key.size();
    return sweep.substr(begin, sweep.find('"', begin) - begin);
  }

  TempFolder folder_;
  fs::path program_ = folder_.path() / "bin/sherd";
  fs::path elsewhere_ = folder_.path() / "elsewhere";
};

TEST_F(InstalledRecipes, CanAllBeCopiedAndTried) {
  std::istringstream lines(run({"recipes", "ls"}).out);
  int tried = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find(' '));
    const fs::path copy = elsewhere_ / "my.toml";
    fs::remove(copy);
    EXPECT_EQ(run({"recipes", "cp", name, copy.string()}).code, 0) << name;
    const std::string text = read_file(copy);
    EXPECT_THAT(text, testing::Not(HasSubstr(" recipes/" + name + ".toml")));  // but the copy
    const std::string recipe = is_sweep(text) ? recipe_of(text) : copy.string();
    const Ended ended =
        name.starts_with("llama-3-")
            ? run({"plan", recipe, "--device", "h100-80g", "-n", "8"})
            : run({"train", recipe, "--dry-run", "--train.output", elsewhere_ / "run"});
    // Models that are too large to ship with the program.
    if (text.find("bloom-560m") != text.npos || text.find("smollm2-135m") != text.npos) {
      EXPECT_EQ(ended.code, 66) << name;
      EXPECT_THAT(ended.err, testing::Not(HasSubstr("recipes/"))) << name;
    } else {
      EXPECT_THAT(ended.code, testing::AnyOf(0, name.starts_with("llama-3-") ? 1 : 0))
          << name << ended.err;
      ++tried;
    }
  }
  EXPECT_GE(tried, 7);
}

TEST_F(InstalledRecipes, CopiedSweepsRun) {
  EXPECT_EQ(run({"recipes", "cp", "fsdp-against-ddp"}).code, 0);
  const Ended ended = run({"sweep", "fsdp-against-ddp.toml", "--train.max_steps", "1"});
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("shard-grad-op"));
}

TEST(Recipes, RefusesWhatIsNotThereAndWhatIs) {
  const TempFolder folder;
  const std::string kept = folder.write("kept.toml", "mine");
  EXPECT_THAT(expect_code(73, {"recipes", "cp", "small-bloom-squad-32", kept}).err,
              HasSubstr(kept + ": already exists and is kept"));
  EXPECT_EQ(read_file(kept), "mine");
  EXPECT_THAT(expect_code(64, {"recipes", "cp", "small-bloom-squad-23"}).err,
              HasSubstr("there is no recipe 'small-bloom-squad-23'; is it small-bloom-squad-32?"));
  expect_code(64, {"recipes"});
  expect_code(64, {"recipes", "cp"});
}

}  // namespace
}  // namespace sherd::test
