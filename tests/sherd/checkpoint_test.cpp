// A checkpoint holds every value and moment bit by bit, for any number of ranks; a save that fails
// changes nothing.

#include "sherd/checkpoint.h"

#include <atomic>
#include <csignal>

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "sherd/error.h"
#include "tests/sherd/saved_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_disk.h"
#include "tests/support/temp_folder.h"

namespace sherd::test {
namespace {

class CheckpointWorlds : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(CheckpointWorlds, EveryValueAndMomentComesBack) {
  const auto [saved_by, loaded_by] = GetParam();
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  State loaded;
  save(saved_by, path, saved);
  load(loaded_by, path, loaded);
  EXPECT_EQ(saved.size(), 3 * 16U);  // three kinds of 8 linears' weights and biases
  EXPECT_THAT(saved.differences(loaded), testing::IsEmpty());
  EXPECT_EQ(CheckpointManifest::read(path).world_size, saved_by);
}

INSTANTIATE_TEST_SUITE_P(Sizes, CheckpointWorlds,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values(1, 2, 3)));

TEST(Checkpoint, TrainingGoesOnAsIfNothingHadHappened) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State whole;
  State resumed;
  on_each_rank(2, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 3, 0);
    save_checkpoint(model, optimizer, path, kNote);
    train(model, optimizer, 2, 3);
    whole.add(model, optimizer);
  });
  on_each_rank(2, [&](Model& model, AdamW& optimizer) {
    load_checkpoint(model, optimizer, path);
    train(model, optimizer, 2, 3);
    resumed.add(model, optimizer);
  });
  EXPECT_THAT(whole.differences(resumed), testing::IsEmpty());
}

TEST(Checkpoint, ReplacesAnOlderOneOfItsName) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State first;
  State second;
  State loaded;
  save(3, path, first);
  save(2, path, second, 7);
  load(1, path, loaded);
  EXPECT_THAT(second.differences(loaded), testing::IsEmpty());
  EXPECT_THAT(first.differences(loaded), testing::Not(testing::IsEmpty()));
  EXPECT_THAT(contents(folder.path()), testing::SizeIs(4));  // folder, two shards, manifest
}

TEST(Checkpoint, MayBeNamedWithASlashAtTheEnd) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  State loaded;
  save(2, path + "/", saved);
  load(2, path, loaded);
  save(1, path + "//", saved);
  EXPECT_THAT(contents(folder.path()), testing::SizeIs(3));  // folder, shard, manifest
  for (const char* name : {"", "/", ".", "..", "checkpoint/.."}) {
    on_each_rank(1, [&](Model& model, AdamW& optimizer) {
      expect_error([&] { save_checkpoint(model, optimizer, name, kNote); }, ExitCode::CannotWrite,
                   {"'" + std::string(name) + "' cannot be the folder of a checkpoint"});
    });
  }
}

// Saves to `path` on two ranks; every rank must be refused, and nothing may change.
void expect_not_replaced(const TempFolder& folder, const std::string& path,
                         const std::vector<std::string>& parts) {
  const auto before = contents(folder.path());
  on_each_rank(2, [&](Model& model, AdamW& optimizer) {
    expect_error([&] { save_checkpoint(model, optimizer, path, kNote); }, ExitCode::CannotWrite,
                 parts);
  });
  EXPECT_EQ(contents(folder.path()), before);
}

TEST(Checkpoint, NeverReplacesWhatIsNoCheckpoint) {
  const TempFolder folder;
  const std::string path = folder.path() / "mine";
  folder.write("mine", "a file");
  expect_not_replaced(folder, path, {"'" + path + "' is a file, not a checkpoint"});
  fs::remove(path);
  fs::create_directory(path);
  folder.write("mine/thesis.tex", "the only copy");
  const std::vector<std::string> parts = {"holds 'thesis.tex', which is not part of a checkpoint"};
  expect_not_replaced(folder, path, parts);
  folder.write("mine/manifest.json", "{}");  // a web application's, for instance
  expect_not_replaced(folder, path, parts);
  for (const char* beside : {"other.tmp", "other.old"}) {  // the names that a save needs meanwhile
    fs::rename(path, folder.path() / beside);
    expect_not_replaced(folder, folder.path() / "other", parts);
    fs::rename(folder.path() / beside, path);
  }
}

TEST(Checkpoint, ReplacesAnEmptyFolderADamagedCheckpointAndTheTargetOfALink) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  fs::create_directory(path);
  State saved;
  State loaded;
  save(2, path, saved);
  fs::resize_file(path + "/manifest.json", 10);
  save(2, path, saved);
  fs::create_directory_symlink("checkpoint", folder.path() / "link");
  save(2, folder.path() / "link", saved);
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  load(1, path, loaded);
  EXPECT_THAT(saved.differences(loaded), testing::IsEmpty());
}

TEST(Checkpoint, WhereNoFolderCanBeIsRefusedOnEveryRank) {
  const TempFolder folder;
  const std::string path = folder.write("file", "keep me") / "checkpoint";
  on_each_rank(2, [&](Model& model, AdamW& optimizer) {
    expect_error([&] { save_checkpoint(model, optimizer, path, kNote); }, ExitCode::CannotWrite,
                 {"the checkpoint could not be written, rank 0", path});
  });
  EXPECT_EQ(read_file(folder.path() / "file"), "keep me");
}

// Of blocks and of inodes; every rank knows that a later try may succeed.
TEST(Checkpoint, OnAFullDiskThrowsNoRoomOnEveryRankAndLeavesNothing) {
  for (const char* options : {"size=16k", "size=1m,nr_inodes=3"}) {
    const TempFolder folder;
    const SmallDisk disk(folder.path() / "disk", options);
    if (!disk.is_there()) {
      GTEST_SKIP() << SmallDisk::kWhyNot;
    }
    std::ofstream(disk.path() / "other") << std::string(16'000, 'x');
    const std::string path = disk.path() / "checkpoint";
    std::atomic<int> ranks{0};
    on_each_rank(2, [&](Model& model, AdamW& optimizer) {
      try {
        save_checkpoint(model, optimizer, path, kNote);
      } catch (const NoRoom& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("No space left on device"));
        ++ranks;
      }
    });
    EXPECT_EQ(ranks, 2) << options;
    EXPECT_EQ(std::distance(fs::directory_iterator(disk.path()), {}), 1) << options;
  }
}

TEST(Checkpoint, ThatLacksAFileOrATensorIsFoundWithoutReadingIt) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  const std::string shard = path + "/shard-00001-of-00002.safetensors";
  State saved;
  save(2, path, saved);
  EXPECT_EQ(require_checkpoint_files(path).note, kNote);
  fs::resize_file(shard, fs::file_size(shard) - 1);
  expect_error([&] { require_checkpoint_files(path); }, ExitCode::BadData, {shard});
  fs::copy_file(path + "/shard-00000-of-00002.safetensors", shard,
                fs::copy_options::overwrite_existing);
  expect_error([&] { require_checkpoint_files(path); }, ExitCode::BadData,
               {shard, "does not match the manifest"});
  fs::remove(shard);
  expect_error([&] { require_checkpoint_files(path); }, ExitCode::InputMissing, {shard});
}

TEST(Checkpoint, IsRemovedButNotWhatLiesBesideIt) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  save(2, path, saved);
  EXPECT_TRUE(has_checkpoint_files(path));
  EXPECT_THAT(names_beside_checkpoint(path), testing::IsEmpty());
  folder.write("checkpoint/manifest.json.tmp-12", "of a killed save");
  folder.write("checkpoint/thesis.tex", "the only copy");
  remove_checkpoint(path);
  EXPECT_FALSE(has_checkpoint_files(path));
  EXPECT_THAT(names_beside_checkpoint(path), testing::ElementsAre("thesis.tex"));
  EXPECT_EQ(std::distance(fs::directory_iterator(path), {}), 1);
  fs::remove(fs::path(path) / "thesis.tex");
  folder.write("checkpoint/manifest.json", "");
  remove_checkpoint(path);
  EXPECT_FALSE(fs::exists(path));
}

// Files of this process may not grow beyond some bytes, as on a full disk.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFiles() { setrlimit(RLIMIT_FSIZE, &before_); }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  rlimit before_{};
};

TEST(Checkpoint, ThatCannotBeWrittenWholeLeavesTheOlderOneAlone) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  save(2, path, saved);
  const auto before = contents(folder.path());
  for (const rlim_t bytes : {100, 3000}) {  // less than the header, less than the tensors
    const SmallFiles disk(bytes);
    on_each_rank(2, [&](Model& model, AdamW& optimizer) {
      train(model, optimizer, 1, 20);
      expect_error([&] { save_checkpoint(model, optimizer, path, kNote); }, ExitCode::CannotWrite,
                   {"the checkpoint could not be written, rank 0", "File too large"});
    });
  }
  EXPECT_EQ(contents(folder.path()), before);
}

}  // namespace
}  // namespace sherd::test
