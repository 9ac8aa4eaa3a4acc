#include "llm/hub/cache.h"

#include <cerrno>
#include <thread>

#include <sys/stat.h>
#include <sys/syscall.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tests/support/without_system_call.h"

namespace llm::hub {
namespace {

namespace fs = std::filesystem;
using sherd::test::bytes_of;
using sherd::test::TempFolder;

const Repo kRepo{RepoKind::Model, "org/name"};
const std::string kCommit(40, 'c');

class Cache : public testing::Test {
 protected:
  Cache() { cache.make_folders(); }
  // A blob of this content under a name of the snapshot.
  void put(const std::string& path, const std::string& content) const {
    const std::string digest = std::to_string(std::hash<std::string>{}(content));
    std::ofstream(cache.blob(digest)) << content;
    cache.link(kCommit, path, digest);
  }

  TempFolder folder;
  RepoCache cache{folder.path(), kRepo};
};

TEST_F(Cache, LinksFilesOfFoldersToo) {
  put("a/b/c.json", "content");
  EXPECT_EQ(bytes_of(cache.snapshot(kCommit) / "a/b/c.json"), "content");
  EXPECT_TRUE(fs::read_symlink(cache.snapshot(kCommit) / "a/b/c.json").is_relative());
  put("a/b/c.json", "other");  // whatever was there
  put("a/b/c.json", "other");
  EXPECT_EQ(bytes_of(cache.snapshot(kCommit) / "a/b/c.json"), "other");
}

TEST_F(Cache, AModelIsWholeWithAllItsWeights) {
  cache.set_commit_of("refs/pr/1", kCommit);
  EXPECT_EQ(cache.commit_of("refs/pr/1"), kCommit);
  EXPECT_EQ(cache.commit_of("main"), std::nullopt);
  put("config.json", "{}");
  put("tokenizer.json", "{}");
  EXPECT_EQ(cache.whole_model("refs/pr/1"), std::nullopt);
  put("model.safetensors.index.json",
      R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})");
  put("model-1.safetensors", "1");
  EXPECT_EQ(cache.whole_model(kCommit), std::nullopt);
  for (const char* const index : {"{", "[]", R"({"weight_map": {}})", R"({"weight_map": {"a": 1}})",
                                  R"({"weight_map": {"a": "../../model-1.safetensors"}})"}) {
    const std::string right = bytes_of(cache.snapshot(kCommit) / "model.safetensors.index.json");
    put("model.safetensors.index.json", index);
    EXPECT_EQ(cache.whole_model(kCommit), std::nullopt) << index;
    put("model.safetensors.index.json", right);
  }
  put("model-2.safetensors", "2");
  EXPECT_EQ(cache.whole_model(kCommit), cache.snapshot(kCommit));
  EXPECT_EQ(cache.whole_model("refs/pr/1"), cache.snapshot(kCommit));
  for (const auto& blob : fs::directory_iterator(folder.path() / "models--org--name/blobs")) {
    fs::remove(blob);
  }
  EXPECT_EQ(cache.whole_model(kCommit), std::nullopt);  // links that lead nowhere
}

TEST_F(Cache, ALockIsHeldByOne) {
  auto held = cache.lock("blob", [] { FAIL() << "waits for nobody"; });
  EXPECT_TRUE(fs::exists(folder.path() / ".locks/models--org--name/blob.lock"));
  bool waited = false;
  std::thread other([&] {
    const auto lock = cache.lock("blob", [&] {
      waited = true;
      held.close();
    });
  });
  other.join();
  EXPECT_TRUE(waited);
}

TEST_F(Cache, ALockThatWasRemovedIsNone) {
  auto held = cache.lock("blob", [] { FAIL() << "waits for nobody"; });
  const fs::path path = folder.path() / ".locks/models--org--name/blob.lock";
  sherd::files::FileDescriptor newer;
  const auto waited_for = cache.lock("blob", [&] {
    fs::remove(path);  // whoever comes now makes another
    newer = cache.lock("blob", [] { FAIL() << "waits for nobody"; });
    held.close();
    newer.close();
  });
  struct stat is = {};
  struct stat named = {};
  ASSERT_EQ(::fstat(waited_for.get(), &is), 0);
  ASSERT_EQ(::stat(path.c_str(), &named), 0);
  EXPECT_EQ(is.st_ino, named.st_ino);
}

TEST_F(Cache, DoesWithoutLocksWhereThereAreNone) {
  for (const int error : {ENOSYS, EOPNOTSUPP, ENOLCK}) {
    EXPECT_EQ(sherd::test::without_system_call(SYS_flock, error,
                                               [&] {
                                                 const auto lock = cache.lock("blob", [] {});
                                                 return lock.get() < 0 ? 0 : 1;
                                               }),
              0);
  }
}

TEST_F(Cache, SaysWhereItCannotBe) {
  const RepoCache nowhere("/dev/null/hub", kRepo);
  sherd::test::expect_error([&] { nowhere.make_folders(); }, sherd::ExitCode::CannotWrite,
                            {"/dev/null/hub/models--org--name/blobs", "HF_HUB_CACHE"});
}

}  // namespace
}  // namespace llm::hub
