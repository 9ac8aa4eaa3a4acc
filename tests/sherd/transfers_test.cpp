// Reads and writes that go on beside the caller, of both kinds.

#include "files/transfers.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "files/file_descriptor.h"
#include "files/unnamed_file.h"
#include "storage/file_storage.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace sherd::detail {
namespace {

using files::Transfers;
using files::transfers_by_io_uring;
using files::transfers_by_threads;
using files::UnnamedFile;

using Direction = Transfers::Direction;
using Make = std::unique_ptr<Transfers> (*)(int, std::string);

class TransfersTest : public testing::TestWithParam<Make> {
 protected:
  std::unique_ptr<Transfers> make(int flags = 0) {
    file_ = files::FileDescriptor(
        ::open((folder_.path() / "f").c_str(), O_RDWR | O_CREAT | flags, 0600));
    auto transfers = GetParam()(file_.get(), "the file");
    if (transfers == nullptr) {
      reason_ = "SKIPPED: io_uring is refused here, or liburing was not found";
    }
    return transfers;
  }
  std::string reason_;

 private:
  test::TempFolder folder_;
  files::FileDescriptor file_;
};

struct Free {
  void operator()(char* data) const { std::free(data); }
};
using Aligned = std::unique_ptr<char, Free>;

Aligned aligned(std::int64_t bytes) {
  return Aligned(static_cast<char*>(std::aligned_alloc(4096, static_cast<std::size_t>(bytes))));
}

// Sizes around the parts that transfers are cut into, several under way at once.
TEST_P(TransfersTest, MoveWhatTheyAreGiven) {
  const auto transfers = make(O_DIRECT);
  if (transfers == nullptr) {
    GTEST_SKIP() << reason_;
  }
  constexpr std::int64_t kPage = 4096;
  const std::int64_t sizes[] = {kPage, 3 * kPage, (4 << 20) + kPage, (33 << 20), 16 << 20};
  struct Moved {
    Aligned data;
    std::int64_t bytes;
    std::int64_t offset;
    Transfers::Ticket ticket;
  };
  std::vector<Moved> all;
  std::int64_t offset = 0;
  std::mt19937_64 random(3);
  for (const std::int64_t bytes : sizes) {
    Aligned data = aligned(bytes);
    std::generate_n(reinterpret_cast<std::uint64_t*>(data.get()), bytes / 8, std::ref(random));
    const auto ticket = transfers->start(Direction::Write, data.get(), bytes, offset);
    all.push_back({std::move(data), bytes, offset, ticket});
    offset += bytes;
  }
  for (auto moved = all.rbegin(); moved != all.rend(); ++moved) {  // in any order
    transfers->wait(moved->ticket);
  }
  for (Moved& moved : all) {
    const Aligned back = aligned(moved.bytes);
    const auto ticket = transfers->start(Direction::Read, back.get(), moved.bytes, moved.offset);
    transfers->wait(ticket);
    EXPECT_TRUE(std::equal(back.get(), back.get() + moved.bytes, moved.data.get()));
  }
}

TEST_P(TransfersTest, SayWhatFailed) {
  const auto transfers = make();
  if (transfers == nullptr) {
    GTEST_SKIP() << reason_;
  }
  const Aligned data = aligned(8192);
  const auto beyond = transfers->start(Direction::Read, data.get(), 8192, 1 << 20);
  test::expect_error([&] { transfers->wait(beyond); }, ExitCode::StorageIo,
                     {"reading from the file failed: it ends too early", "last checkpoint"});
  const auto refused = transfers->start(Direction::Write, data.get(), 4096, -5);
  test::expect_error([&] { transfers->wait(refused); }, ExitCode::StorageIo,
                     {"writing to the file failed: Invalid argument"});
  const auto good = transfers->start(Direction::Write, data.get(), 4096, 0);
  transfers->wait(good);  // as before
}

TEST_P(TransfersTest, EndBeforeTheyGo) {
  const Aligned data = aligned(64 << 20);
  auto transfers = make();
  if (transfers == nullptr) {
    GTEST_SKIP() << reason_;
  }
  static_cast<void>(transfers->start(Direction::Write, data.get(), 64 << 20, 0));
  transfers.reset();  // `data` is not read any more
}

INSTANTIATE_TEST_SUITE_P(Each, TransfersTest,
                         testing::Values(&transfers_by_threads, &transfers_by_io_uring),
                         [](const auto& one) { return one.index == 0 ? "Threads" : "IoUring"; });

TEST(OffloadFile, HasNoNameAndIsZeroAtFirst) {
  const test::TempFolder folder;
  UnnamedFile file((folder.path() / "new/one").string());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "new/one"));
  EXPECT_EQ(file.allocate(8192), 0);
  EXPECT_EQ(file.allocate(4096), 8192);
  const Aligned data = aligned(4096);
  std::fill_n(data.get(), 4096, 'x');
  file.transfers().wait(file.transfers().start(Direction::Read, data.get(), 4096, 8192));
  EXPECT_EQ(std::count(data.get(), data.get() + 4096, '\0'), 4096);
}

TEST(OffloadFile, SaysWhereThereIsNoRoomOrNoFolder) {
  const test::TempFolder folder;
  const std::string path = (folder.path() / "file").string();
  std::ofstream(path) << "x";
  test::expect_error([&] { UnnamedFile file(path); }, ExitCode::CannotWrite, {path});
  const std::string here = folder.path().string();
  UnnamedFile file(here);
  test::expect_error([&] { static_cast<void>(file.allocate(std::int64_t{1} << 50)); },
                     ExitCode::CannotWrite,
                     {"no room for offloading to '" + here + "'", "are free", "Make room"});
  EXPECT_EQ(file.allocate(4096), 0);
}

// More than may be in memory at once, used in any order, in overlapping views.
TEST(FileStorage, KeepsWhatIsWrittenWhileChunksComeAndGo) {
  const test::TempFolder folder;
  const auto ledger = std::make_shared<MemoryLedger>();
  const auto store =
      std::make_shared<FileStore>(folder.path().string(), c10::Device(c10::kCPU), ledger);
  constexpr std::int64_t kElements = 24 * FileChunk::kBytes / 8;
  const std::int64_t limit = 8 * FileChunk::kBytes;
  {
    FileStorage storage(store, kElements, c10::kLong);
    std::vector<std::int64_t> expected(kElements, 0);
    std::mt19937_64 random(7);
    for (int round = 0; round < 400; ++round) {
      const auto first = static_cast<std::int64_t>(random() % (kElements - 1));
      const auto most = std::min<std::int64_t>(kElements - first, 700'000);
      const auto numel = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most)) + 1;
      const at::Tensor view = storage.tensor().narrow(0, first, numel);
      const bool writes = random() % 2 == 0;
      {
        const auto in_use = storage.use(view, writes);
        auto* const data = writes ? view.mutable_data_ptr<std::int64_t>()
                                  : const_cast<std::int64_t*>(view.const_data_ptr<std::int64_t>());
        ASSERT_TRUE(std::equal(data, data + numel, expected.begin() + first)) << round;
        if (writes) {
          std::fill(data, data + numel, round);
          std::fill_n(expected.begin() + first, numel, round);
        }
      }
      if (random() % 3 == 0) {
        storage.write_back(view);
      }
      if (random() % 50 == 0) {
        store->free_memory();
        EXPECT_EQ(ledger->bytes(MemoryKind::OffloadSlot), 0);
      }
      storage.read_ahead(storage.tensor().narrow(0, first / 2, 1));
      EXPECT_LE(ledger->bytes(MemoryKind::OffloadSlot), limit);
    }
    EXPECT_EQ(ledger->offloaded_bytes(), kElements * 8);
  }
  EXPECT_EQ(ledger->total_bytes(), 0);
  EXPECT_EQ(ledger->offloaded_bytes(), 0);
}

TEST(FileStorageDeathTest, LeavesNoOtherMemoryToTensorsThatOutliveIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const test::TempFolder folder;
  at::Tensor kept;
  {
    const auto store = std::make_shared<FileStore>(folder.path().string(), c10::Device(c10::kCPU),
                                                   std::make_shared<MemoryLedger>());
    FileStorage storage(store, 4 * FileChunk::kBytes / 8, c10::kLong);
    kept = storage.tensor();
  }
  std::vector<Mapping> later;  // of the same size, which the system would put there
  for (int i = 0; i < 8; ++i) {
    later.push_back(map_memory(4 * FileChunk::kBytes, PROT_READ | PROT_WRITE));
  }
  EXPECT_DEATH(std::abs(*kept.const_data_ptr<std::int64_t>()), "");
}

}  // namespace
}  // namespace sherd::detail
