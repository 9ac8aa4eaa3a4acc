#include "llm/text/parquet.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/text/squad.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using sherd::ExitCode;
using sherd::test::bytes_of;
using sherd::test::expect_error;

const std::filesystem::path kParquet = SHERD_TEST_SOURCE_DIR "/tests/data/parquet";

QuestionFile read_parquet(const std::string& file, const Columns& columns = {},
                          const BadSamplePolicy& policy = {}) {
  return parse_parquet(bytes_of(kParquet / file), file, columns, policy);
}

void expect_parquet_refused(const std::string& bytes, const std::vector<std::string>& why,
                            const Columns& columns = {}) {
  expect_error([&] { static_cast<void>(parse_parquet(bytes, "my.parquet", columns, {})); },
               ExitCode::BadData, why);
}

void expect_squad_32(const QuestionFile& file) {
  const std::filesystem::path source = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-32.json";
  const QuestionFile squad = parse_squad(bytes_of(source), "squad-32.json");
  ASSERT_EQ(file.questions.size(), 32U);
  ASSERT_EQ(file.questions.size(), squad.questions.size());
  EXPECT_LE(file.contexts.size(), squad.contexts.size());
  for (std::size_t i = 0; i < squad.questions.size(); ++i) {
    const Question& one = file.questions[i];
    const Question& other = squad.questions[i];
    EXPECT_EQ(one.id, other.id);
    EXPECT_EQ(one.question, other.question);
    EXPECT_EQ(file.contexts[one.context], squad.contexts[other.context]);
    ASSERT_EQ(one.answers.size(), other.answers.size());
    for (std::size_t answer = 0; answer < one.answers.size(); ++answer) {
      EXPECT_EQ(one.answers[answer].text, other.answers[answer].text);
      EXPECT_EQ(one.answers[answer].begin_byte, other.answers[answer].begin_byte);
    }
    EXPECT_FALSE(one.unanswerable);
  }
}

TEST(Parquet, HoldsTheQuestionsOfTheHubsSquad) {
  expect_squad_32(read_parquet("squad-32.parquet"));
}

TEST(Parquet, ReadsZstandard) {
  expect_squad_32(read_parquet("squad-32-zstd.parquet"));
}

TEST(Parquet, HoldsRecords) {
  for (const char* const name : {"sums-none.parquet", "sums-gzip.parquet", "sums-zstd.parquet"}) {
    const QuestionFile file = read_parquet(name);
    ASSERT_EQ(file.questions.size(), 7U) << name;
    EXPECT_EQ(file.questions[6].question, "7 + 7 = ");
    EXPECT_EQ(file.questions[6].answers.at(0).text, "14 é");
    EXPECT_EQ(file.questions[6].id, "row 7");
    EXPECT_TRUE(file.questions[6].is_record());
  }
  const QuestionFile named = read_parquet("sums-none.parquet", {"completion", "prompt"});
  EXPECT_EQ(named.questions[0].question, "2 é");
}

TEST(Parquet, AQuestionMayHaveNoAnswer) {
  const QuestionFile file = read_parquet("squad-v2.parquet");
  ASSERT_EQ(file.questions.size(), 2U);
  EXPECT_EQ(file.contexts.size(), 1U);
  EXPECT_FALSE(file.questions[0].unanswerable);
  EXPECT_TRUE(file.questions[1].unanswerable);
  EXPECT_EQ(file.questions[1].answers.at(0).text, kNoAnswer);
}

TEST(Parquet, AnswersMayBeAListOfStructs) {
  const QuestionFile file = read_parquet("list-of-structs.parquet");
  ASSERT_EQ(file.questions.size(), 1U);
  EXPECT_EQ(file.questions[0].id, "1");
  EXPECT_EQ(file.questions[0].answers.at(0).text, "Ada");
  EXPECT_EQ(file.questions[0].answers.at(0).begin_byte, 7);  // the file counts characters
}

TEST(Parquet, NamesRowAndColumnOfWhatIsBad) {
  expect_parquet_refused(
      bytes_of(kParquet / "bad-rows.parquet"),
      {"my.parquet", "row 2: column \"question\": is missing",
       "row 3: column \"answers\": the answer \"Ada\" is not at character 4 of the context, but "
       "elsewhere in it",
       "row 4: column \"context\": is empty", "row 5: column \"id\": \"a\" occurs twice",
       "row 6: column \"answers\": should be a struct of the lists"});
  const QuestionFile file = read_parquet("bad-rows.parquet", {}, {.skip = true, .most_skipped = 5});
  EXPECT_EQ(file.questions.size(), 1U);
  ASSERT_EQ(file.skipped.size(), 5U);
  EXPECT_EQ(file.skipped[1].unit, "row");
  EXPECT_EQ(file.skipped[1].place, "3");
  expect_parquet_refused(bytes_of(kParquet / "sums-none.parquet"),
                         {"row 1", "\"n\" should be a string, is number"}, {"prompt", "n"});
}

TEST(Parquet, NamesTheColumnOfTextThatIsNone) {
  expect_parquet_refused(bytes_of(kParquet / "not-utf8.parquet"),
                         {"my.parquet: row 2, column \"completion\": "});
}

TEST(Parquet, SaysWhichColumnsThereAre) {
  expect_parquet_refused(
      bytes_of(kParquet / "sums-none.parquet"),
      {"my.parquet: has no \"q\"; its columns are \"prompt\", \"completion\", \"n\": name "
       "them with columns"},
      {"q", "a"});
}

TEST(Parquet, SaysWhichCompressionItDoesNotRead) {
  expect_parquet_refused(bytes_of(kParquet / "sums-brotli.parquet"),
                         {"my.parquet: compressed with BROTLI, which is not supported: rewrite it "
                          "with Zstandard, Snappy"});
  expect_parquet_refused(bytes_of(kParquet / "sums-lz4.parquet"),
                         {"my.parquet: compressed with LZ4_RAW, which is not supported"});
}

// The file with what stands at the begin of its first page replaced: Zstandard's frames begin with
// a magic number.
std::string with_page(const std::string& begin) {
  std::string bytes = bytes_of(kParquet / "squad-32-zstd.parquet");
  const std::size_t frame = bytes.find("\x28\xb5\x2f\xfd");
  bytes.replace(frame + 4, begin.size(), begin);
  return bytes;
}

TEST(Parquet, NamesTheColumnOfADamagedPage) {
  const std::vector<std::string> damaged = {"my.parquet: row 1, column \"id\": ", "damaged: "};
  const std::string a_huge_window("\x00\xf8", 2);  // of 2 TB
  expect_parquet_refused(with_page(a_huge_window), damaged);
  // Blocks of 128 KiB of one character each, where some hundred bytes should be.
  std::string too_much("\x00\x38", 2);
  for (int block = 0; block < 20; ++block) {
    too_much += std::string("\x02\x00\x10x", 4);
  }
  expect_parquet_refused(with_page(too_much), damaged);
  expect_parquet_refused(with_page(std::string(40, '\xff')), damaged);
  // One block of the right length, and a checksum that is not its own.
  const std::string of_other_data("\x04\x38\xc3\x08\x00x....", 10);
  expect_parquet_refused(with_page(of_other_data),
                         {"row 1, column \"id\": ", "its checksum does not match"});
}

TEST(Parquet, RefusesABrokenFile) {
  const std::string whole = bytes_of(kParquet / "squad-32.parquet");
  expect_parquet_refused("", {"my.parquet: not a Parquet file, or a damaged one"});
  expect_parquet_refused("PAR1", {"not a Parquet file, or a damaged one"});
  expect_parquet_refused(whole.substr(0, whole.size() / 2),
                         {"not a Parquet file, or a damaged one"});
  std::string hole = whole;
  hole.replace(200, 2000, std::string(2000, '\x7f'));
  expect_parquet_refused(hole, {"my.parquet: row 1, column \"id\": "});
}

std::string with_footer(const std::string& footer) {
  std::string length;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    length += static_cast<char>((footer.size() >> shift) & 0xff);
  }
  return "PAR1" + footer + length + "PAR1";
}

// Lists that would be allocated, and a schema that would be recursed into, before anything is read.
TEST(Parquet, RefusesAFooterThatClaimsTooMuch) {
  const std::string version("\x15\x02", 2);
  const std::string no_schema("\x19\x0c\x16\x00", 4);
  const std::string groups("\x19\xfc\xff\xff\xff\xff\x07\x00", 8);  // 2^31 - 1 row groups
  expect_parquet_refused(
      with_footer(version + no_schema + groups),
      {"my.parquet: not a Parquet file, or a damaged one: its footer is invalid"});
  std::string nested("\x19\xfc\xe0\xd4\x03", 5);  // 60,000 groups, each in the one before
  for (int group = 0; group < 60'000; ++group) {
    nested += std::string("\x48\x01g\x15\x02\x00", 6);
  }
  expect_parquet_refused(with_footer(version + nested + std::string(1, '\0')),
                         {"its footer is invalid"});
  std::string many("\x19\x1c", 2);  // one group of 2^31 - 1 columns
  many += std::string("\x48\x01g\x15\xfe\xff\xff\xff\x0f\x00\x00", 11);
  expect_parquet_refused(with_footer(version + many), {"its footer is invalid"});
}

// Whatever the bytes are, it ends with questions or an error.
TEST(Parquet, SurvivesFlippedBytes) {
  for (const auto& [file, stride] : std::vector<std::pair<std::string, std::size_t>>{
           {"bad-rows.parquet", 3}, {"sums-zstd.parquet", 1}, {"squad-32-zstd.parquet", 37}}) {
    const std::string whole = bytes_of(kParquet / file);
    for (std::size_t at = 0; at < whole.size(); at += stride) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ 0x55);
      try {
        static_cast<void>(parse_parquet(bytes, "f", {}, {.skip = true}));
      } catch (const sherd::Error& error) {
        EXPECT_EQ(error.code(), ExitCode::BadData) << file << " " << at << ": " << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace llm::text
