// Which folders count as checkpoints, which are kept, and which a run resumes from.

#include "llm/setup/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::setup {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

class CheckpointFolders : public testing::Test {
 protected:
  // A folder of the run's checkpoints, with a manifest if it is to be complete.
  fs::path make(const std::string& name, bool complete = true) const {
    const fs::path path = folder_.path() / "checkpoints" / name;
    fs::create_directories(path);
    std::ofstream(path / "shard-00000-of-00001.safetensors") << "data";
    if (complete) {
      std::ofstream(path / "manifest.json") << "{}";
    }
    return path;
  }

  sherd::test::TempFolder folder_;
  Checkpoints checkpoints_{folder_.path()};
};

TEST_F(CheckpointFolders, AreNamedByTheirStep) {
  EXPECT_EQ(checkpoints_.folder_of(120), folder_.path() / "checkpoints/step-00000120");
  EXPECT_EQ(checkpoints_.folder_of(1234567890).filename(), "step-1234567890");
}

TEST_F(CheckpointFolders, CountOnlyWithAManifestAndTheirOwnName) {
  EXPECT_THAT(checkpoints_.complete_steps(), IsEmpty());
  make("step-00000020");
  make("step-00000003");
  make("step-00000030", false);
  for (const char* other : {"step-00000040.tmp", "step-00000040.old", "step-50", "step-", "best"}) {
    make(other);
  }
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(3, 20));
}

TEST_F(CheckpointFolders, PruningKeepsTheNewest) {
  for (const std::int64_t step : {2, 4, 6, 8}) {
    make(checkpoints_.folder_of(step).filename());
  }
  checkpoints_.prune(2, 8);
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(6, 8));
  EXPECT_FALSE(fs::exists(checkpoints_.folder_of(4)));
  checkpoints_.prune(9, 8);
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(6, 8));
}

TEST_F(CheckpointFolders, PruningKeepsTheBestBesideTheNewest) {
  for (const std::int64_t step : {2, 4, 6, 8}) {
    make(checkpoints_.folder_of(step).filename());
  }
  checkpoints_.prune(2, 8, 4);
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(4, 6, 8));
  checkpoints_.prune(2, 8, 8);
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(6, 8));
  checkpoints_.prune(1, 8, 3);  // which has none
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(8));
}

TEST_F(CheckpointFolders, PruningLeavesLaterOnes) {
  for (const std::int64_t step : {2, 4, 6, 40, 60}) {
    make(checkpoints_.folder_of(step).filename());
  }
  checkpoints_.prune(2, 6);
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(4, 6, 40, 60));
}

TEST_F(CheckpointFolders, AreAllRemovedWhenAskedAndNothingElse) {
  make("step-00000002");
  make("step-00000004");
  make("step-00000006.tmp", false);
  const fs::path foreign = make("best");
  checkpoints_.remove_all();
  EXPECT_THAT(checkpoints_.complete_steps(), IsEmpty());
  EXPECT_FALSE(fs::exists(folder_.path() / "checkpoints/step-00000006.tmp"));
  EXPECT_TRUE(fs::exists(foreign / "manifest.json"));
}

TEST_F(CheckpointFolders, ThatAreDamagedAreSetAside) {
  make("step-00000002");
  for (int time = 0; time < 2; ++time) {
    make("step-00000004");
    checkpoints_.set_aside({4});
    EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(2));
    EXPECT_TRUE(fs::exists(folder_.path() / "checkpoints/step-00000004.damaged/manifest.json"));
  }
}

TEST_F(CheckpointFolders, OnlyThoseThatWereLastSetAsideAreKept) {
  for (const char* name : {"step-00000002", "step-00000004", "step-00000006", "step-00000008"}) {
    make(name);
  }
  checkpoints_.set_aside({8});
  checkpoints_.set_aside({});
  EXPECT_TRUE(fs::exists(folder_.path() / "checkpoints/step-00000008.damaged"));
  checkpoints_.set_aside({6, 4});
  EXPECT_FALSE(fs::exists(folder_.path() / "checkpoints/step-00000008.damaged"));
  EXPECT_TRUE(fs::exists(folder_.path() / "checkpoints/step-00000004.damaged"));
  EXPECT_TRUE(fs::exists(folder_.path() / "checkpoints/step-00000006.damaged"));
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(2));
}

TEST_F(CheckpointFolders, WithoutAManifestAreFound) {
  make("step-00000002", false);
  make("step-00000004");
  make("step-00000006", false);
  fs::create_directory(folder_.path() / "checkpoints/step-00000008");
  EXPECT_THAT(checkpoints_.steps_without_manifest(2), ElementsAre(6));
}

// What a user has put there is nobody else's.
TEST_F(CheckpointFolders, KeepOtherFiles) {
  const fs::path pruned = make("step-00000001");
  const fs::path leftover = make("step-00000002.tmp", false);
  const fs::path others_only = folder_.path() / "checkpoints/step-00000003";
  fs::create_directory(others_only);
  for (const fs::path& folder : {pruned, leftover, others_only}) {
    std::ofstream(folder / "thesis.tex") << "the only copy";
  }
  const std::vector<const char*> similar = {
      "shard-of-mine.safetensors", "manifest.json.bak",  "shard-00000",
      "shard-0-of-.safetensors",   "manifest.json.tmp-", "manifest.json.tmp-12x",
      "shard-manifest.json"};
  for (const char* name : similar) {
    std::ofstream(pruned / name) << "mine too";
  }
  make("step-00000004");
  EXPECT_THAT(checkpoints_.prune(1, 4), testing::UnorderedElementsAre(pruned, leftover));
  EXPECT_THAT(checkpoints_.prune(1, 4), IsEmpty());  // told once
  checkpoints_.remove_all();
  EXPECT_THAT(checkpoints_.complete_steps(), IsEmpty());
  for (const fs::path& folder : {pruned, leftover, others_only}) {
    EXPECT_TRUE(fs::exists(folder / "thesis.tex")) << folder;
    EXPECT_FALSE(fs::exists(folder / "shard-00000-of-00001.safetensors")) << folder;
  }
  for (const char* name : similar) {
    EXPECT_TRUE(fs::exists(pruned / name)) << name;
  }
  EXPECT_EQ(checkpoints_.other_file_after(1), others_only / "thesis.tex");
  EXPECT_EQ(checkpoints_.other_file_after(3), std::nullopt);
}

TEST_F(CheckpointFolders, BehindALinkAreLeftThere) {
  const fs::path elsewhere = make("step-00000001");
  fs::rename(elsewhere, folder_.path() / "elsewhere");
  fs::create_symlink(folder_.path() / "elsewhere", elsewhere);
  make("step-00000002");
  checkpoints_.prune(1, 2);
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(2));
  EXPECT_TRUE(fs::exists(folder_.path() / "elsewhere/manifest.json"));
}

TEST_F(CheckpointFolders, MakeRoomButNotOfTheNewest) {
  for (const std::int64_t step : {2, 4, 6}) {
    make(checkpoints_.folder_of(step).filename());
  }
  EXPECT_EQ(checkpoints_.bytes(), 3 * 6);                    // "{}" and "data" in each
  EXPECT_FALSE(checkpoints_.make_room(2, 8, std::nullopt));  // which is not there
  EXPECT_FALSE(checkpoints_.make_room(4, 6, std::nullopt));
  EXPECT_FALSE(checkpoints_.make_room(3, 6, 2));  // the best
  EXPECT_TRUE(checkpoints_.make_room(3, 6, std::nullopt));
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(4, 6));
  EXPECT_TRUE(checkpoints_.make_room(1, 6, std::nullopt));
  EXPECT_FALSE(checkpoints_.make_room(1, 6, std::nullopt));
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(6));
}

TEST_F(CheckpointFolders, PruningRemovesLeftoversAndNothingElse) {
  make("step-00000002");
  const fs::path leftovers[] = {make("step-00000004.tmp", false), make("step-00000002.old"),
                                make("step-00000001", false)};
  const fs::path foreign[] = {make("step-00000004.keep"), make("best"), make("step-4")};
  checkpoints_.prune(1, 2);
  EXPECT_THAT(checkpoints_.complete_steps(), ElementsAre(2));
  for (const fs::path& path : leftovers) {
    EXPECT_FALSE(fs::exists(path)) << path;
  }
  for (const fs::path& path : foreign) {
    EXPECT_TRUE(fs::exists(path / "manifest.json")) << path;
  }
}

TEST_F(CheckpointFolders, AreFoundAtTheirPathAndAtTheirRuns) {
  const fs::path older = make("step-00000002");
  const fs::path newest = make("step-00000004");
  make("step-00000006", false);
  EXPECT_THAT(checkpoints_at(older, "key"), ElementsAre(older));
  EXPECT_THAT(checkpoints_at(folder_.path(), "key"), ElementsAre(newest, older));
  sherd::test::expect_error([&] { static_cast<void>(checkpoints_at("/no/run", "--checkpoint")); },
                            sherd::ExitCode::InputMissing,
                            {"--checkpoint: there is no complete checkpoint in '/no/run'"});
}

}  // namespace
}  // namespace llm::setup
