// A data file is encoded once, however long that takes, and kept wherever ranks look for it.

#include "llm/train/tokenize_once.h"

#include <atomic>
#include <chrono>
#include <fstream>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "llm/train/load_model.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace llm::train {
namespace {

namespace fs = std::filesystem;
using Seconds = std::chrono::duration<double>;

const std::string kTokenizerFolder = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";

data::DataFile records_file(const fs::path& path, std::int64_t records) {
  std::ofstream out(path);
  for (std::int64_t i = 0; i < records; ++i) {
    out << R"({"prompt": "Once upon a time there was a child with )" << i
        << R"( stones.", "completion": "It had )" << i << R"( of them."})" << '\n';
  }
  out.close();
  return data::read_data_file(path, {.format = config::DataFormat::Jsonl});
}

const auto kQuiet = [](const std::string& /*line*/) {};

// The file's tokens are in the folder of a rank's own cache.
TEST(TokenizeOnce, IsKeptByEveryRankThatSeesNoOtherCache) {
  const sherd::test::TempFolder folder;
  const data::DataFile file = records_file(folder.path() / "data.jsonl", 20);
  const text::PromptEncoder encoder(load_tokenizer(kTokenizerFolder), {128, 32});
  const auto cache_of = [&](int rank) { return folder.path() / fmt::format("cache{}", rank); };
  const auto run_all = [&] {
    sherd::test::run_ranks(3, [&](sherd::World world) {
      const data::TokenCache cache(cache_of(world.rank()).string());
      const TokenizedOnce once = tokenize_once(world, cache, file, encoder, {}, kQuiet, nullptr);
      EXPECT_EQ(once.tokens.samples.size(), 20);
    });
  };
  run_all();
  std::vector<fs::file_time_type> written;
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(std::distance(fs::directory_iterator(cache_of(rank)), {}), 1) << rank;
    written.push_back(fs::last_write_time(fs::directory_iterator(cache_of(rank))->path()));
  }
  run_all();  // nobody encodes
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(fs::last_write_time(fs::directory_iterator(cache_of(rank))->path()),
              written[static_cast<std::size_t>(rank)]);
  }
}

TEST(TokenizeOnce, IsWrittenByOneRankWhereAllSeeOneCache) {
  const sherd::test::TempFolder folder;
  const data::DataFile file = records_file(folder.path() / "data.jsonl", 20);
  const text::PromptEncoder encoder(load_tokenizer(kTokenizerFolder), {128, 32});
  std::atomic<int> said = 0;
  sherd::test::run_ranks(3, [&](sherd::World world) {
    const data::TokenCache cache((folder.path() / "cache").string());
    EXPECT_EQ(
        tokenize_once(
            world, cache, file, encoder, {}, [&](const std::string& /*line*/) { ++said; }, nullptr)
            .tokens.samples.size(),
        20);
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path() / "cache"), {}), 1);
  EXPECT_EQ(said, 0);
}

// As many records as take twice as long as ranks wait for each other without news.
TEST(TokenizeOnce, IsNoHangForRanksThatWait) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kTimeout{2};
  constexpr std::int64_t kTried = 2'000;
  const sherd::test::TempFolder folder;
  const text::PromptEncoder encoder(load_tokenizer(kTokenizerFolder), {128, 32});
  const data::DataFile tried = records_file(folder.path() / "tried.jsonl", kTried);
  auto begin = Clock::now();
  static_cast<void>(data::load_dataset(tried, encoder));
  const double each = Seconds(Clock::now() - begin).count() / kTried;
  auto records = static_cast<std::int64_t>(2 * Seconds(kTimeout).count() / each);
  std::atomic<bool> waited = false;
  for (; !waited; records *= 2) {
    const data::DataFile file = records_file(folder.path() / "data.jsonl", records);
    sherd::test::run_ranks(
        2,
        [&](sherd::World world) {
          const data::TokenCache cache((folder.path() / "cache").string());
          const auto start = Clock::now();
          const auto once = tokenize_once(world, cache, file, encoder, {}, kQuiet, nullptr);
          EXPECT_EQ(once.tokens.samples.size(), static_cast<std::size_t>(records));
          waited = waited || Clock::now() - start > kTimeout;
        },
        kTimeout);
  }
}

}  // namespace
}  // namespace llm::train
