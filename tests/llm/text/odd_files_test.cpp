// Data files that are wrong or odd: what is read of them, and how the rest is told.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/text/conversation.h"
#include "llm/text/records.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::text {
namespace {

using namespace std::string_literals;
using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::TempFolder;
using ::testing::HasSubstr;

// What is told of a bad record: the byte is where `at` stands in the file.
struct Told {
  std::string place;
  std::string at;
  std::string reason;
};

struct Odd {
  std::string name;  // of the file
  std::string bytes;
  std::vector<std::string> good = {};  // places of the records that are read
  std::vector<Told> bad = {};
  std::string refused = "";  // why the file as a whole is; empty: it is not
};

std::string said(const std::string& user, const std::string& answer) {
  return R"({"messages": [{"role": "user", "content": ")" + user +
         R"("}, {"role": "assistant", "content": ")" + answer + "\"}]}";
}

// A conversation whose answer has more fields.
std::string answered(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", )" + fields +
         "}]}";
}

const std::string kChat = said("Hi", "Hello.");

const std::vector<Odd>& odd_files() {
  static const std::string first = kChat + "\n";
  static const std::vector<Odd> files = {
      // Lines.
      {"no-end.jsonl", kChat, {"line 1"}},
      {"cr-only.jsonl", kChat + "\r" + kChat, {}, {{"line 1", "\r{", "not JSON"}}},
      {"form-feed.jsonl", first + "\f\n", {"line 1"}, {{"line 2", "\f", "not JSON"}}},
      {"tab-inside.jsonl",
       first + said("a\tb", "c"),
       {"line 1"},
       {{"line 2", "\tb", "control character"}}},
      {"python-literals.jsonl", R"({"messages": None})", {}, {{"line 1", "None", "not JSON"}}},
      {"two-marks.jsonl", "\xef\xbb\xbf\xef\xbb\xbf" + kChat, {"line 1"}},
      {"array.jsonl", "[" + kChat + "]", {}, {}, "give format = \"json\""},
      {"git-lfs.jsonl",
       "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
       {},
       {},
       "git lfs pull"},
      {"surrogate-order.jsonl",
       first + said("\\ude00\\ud83d", "x"),
       {"line 1"},
       {{"line 2", "00\\ud83d", "surrogate"}}},
      {"deep-arguments.jsonl",
       answered(R"("tool_calls": [{"function": {"name": "f", "arguments": {"x": )" +
                std::string(80, '[') + std::string(80, ']') + "}}}]"),
       {},
       {{"line 1", "{\"messages", "nested deeper than 64 levels"}}},
      // Messages.
      {"role-of-other-case.jsonl",
       R"({"messages": [{"role": "Assistant", "content": "x"}]})",
       {},
       {{"line 1", "{\"m", "message 1: the role \"Assistant\" is not known"}}},
      {"sharegpt-role.jsonl",
       R"({"messages": [{"role": "gpt", "content": "x"}]})",
       {},
       {{"line 1", "{\"m", "\"gpt\" is not known; known are system, developer"}}},
      {"from-in-messages.jsonl",
       R"({"messages": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "x"}]})",
       {"line 1"}},
      {"null-value.jsonl",
       R"({"conversations": [{"from": "human", "value": null}, {"from": "gpt", "value": "x"}]})",
       {},
       {{"line 1", "{\"c", "message 1: value is null"}}},
      {"empty-parts.jsonl",
       R"({"messages": [{"role": "user", "content": []}, {"role": "assistant", "content": "x"}]})",
       {},
       {{"line 1", "{\"m", "message 1: content of user is empty"}}},
      {"part-without-type.jsonl",
       R"({"messages": [{"role": "user", "content": [{"text": "a"}]}]})",
       {},
       {{"line 1", "{\"m", "part 1 of content has no type"}}},
      {"part-is-text.jsonl",
       R"({"messages": [{"role": "user", "content": ["a"]}]})",
       {},
       {{"line 1", "{\"m", "part 1 of content should be an object, is string"}}},
      {"weight-null.jsonl", answered(R"("content": "x", "weight": null)"), {"line 1"}},
      {"weight-float.jsonl", answered(R"("content": "x", "weight": 1.0)"), {"line 1"}},
      {"weight-nan.jsonl",
       answered(R"("content": "x", "weight": NaN)"),
       {},
       {{"line 1", "NaN", "not JSON"}}},
      {"reasoning-differs.jsonl",
       answered(R"("content": "x", "thinking": "a", "reasoning": "b")"),
       {},
       {{"line 1", "{\"m", "message 2: reasoning and another field of reasoning differ"}}},
      {"name-is-number.jsonl",
       answered(R"("content": "x", "name": 7)"),
       {},
       {{"line 1", "{\"m", "message 2: name should be a text, is number"}}},
      {"user-calls.jsonl",
       R"({"messages": [{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]})",
       {},
       {{"line 1", "{\"m", "message 1: the role user calls no tools"}}},
      {"arguments-with-more.jsonl",
       answered(R"("tool_calls": [{"function": {"name": "f", "arguments": "{} x"}}])"),
       {},
       {{"line 1", "{\"m", "message 2, call 1 of tool_calls, arguments: not JSON"}}},
      {"arguments-escape.jsonl",
       answered(R"("tool_calls": [{"function": {"name": "f", "arguments": "{}, \"y\": {}"}}])"),
       {},
       {{"line 1", "{\"m", "arguments: not JSON"}}},
      {"arguments-twice.jsonl",
       answered(
           R"("tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1, \"a\": 2}"}}])"),
       {},
       {{"line 1", "{\"m", "the field \"a\" occurs twice"}}},
      {"call-without-name.jsonl",
       answered(R"("tool_calls": [{"function": {"name": "", "arguments": {}}}])"),
       {},
       {{"line 1", "{\"m", "has no function with a name"}}},
      {"huge-integer.jsonl",
       answered(
           R"("tool_calls": [{"function": {"name": "f", "arguments": {"a": 18446744073709551616}}}])"),
       {},
       {{"line 1", "{\"m", "an integer of more than 64 bits"}}},
      {"tools-object.jsonl",
       R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": {"name": "f"}})",
       {},
       {{"line 1", "{\"m", "\"tools\" should be a list, or JSON text of one, is object"}}},
      {"tools-broken-text.jsonl",
       R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": "[{"})",
       {},
       {{"line 1", "{\"m", "\"tools\": not JSON"}}},
      {"unread-twice.jsonl",
       R"({"messages": [{"role": "user", "id": 1, "id": 2, "content": "a"}, {"role": "assistant", "content": "b"}]})",
       {"line 1"}},
      // Alpaca, prompts, texts.
      {"alpaca-number.jsonl",
       R"({"instruction": "a", "input": 3, "output": "b"})",
       {},
       {{"line 1", "{\"i", "\"input\" should be a text, is number"}}},
      {"alpaca-history.jsonl",
       R"({"instruction": "a", "output": "b", "history": [["q"]]})",
       {},
       {{"line 1", "{\"i", "\"history\", turn 1 should be a question and its answer"}}},
      {"alpaca-no-output.jsonl",
       R"({"instruction": "a", "response": "b"})",
       {},
       {{"line 1", "{\"i", R"(its columns are "instruction", "response")"}}},
      {"mixed-sides.jsonl",
       R"({"prompt": [{"role": "user", "content": "a"}], "completion": "b"})",
       {},
       {{"line 1", "{\"p", "\"prompt\" should be a string, is array"}}},
      {"texts.jsonl",
       R"({"text": "Once."})"s + "\n" + R"({"text": " "})",
       {"line 1"},
       {{"line 2", "{\"text\": \" \"", "\"text\" is empty"}}},
      {"unknown-columns.jsonl",
       R"({"q": "a", "a": "b"})",
       {},
       {{"line 1", "{\"q", R"(its columns are "q", "a": name them with columns)"}}},
      // Arrays and tables.
      {"comma-too-many.json",
       "[" + kChat + ",\n]",
       {"record 1"},
       {{"record 2", "\n]", "not JSON"}}},
      {"no-comma.json", "[" + kChat + "\n" + kChat + "]", {}, {{"record 1", "\n{", "not JSON"}}},
      {"after-the-end.json", "[" + kChat + "] x", {}, {}, "something follows the array of records"},
      {"number.json", "7", {}, {{"line 1", "7", "should be an object, is number"}}},
      {"lone-quote.csv", "prompt,completion\na,b\"c\n", {"line 2"}},
      {"two-names.csv",
       "prompt,prompt\na,b\n",
       {},
       {},
       "two of its columns have the name \"prompt\""},
      {"open-header.csv", "\"prompt,completion\na,b\n", {}, {}, "quote"},
      {"other-columns.csv",
       "question,reply\na,b\n",
       {},
       {},
       R"(its columns are "question", "reply")"},
      {"json-in-column.csv",
       "messages\n\"[{\"\"role\"\": \"\"user\"\"}]\"\n",
       {},
       {{"line 2", "\"[{", "message 1: content is missing"}}},
      {"spaces.tsv", "prompt completion\na b\n", {}, {}, "its columns are \"prompt completion\""},
      // Compressed.
      {"not-zstd.jsonl.zst", kChat, {}, {}, "its name ends in .zst, but it is no Zstandard file"},
      {"cut-off.jsonl.zst",
       "\x28\xb5\x2f\xfd\x04\x58\x99\x00"s,
       {},
       {},
       "Zstandard data is damaged"},
      {"wrong-window.jsonl.zst",
       "\x28\xb5\x2f\xfd\x00\xf8\x01\x00\x00"s,
       {},
       {},
       "Zstandard data is damaged"},
      {"header-alone.jsonl.gz",
       "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"s,
       {},
       {},
       "gzip data has no end"},
      {"no-gzip-method.jsonl.gz",
       "\x1f\x8b\x07\x00\x00\x00\x00\x00\x02\xff\x03\x00"s,
       {},
       {},
       "gzip data is damaged"},
  };
  return files;
}

class OddFiles : public testing::TestWithParam<Odd> {
 protected:
  // All its bad records may be skipped.
  QuestionFile read(const DataBytes& file, bool skip) {
    return read_records(file, {.container = container_of(file), .bad = {.skip = skip}});
  }
};

TEST_P(OddFiles, AreReadOrToldWithPlaceAndReason) {
  const Odd& odd = GetParam();
  const TempFolder folder;
  const DataBytes file{folder.write(odd.name, odd.bytes).string()};
  if (!odd.refused.empty()) {
    expect_error([&] { read(file, true); }, ExitCode::BadData, {file.name + ": ", odd.refused});
    return;
  }
  const QuestionFile kept = read(file, true);
  std::vector<std::string> good;
  for (const Question& question : kept.questions) {
    good.push_back(question.id);
  }
  EXPECT_EQ(good, odd.good);
  ASSERT_EQ(kept.skipped.size(), odd.bad.size());
  for (std::size_t i = 0; i < odd.bad.size(); ++i) {
    const BadSample& bad = kept.skipped[i];
    EXPECT_EQ(bad.unit + " " + bad.place, odd.bad[i].place);
    const auto byte = static_cast<std::int64_t>(odd.bytes.find(odd.bad[i].at));
    // The parser names the last byte that it took, or the one before it.
    EXPECT_LE(std::abs(bad.byte.value_or(-9) - byte), 1) << bad.text();
    EXPECT_THAT(bad.reason, HasSubstr(odd.bad[i].reason));
  }
  if (!odd.bad.empty()) {
    expect_error([&] { read(file, false); }, ExitCode::BadData,
                 {file.name + ": " + odd.bad[0].place, odd.bad[0].reason});
  }
}

INSTANTIATE_TEST_SUITE_P(Records, OddFiles, testing::ValuesIn(odd_files()), [](const auto& odd) {
  std::string name = odd.param.name;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

// What a compressed file holds, made by gzip 1.12 and zstd 1.5.4.
const std::string kZipped =
    "\037\213\010\000\000\000\000\000\002\377\253\126\312\115\055\056\116\114\117\055"
    "\126\262\122\210\256\126\052\312\317\111\005\262\224\112\213\123\213\224\164\024"
    "\224\222\363\363\112\122\363\112\100\102\036\231\112\265\072\012\010\045\211\305"
    "\305\231\305\045\211\100\111\064\165\251\071\071\371\172\112\265\261\265\134\325"
    "\324\067\335\251\062\025\142\066\000\121\324\270\150\272\000\000\000"s;
const std::string kZstd =
    "\050\265\057\375\044\272\175\002\000\222\204\017\025\240\127\007\244\000\053\340"
    "\136\152\066\215\367\152\103\016\246\160\242\102\374\010\144\321\332\374\000\310"
    "\242\265\151\153\135\131\322\124\231\011\313\132\005\312\256\254\015\306\142\367"
    "\064\214\307\137\315\371\011\170\234\047\122\346\013\277\004\000\020\206\011\055"
    "\205\216\121\133\156\326\174\002\066\247\125\045"s;

TEST(CompressedRecords, AreThoseOfTheFileInIt) {
  const TempFolder folder;
  for (const auto& [name, bytes] : {std::pair("a.jsonl.gz", kZipped),
                                    {"b.jsonl.zst", kZstd},
                                    {"two.jsonl.gz", kZipped + kZipped},
                                    {"two.zst", kZstd + kZstd},
                                    {"by-content.jsonl", kZstd}}) {
    const DataBytes file{folder.write(name, bytes).string()};
    const QuestionFile read = read_records(file, {.container = container_of(file)});
    const bool is_two = std::string_view(name).starts_with("two");
    ASSERT_EQ(read.questions.size(), is_two ? 4U : 2U) << name;
    EXPECT_EQ(read.questions[0].conversation->messages[1]["content"], "Hello.");
    EXPECT_EQ(read.questions[1].id, "line 2");
  }
}

TEST(CompressedRecords, AnyFlippedByteIsToldOrChangesNothing) {
  const TempFolder folder;
  for (const std::string& whole : {kZipped, kZstd}) {
    int told = 0;
    for (std::size_t i = 4; i < whole.size(); ++i) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ 0x10);
      const DataBytes file{folder.write("flipped.jsonl", bytes).string()};
      try {
        EXPECT_EQ(read_records(file, {}).questions.size(), 2U) << i;
      } catch (const sherd::Error& error) {
        EXPECT_EQ(error.code(), ExitCode::BadData);
        ++told;
      }
    }
    EXPECT_GT(told, static_cast<int>(whole.size()) / 2);
  }
}

using Unread = std::vector<UnreadFields::Field>;

Unread unread_of(const std::string& path, const Columns& columns = {}) {
  const DataBytes file{path};
  return read_records(file, {.container = container_of(file), .columns = columns}).unread.all();
}

TEST(RecordReader, TellsKindAndColumnsThatAreNotRead) {
  const TempFolder folder;
  const DataBytes file{
      folder.write("a.jsonl", R"({"id": 1, "instruction": "a", "input": "x", "output": "b"})")
          .string()};
  const FirstRecord first = first_record(file, {});
  EXPECT_EQ(first.kind, RecordKind::Alpaca);
  EXPECT_TRUE(first.is_conversation);
  EXPECT_EQ(unread_of(file.name), Unread({{"id", 1, "line 1"}}));
  const Columns columns{.prompt = "instruction", .completion = "output"};
  const FirstRecord named = first_record(file, {.columns = columns});
  EXPECT_EQ(named.kind, RecordKind::PromptCompletion);
  EXPECT_FALSE(named.is_conversation);
  EXPECT_EQ(unread_of(file.name, columns), Unread({{"id", 1, "line 1"}, {"input", 1, "line 1"}}));
}

TEST(UnreadFields, AreNamedOfAllRecordsAndOfTheirMessages) {
  const TempFolder folder;
  const std::string typo = answered(R"("content": "Hello.", "contnet": "x", "id": 7)");
  const std::string null = answered(R"("content": "Hello.", "refusal": null, "audio": [null])");
  const std::string lines = kChat + "\n" + typo + "\n" + null + "\n" +
                            R"({"score": 1, "score": 2, )" + typo.substr(1) + "\nno\n";
  const DataBytes file{folder.write("a.jsonl", lines).string()};
  RecordReader reader(file, {.bad = {.skip = true}});
  while (reader.next()) {
  }
  EXPECT_EQ(reader.take_unread().all(), Unread({{"messages.contnet", 2, "line 2"},
                                                {"messages.id", 2, "line 2"},
                                                {"messages.audio", 1, "line 3"},
                                                {"score", 1, "line 4"}}));
  EXPECT_TRUE(reader.take_unread().all().empty());
}

// In JSON text, in columns of other names, in a record's own column of tables.
TEST(UnreadFields, AreNamedWhereverMessagesStand) {
  const TempFolder folder;
  EXPECT_EQ(unread_of(folder.write(
                "a.csv",
                "messages,id\n\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"Hi\"\","
                "\"\"at\"\":3},{\"\"role\"\":\"\"assistant\"\",\"\"content\"\":"
                "\"\"Hello.\"\"}]\",1\n")),
            Unread({{"id", 1, "line 2"}, {"messages.at", 1, "line 2"}}));
  const std::string dialog = R"({"dialog": [{"role": "user", "content": "Hi", "at": 3},)"
                             R"({"role": "assistant", "content": "Hello."}]})";
  EXPECT_EQ(unread_of(folder.write("b.jsonl", dialog), {.messages = "dialog"}),
            Unread({{"dialog.at", 1, "line 1"}}));
  const std::string pair = R"({"prompt": [{"role": "user", "content": "Hi", "at": 3}],)"
                           R"("completion": [{"role": "assistant", "content": "x", "to": 4}]})";
  EXPECT_EQ(unread_of(folder.write("c.jsonl", pair)),
            Unread({{"prompt.at", 1, "line 1"}, {"completion.to", 1, "line 1"}}));
}

TEST(UnreadFields, AreBoundedAndToldInASentence) {
  UnreadFields fields;
  EXPECT_EQ(fields.sentence(), "");
  fields.add("id", "line 1");
  EXPECT_EQ(fields.sentence(), "these fields are not read: \"id\" (1 record, line 1)");
  fields.add("id", "line 2");
  fields.add("messages.to", "line 2");
  EXPECT_EQ(fields.sentence(),
            "these fields are not read: \"id\" (2 records, first line 1), \"messages.to\" (1 "
            "record, line 2)");
  UnreadFields more;
  for (int i = 0; i < 1000; ++i) {
    more.add("column " + std::to_string(i), "line 3");
  }
  more.add(std::string(100'000, 'x'), "line 4");
  more.place_in("b.jsonl");
  EXPECT_EQ(more.all().size(), 256U);
  EXPECT_EQ(more.all()[0].first_record, "line 3 of b.jsonl");
  fields.add(more);
  EXPECT_EQ(fields.all().size(), 256U);
  EXPECT_THAT(fields.sentence(), testing::EndsWith("(1 record, line 3 of b.jsonl) and 244 more"));
}

// Of other trainers. Passed over, such a field would let answers be learned that were to be
// context.
TEST(MessageFields, ThatWouldDecideWhatIsLearnedAreRefused) {
  const TempFolder folder;
  for (const std::string name :
       {"train", "training", "train_detail", "training_detail", "train_on_turn", "trainable",
        "loss", "loss_mask", "loss_weight", "loss_scale", "mask", "masked"}) {
    const std::string record = answered(R"("content": "Hello.", ")" + name + R"(": false)");
    expect_error(
        [&] { unread_of(folder.write("a.jsonl", record)); }, ExitCode::BadData,
        {"a.jsonl: line 1", "message 2: \"" + name +
                                "\" is not read: write \"weight\": 0 "
                                "for an answer that is context, 1 for one that is learned"});
    const std::string null = answered(R"("content": "Hello.", ")" + name + R"(": null)");
    EXPECT_TRUE(unread_of(folder.write("b.jsonl", null)).empty());
  }
  expect_error(
      [&] {
        unread_of(
            folder.write("c.csv",
                         "messages\n\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"Hi\"\"},"
                         "{\"\"role\"\":\"\"assistant\"\",\"\"content\"\":\"\"x\"\","
                         "\"\"train\"\":false}]\"\n"));
      },
      ExitCode::BadData, {"c.csv: line 2", "message 2: \"train\" is not read"});
}

// The same beside the messages, as LLaMA-Factory has "loss_mask".
TEST(RecordFields, ThatWouldDecideWhatIsLearnedAreRefused) {
  const TempFolder folder;
  const std::string messages =
      R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}])";
  const std::string why =
      " of a record is not read: remove it, and write \"weight\": 0 in each message of "
      "\"messages\" that is context, 1 in each that is learned";
  const auto refused = [&](const std::string& name, const std::string& bytes,
                           const std::string& field) {
    expect_error([&] { unread_of(folder.write(name, bytes)); }, ExitCode::BadData,
                 {name, "\"" + field + "\"" + why});
  };
  for (const std::string name :
       {"train", "training", "train_detail", "training_detail", "train_on_turn", "trainable",
        "loss", "loss_mask", "loss_weight", "loss_scale", "mask", "masked"}) {
    const std::string field = ", \"" + name + "\": ";
    refused("a.jsonl", "{\"messages\": " + messages + field + "[0, 1]}", name);
    refused("a.json", "[{\"conversations\": " + messages + field + "false}]", name);
    refused("b.jsonl", R"({"instruction": "Say hi", "output": "Hi")" + field + "0.5}", name);
    refused("c.jsonl",
            R"({"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": )"
            R"("assistant", "content": "Hello."}])" +
                field + "true}",
            name);
    // That says nothing, or belongs to a text that is no conversation, is named as before.
    EXPECT_EQ(
        unread_of(folder.write("d.jsonl", "{\"messages\": " + messages + field + "null}")).size(),
        1U);
    EXPECT_EQ(
        unread_of(folder.write("e.jsonl", R"({"prompt": "a", "completion": "b")" + field + "1}"))
            .size(),
        1U);
  }
  refused("a.csv", "instruction,output,loss_mask\nSay hi,Hi,0\n", "loss_mask");
  EXPECT_EQ(unread_of(folder.write("b.csv", "instruction,output,loss_mask\nSay hi,Hi,\n")).size(),
            1U);
}

}  // namespace
}  // namespace llm::text
