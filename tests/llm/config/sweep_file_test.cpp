// Lists of runs, from files and from flags with several values.

#include "llm/config/sweep_file.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/error.h"
#include "tests/support/temp_folder.h"

namespace llm::config {
namespace {

using sherd::test::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

const std::string kRecipe = SHERD_TEST_SOURCE_DIR "/recipes/stories260k-squad-32.toml";

class SweepFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    return folder_.write("sweep.toml", "recipe = \"" + kRecipe + "\"\n" + text);
  }
  std::string fault(const std::string& text) {
    try {
      static_cast<void>(read_sweep(write(text)));
      return "none";
    } catch (const sherd::Error& error) {
      EXPECT_EQ(error.code(), sherd::ExitCode::Usage);
      return error.what();
    }
  }

 private:
  TempFolder folder_;
};

std::string fault_of_lists(const std::vector<std::string>& flags) {
  try {
    static_cast<void>(sweep_of(kRecipe, flags, {1}));
    return "none";
  } catch (const sherd::Error& error) {
    return error.what();
  }
}

TEST_F(SweepFile, ListsRunsWithWhatTheySet) {
  const auto file = write(R"(output = "runs/x"
[[run]]
name = "a"
ranks = 2
set = { "parallel.strategy" = "no_shard", optim.lr = 1e-5, optim.betas = [0.9, 0.95] }
[[run]]
name = "b"
)");
  EXPECT_TRUE(is_sweep_file(file));
  const Sweep sweep = read_sweep(file);
  EXPECT_EQ(sweep.runs.size(), 2);
  EXPECT_EQ(sweep.runs[0].ranks, 2);
  EXPECT_THAT(flags_of(sweep, sweep.runs[0]),
              ElementsAre("--train.output", "runs/x/a", "--optim.betas", "0.9,0.95", "--optim.lr",
                          "1e-05", "--parallel.strategy", "no_shard"));
  EXPECT_EQ(sweep.runs[1].ranks, 1);
}

TEST_F(SweepFile, ARecipeIsNone) {
  EXPECT_FALSE(is_sweep_file(kRecipe));
  EXPECT_FALSE(is_sweep_file("/no/such/file.toml"));
  EXPECT_FALSE(is_sweep_file(write("no TOML")));
}

TEST_F(SweepFile, ToldWithAllItsFaults) {
  const std::string faults = fault(R"(output = "runs/x"
jobs = 5
[[run]]
name = "a/b"
ranks = 0
hosts = 2
when = "now"
[[run]]
name = "c"
set = { optim.lr = { } , train.epochs = 1979-05-27 }
[[run]]
name = "c"
)");
  EXPECT_THAT(
      faults,
      AllOf(HasSubstr("sweep.toml:3: jobs: unknown key; a sweep has recipe, output and [[run]]"),
            HasSubstr("sweep.toml:4: name: each [[run]] needs a name for its folder"),
            HasSubstr("sweep.toml:6: ranks: must be a number from 1 to 1024"),
            HasSubstr("hosts: 1 rank does not divide over 2 hosts"),
            HasSubstr("sweep.toml:8: when: unknown key; a run has name, ranks, hosts and set"),
            HasSubstr("sweep.toml:11: epochs: train.epochs is given as a word"),
            HasSubstr("name: two runs are called 'c'")));
}

TEST_F(SweepFile, ToldWhatIsMissing) {
  EXPECT_THAT(fault("[[run]]\nname = \"a\"\n"), HasSubstr("output is missing"));
  EXPECT_THAT(fault("output = 5\n[[run]]\nname = \"a\"\n"), HasSubstr("output: must be a string"));
  EXPECT_THAT(fault("output = \n"), HasSubstr("not valid TOML"));
}

TEST_F(SweepFile, EachRunIsSoundBeforeTheFirstBegins) {
  const std::string faults = fault(R"(output = "runs/x"
[[run]]
name = "a"
set = { optim.lr = -1 }
[[run]]
name = "b"
[[run]]
name = "c"
set = { optim.rate = 1 }
)");
  EXPECT_THAT(faults, AllOf(HasSubstr("run 'a': --optim.lr -1: "), Not(HasSubstr("run 'b'")),
                            HasSubstr("run 'c': --optim.rate: unknown")));
}

TEST(SweepOfLists, IsEachCombination) {
  const Sweep sweep = sweep_of(kRecipe,
                               {"--parallel.strategy", "no_shard,full_shard",
                                "--optim.betas=0.9,0.95", "--train.output", "runs/x"},
                               {1, 2});
  std::vector<std::string> names;
  for (const SweepRun& run : sweep.runs) {
    names.push_back(run.name);
  }
  EXPECT_THAT(names, ElementsAre("no_shard-n1", "no_shard-n2", "full_shard-n1", "full_shard-n2"));
  EXPECT_EQ(sweep.output, "runs/x");
  EXPECT_THAT(sweep.runs[3].set, ElementsAre(Pair("parallel.strategy", "full_shard"),
                                             Pair("optim.betas", "0.9,0.95")));
}

TEST(SweepOfLists, HasAFolderOfItsOwn) {
  const Sweep sweep = sweep_of(kRecipe, {}, {2});
  EXPECT_EQ(sweep.output, "runs/stories260k-squad-32-sweep");
  EXPECT_EQ(sweep.runs.at(0).name, "n2");
}

TEST(SweepOfLists, TakesSeveralWordsOfOneKey) {
  const Sweep sweep = sweep_of(kRecipe, {"--model.path", "models/a,models/b"}, {1});
  ASSERT_EQ(sweep.runs.size(), 2);
  EXPECT_EQ(sweep.runs[1].name, "models_b");
}

TEST(SweepOfLists, OneLogIsNotThatOfAllRuns) {
  EXPECT_THAT(fault_of_lists({"--log.sink[0].path", "x.jsonl", "--optim.lr", "1e-4,1e-3"}),
              HasSubstr("the path x.jsonl of a log.sink would be shared by all runs"));
}

TEST(SweepOfLists, ToldItsFaults) {
  EXPECT_THAT(fault_of_lists({"--optim.lr"}), HasSubstr("is given as --section.key value"));
  EXPECT_THAT(fault_of_lists({"word", "1"}), HasSubstr("'word': a setting is given as"));
  EXPECT_THAT(fault_of_lists({"--optim.lr", "1e-5,x"}), HasSubstr("run 'x': --optim.lr x"));
  EXPECT_THAT(fault_of_lists({"--optim.lr", "1,1"}), HasSubstr("two runs are called 'lr=1'"));
}

}  // namespace
}  // namespace llm::config
