// Ranks prepare a data file once, however long that takes, wherever they look for it.

#include "llm/setup/prepared_data.h"

#include <atomic>
#include <chrono>
#include <fstream>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "llm/setup/load_model.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace llm::setup {
namespace {

namespace fs = std::filesystem;
using Seconds = std::chrono::duration<double>;

const std::string kTokenizerFolder = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";

inputs::Source records_file(const fs::path& path, std::int64_t records) {
  std::ofstream out(path);
  for (std::int64_t i = 0; i < records; ++i) {
    out << R"({"prompt": "Once upon a time there was a child with )" << i
        << R"( stones.", "completion": "It had )" << i << R"( of them."})" << '\n';
  }
  out.close();
  return inputs::open_source(path, {.format = config::DataFormat::Jsonl}, {});
}

const auto kQuiet = [](const std::string& /*line*/) {};

inputs::Prepared prepared_on(sherd::World& world, const inputs::Source& source,
                             const text::PromptEncoder& encoder, const fs::path& cache,
                             const std::function<void(const std::string& line)>& say = kQuiet) {
  return prepare_on_ranks(world, source, encoder, {.folder = cache}, {}, false, say, nullptr);
}

// The file's tokens are in the folder of a rank's own cache.
TEST(TokenizeOnce, IsKeptByEveryRankThatSeesNoOtherCache) {
  const sherd::test::TempFolder folder;
  const inputs::Source file = records_file(folder.path() / "data.jsonl", 20);
  const text::PromptEncoder encoder(load_tokenizer(kTokenizerFolder), {128, 32});
  const auto cache_of = [&](int rank) { return folder.path() / fmt::format("cache{}", rank); };
  std::atomic<int> made = 0;
  const auto run_all = [&] {
    sherd::test::run_ranks(3, [&](sherd::World world) {
      const auto prepared = prepared_on(world, file, encoder, cache_of(world.rank()));
      EXPECT_EQ(prepared.store->size(), 20);
      made += prepared.was_made ? 1 : 0;
    });
  };
  run_all();
  EXPECT_EQ(made, 3);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(std::distance(fs::directory_iterator(cache_of(rank)), {}), 1) << rank;
  }
  run_all();  // nobody encodes
  EXPECT_EQ(made, 3);
}

TEST(TokenizeOnce, IsWrittenByOneRankWhereAllSeeOneCache) {
  const sherd::test::TempFolder folder;
  const inputs::Source file = records_file(folder.path() / "data.jsonl", 20);
  const text::PromptEncoder encoder(load_tokenizer(kTokenizerFolder), {128, 32});
  std::atomic<int> said = 0;
  std::atomic<int> made = 0;
  sherd::test::run_ranks(3, [&](sherd::World world) {
    const auto prepared = prepared_on(world, file, encoder, folder.path() / "cache",
                                      [&](const std::string& /*line*/) { ++said; });
    EXPECT_EQ(prepared.store->size(), 20);
    made += prepared.was_made ? 1 : 0;
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path() / "cache"), {}), 1);
  EXPECT_EQ(said, 0);
  EXPECT_EQ(made, 1);
}

// As many records as take twice as long as ranks wait for each other without news.
TEST(TokenizeOnce, IsNoHangForRanksThatWait) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kTimeout{2};
  constexpr std::int64_t kTried = 2'000;
  const sherd::test::TempFolder folder;
  const text::PromptEncoder encoder(load_tokenizer(kTokenizerFolder), {128, 32});
  const inputs::Source tried = records_file(folder.path() / "tried.jsonl", kTried);
  auto begin = Clock::now();
  static_cast<void>(inputs::prepare(tried, encoder, {}));
  const double each = Seconds(Clock::now() - begin).count() / kTried;
  auto records = static_cast<std::int64_t>(2 * Seconds(kTimeout).count() / each);
  std::atomic<bool> waited = false;
  for (; !waited; records *= 2) {
    const inputs::Source file = records_file(folder.path() / "data.jsonl", records);
    sherd::test::run_ranks(
        2,
        [&](sherd::World world) {
          const auto start = Clock::now();
          const auto prepared = prepared_on(world, file, encoder, folder.path() / "cache");
          EXPECT_EQ(prepared.store->size(), static_cast<std::size_t>(records));
          waited = waited || Clock::now() - start > kTimeout;
        },
        kTimeout);
  }
}

}  // namespace
}  // namespace llm::setup
