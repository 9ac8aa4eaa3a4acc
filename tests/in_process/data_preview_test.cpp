// sherd data preview, as one would look at a recipe.

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/e2e/browser.h"
#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// A model folder without weights, and data whose text would like to be more.
struct Previewed {
  Previewed() {
    copy_of_model(folder.path() / "model");
    fs::remove(folder.path() / "model" / "model.safetensors");
    folder.write(
        "my.jsonl",
        R"({"prompt": "Who is <b>it</b>?\u001b[2J\u009b2J\u202e", "completion": "<script>Lily & \u0007"})"
        "\n"
        R"({"prompt": "Who?", "completion": "A dog"})"
        "\nbad\n");
  }
  [[nodiscard]] Arguments preview() const {
    return {"data",
            "preview",
            SHERD_TEST_SOURCE_DIR "/tests/e2e/base.toml",
            "--model.path",
            (folder.path() / "model").string(),
            "--data.train[0].path",
            (folder.path() / "my.jsonl").string(),
            "--data.train[1].path",
            kQuestions,
            "--data.train[1].limit",
            "4",
            "--data.on_bad_sample",
            "skip",
            "--data.max_length",
            "100",
            "--train.global_batch",
            "2",
            "--train.micro_batch",
            "2",
            "--train.output",
            (folder.path() / "run").string()};
  }
  TempFolder folder;
};

TEST(DataPreview, TellsTheFirstSamplesInTheOrderOfTraining) {
  const Previewed data;
  const Ended ended = expect_code(0, data.preview() + Arguments{"--samples", "6", "--json"});
  const json all = json::parse(ended.out);
  EXPECT_EQ(all["samples"], 6);
  EXPECT_EQ(all["skipped"], 1);
  ASSERT_EQ(all["sources"].size(), 2U);
  EXPECT_EQ(all["sources"][0]["samples"], 2);
  EXPECT_EQ(all["sources"][0]["skipped"], 1);
  EXPECT_EQ(all["sources"][1]["samples"], 4);
  EXPECT_EQ(all["padding_share"], 0.0);
  EXPECT_GT(all["padding_share_if_padded"], 0.0);
  EXPECT_LE(all["length"]["min"], all["length"]["median"]);
  EXPECT_LE(all["length"]["median"], all["length"]["p95"]);
  EXPECT_LE(all["length"]["p95"], all["length"]["max"]);
  ASSERT_EQ(all["first"].size(), 6U);
  std::int64_t tokens = 0;
  bool cut = false;
  const auto context = [](const json& sample) { return sample["cut_text"].get<std::string>(); };
  for (std::size_t i = 0; i < 6; ++i) {
    const json& sample = all["first"][i];
    EXPECT_EQ(sample["step"], i / 2 + 1);
    tokens += sample["tokens"].get<std::int64_t>();
    EXPECT_EQ(sample["text"].back()["supervised"], true);
    const bool of_squad = sample["source"] == kQuestions;
    cut = cut || !context(sample).empty();
    EXPECT_EQ(sample["cut_tokens"] > 0, !context(sample).empty());
    EXPECT_THAT(sample["text"][0]["text"].get<std::string>(),
                HasSubstr(of_squad ? "Question: " : "Who"));
  }
  EXPECT_TRUE(cut);  // 100 tokens are less than a paragraph
  EXPECT_EQ(all["tokens"], tokens);
  EXPECT_FALSE(fs::exists(data.folder.path() / "run"));
}

TEST(DataPreview, TextAndPageAreHarmless) {
  const Previewed data;
  const fs::path page = data.folder.path() / "page.html";
  const Ended ended =
      expect_code(0, data.preview() + Arguments{"--samples=6", "--html", page.string()});
  EXPECT_THAT(ended.out, HasSubstr("[[ A dog</s>]]"));
  EXPECT_THAT(ended.out, HasSubstr("\\x1b[2J"));
  EXPECT_THAT(ended.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(ended.out, HasSubstr("\\u009b2J\\u202e"));
  EXPECT_THAT(ended.out, Not(HasSubstr("\u009b")));
  EXPECT_THAT(ended.out, Not(HasSubstr("\u202e")));
  EXPECT_THAT(unwrapped(ended.out), HasSubstr("my.jsonl: line 3, byte "));
  EXPECT_THAT(unwrapped(ended.out),
              ContainsRegex("step [1-3]: [0-9]+ tokens, [0-9]+ supervised; [0-9]+ tokens cut "
                            "off \\([0-9]+ bytes\\)"));
  EXPECT_THAT(ended.out, HasSubstr("\ncut off: "));
  const std::string html = read_file(page);
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;Lily &amp; "));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("\u202e")));
  EXPECT_THAT(html, HasSubstr("<mark> A dog&lt;/s&gt;</mark>"));
  EXPECT_THAT(html, Not(HasSubstr("http")));
  for (const std::string shown :
       {"lengths: ", "% supervised; no padding (", "my.jsonl: 2 records, ", "context cut in ",
        " tokens cut off (", "<del>"}) {
    EXPECT_THAT(html, HasSubstr(shown));
  }
  EXPECT_THAT(html, HasSubstr("color-scheme: light dark"));
  EXPECT_THAT(html, HasSubstr("name=\"viewport\""));
}

TEST(DataPreview, ThePageIsForAPhoneAndForTheDarkToo) {
  if (browser().empty()) {
    GTEST_SKIP() << kNoBrowser;
  }
  const Previewed data;
  const fs::path page = data.folder.path() / "page.html";
  expect_code(0, data.preview() + Arguments{"--samples=6", "--html", page.string()});
  for (const Screen& screen : {kPhone, kDarkPhone}) {
    const ShownPage found = shown(page, screen);
    EXPECT_EQ(found.content_width_px, screen.width_px);
    EXPECT_EQ(found.text_colour, screen.is_dark ? "rgb(255, 255, 255)" : "rgb(0, 0, 0)");
    EXPECT_EQ(texts_of(found.dom, "article").size(), 6U);
  }
}

// What training prints of its first samples, without reading their files again.
TEST(DataPreview, TrainingTellsWhatItsFirstSamplesLost) {
  const TempFolder folder;
  const Arguments tight = {"--data.max_answer_tokens", "4"};
  const std::string cut = "supervised; [0-9]+ tokens cut off; [^:]*: <s> Question: ";
  for (const std::string name : {"encoded", "cached"}) {
    const Ended ended = expect_code(0, train(folder.path() / name, "1") + tight +
                                           Arguments{"--data.cache", folder.path() / "cache"});
    EXPECT_THAT(ended.out, HasSubstr("lengths: "));
    EXPECT_THAT(ended.out, HasSubstr("% supervised\n"));  // of micro-batches of one
    const std::string first =
        ended.out.substr(ended.out.find("first samples (supervised text in [[ ]])"));
    EXPECT_THAT(first, ContainsRegex(cut));
    EXPECT_THAT(first, HasSubstr("; answer in the part that was cut off"));
    EXPECT_THAT(first, ContainsRegex("; [0-9]+ tokens of the answer cut off"));
  }
}

// It writes nothing, and so needs no folder to write to; nor does a plan.
TEST(DataPreview, NeedsNoOutput) {
  const Arguments keys = {"--model.path", kModel, "--data.train", kQuestions};
  EXPECT_THAT(expect_code(0, Arguments{"data", "preview"} + keys).out, HasSubstr("supervised"));
  EXPECT_THAT(expect_code(0, Arguments{"plan"} + keys).out, HasSubstr("fits: "));
  EXPECT_THAT(expect_code(64, Arguments{"train"} + keys).err, HasSubstr("train.output is missing"));
}

TEST(DataPreview, ShowsALongSampleWithoutItsMiddle) {
  const TempFolder folder;
  std::string prompt = "the begin ";
  for (int i = 0; i < 400; ++i) {
    prompt += "lies before the end ";
  }
  const fs::path file =
      folder.write("a.jsonl", json{{"prompt", prompt}, {"completion", "Lily"}}.dump() + "\n");
  const Arguments preview = {"data",         "preview", "--model.path",         kModel,
                             "--data.train", file,      "--train.global_batch", "1",
                             "--samples",    "1"};
  const std::string shown = expect_code(0, preview).out;
  EXPECT_LT(shown.size(), 4000U);
  EXPECT_THAT(shown, HasSubstr(" bytes left out; --full shows them …"));
  EXPECT_THAT(shown, HasSubstr("Lily"));
  EXPECT_THAT(expect_code(0, preview + Arguments{"--full"}).out, Not(HasSubstr("left out")));
  const fs::path page = folder.path() / "page.html";
  expect_code(0, preview + Arguments{"--html", page.string()});
  EXPECT_THAT(read_file(page), HasSubstr(" bytes left out; --full shows them …"));
  expect_code(0, preview + Arguments{"--full", "--html", page.string()});
  EXPECT_THAT(read_file(page), Not(HasSubstr("left out")));
}

TEST(DataPreview, CountsLengthsAndDuplicates) {
  const TempFolder folder;
  const auto line = [](const std::string& prompt) {
    return json{{"prompt", prompt}, {"completion", "Lily"}}.dump() + "\n";
  };
  const std::string who = line("Who?");
  const fs::path file = folder.write(
      "a.jsonl", who + line("Who is it?") + who + line("Who?" + std::string(90, 'z')) +
                     json{{"prompt", "Who?"}, {"completion", "Tom"}}.dump() + "\n" + who);
  const fs::path page = folder.path() / "page.html";
  const Arguments preview = {"data",         "preview", "--model.path",         kModel,
                             "--data.train", file,      "--train.global_batch", "1"};
  const json all = json::parse(expect_code(0, preview + Arguments{"--json"}).out);
  EXPECT_EQ(all["duplicates"], 2);
  EXPECT_EQ(all["unsupervised_samples"], 0);
  std::int64_t samples = 0;
  for (const json& bin : all["length"]["histogram"]) {
    samples += bin["samples"].get<std::int64_t>();
  }
  EXPECT_EQ(samples, 6);
  EXPECT_LE(all["length"]["histogram"][0]["from"], all["length"]["min"]);
  EXPECT_GE(all["length"]["histogram"].back()["to"], all["length"]["max"]);
  const Ended text = expect_code(0, preview + Arguments{"--html", page.string()});
  EXPECT_THAT(text.out, HasSubstr("duplicates: 2 of the samples (33.3 %) repeat another one"));
  EXPECT_THAT(text.out, HasSubstr("\u2588"));
  EXPECT_THAT(text.out, Not(HasSubstr("without supervised text")));
  const std::string html = read_file(page);
  EXPECT_THAT(html, HasSubstr("duplicates: 2 of the samples (33.3 %) repeat another one"));
  EXPECT_THAT(html, HasSubstr("Samples by length in tokens"));
}

/// Conversations and a template that both ask and answer in one word each.
class ChatPreview : public testing::Test {
 protected:
  static json message(const std::string& role, const std::string& content) {
    return {{"role", role}, {"content", content}};
  }
  // Two answers, then one.
  fs::path two_conversations() const {
    const json first = {message("system", "Be brief."), message("user", "Who has it?"),
                        message("assistant", "Lily has it."), message("user", "And now?"),
                        message("assistant", "Tom has it now.")};
    const json second = {message("user", "Where?"), message("assistant", "In the park.")};
    return folder_.write("chat.jsonl", json{{"messages", first}}.dump() + "\n" +
                                           json{{"messages", second}}.dump() + "\n");
  }
  // `earlier` writes a message that others follow.
  fs::path chat_template(const std::string& earlier, const std::string& begin) const {
    return folder_.write(
        "template.jinja",
        "{% for m in messages %}{{ m.role }}:" + begin +
            "{% if loop.last or m.role != 'assistant' %}{{ m.content }}{% else %}" + earlier +
            "{% endif %}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant:" +
            begin + "{% endif %}");
  }
  Arguments preview(const fs::path& data, const fs::path& chat) const {
    return {"data",
            "preview",
            "--model.path",
            kModel,
            "--data.train",
            data.string(),
            "--data.chat_template",
            chat.string(),
            "--train.global_batch",
            "1",
            "--samples",
            "9"};
  }
  static json parsed(const Arguments& preview) {
    return json::parse(expect_code(0, preview + Arguments{"--json"}).out);
  }
  // Numbers of the messages that a sample learns.
  static std::vector<std::size_t> learned(const json& sample) {
    std::vector<std::size_t> turns;
    for (std::size_t i = 0; i < sample["turns"].size(); ++i) {
      if (sample["turns"][i]["learned"] == true) {
        turns.push_back(i);
      }
    }
    return turns;
  }
  // What a sample is to learn.
  static std::string supervised(const json& sample) {
    std::string text;
    for (const json& part : sample["text"]) {
      text += part["supervised"] == true ? part["text"].get<std::string>() : "";
    }
    return text;
  }

  TempFolder folder_;
};

// The model is at fault, and no record: none is blamed or skipped.
TEST_F(ChatPreview, AModelWithoutATemplateIsToldOnce) {
  const Arguments verb = preview(two_conversations(), "model");
  for (const char* on_bad : {"error", "skip"}) {
    const Ended ended = expect_code(66, verb + Arguments{"--data.on_bad_sample", on_bad});
    EXPECT_THAT(unwrapped(ended.err),
                HasSubstr("has no chat template, and conversations need one"));
    EXPECT_THAT(ended.err, Not(HasSubstr("faults")));
    EXPECT_THAT(ended.err, Not(HasSubstr("line 1")));
  }
}

TEST_F(ChatPreview, ShowsTurnsAndMarksWhatIsLearned) {
  const Arguments verb = preview(two_conversations(), chat_template("{{ m.content }}", "\n"));
  const json all = parsed(verb);
  EXPECT_EQ(all["samples"], 2);
  EXPECT_EQ(all["sources"][0]["conversations"], 2);
  EXPECT_EQ(all["sources"][0]["unrolled"], 0);
  for (const json& sample : all["first"]) {
    EXPECT_EQ(sample["samples_of_conversation"], 1);
    const bool is_first = sample["id"] == "line 1";
    EXPECT_EQ(learned(sample),
              is_first ? (std::vector<std::size_t>{2, 4}) : (std::vector<std::size_t>{1}));
    EXPECT_EQ(supervised(sample),
              is_first ? "Lily has it.</s>Tom has it now.</s>" : "In the park.</s>");
  }
  const std::string text = expect_code(0, verb).out;
  EXPECT_THAT(text, HasSubstr("\n  2 conversations, one sample each\n"));
  EXPECT_THAT(text, HasSubstr("\n  turns (*: learned in this sample)\n"
                              "     1  system     Be brief.\n"
                              "     2  user       Who has it?\n"
                              "  *  3  assistant  Lily has it.\n"
                              "     4  user       And now?\n"
                              "  *  5  assistant  Tom has it now.\n"));
  EXPECT_THAT(text, HasSubstr("[[Lily has it.</s>]]"));
}

TEST_F(ChatPreview, SaysWhyAConversationMakesSeveralSamples) {
  const Arguments verb = preview(two_conversations(), chat_template("-", "\n"));
  const json all = parsed(verb);
  EXPECT_EQ(all["samples"], 3);
  EXPECT_EQ(all["sources"][0]["conversations"], 2);
  EXPECT_EQ(all["sources"][0]["unrolled"], 1);
  EXPECT_EQ(all["sources"][0]["template_rewrites"], 1);
  EXPECT_EQ(all["sources"][0]["prompt_is_apart"], 0);
  std::vector<std::size_t> of_first;
  for (const json& sample : all["first"]) {
    if (sample["id"] == "line 2") {
      EXPECT_EQ(supervised(sample), "In the park.</s>");
      continue;
    }
    EXPECT_EQ(sample["samples_of_conversation"], 2);
    ASSERT_EQ(learned(sample).size(), 1U);
    of_first.push_back(learned(sample).front());
    EXPECT_EQ(supervised(sample),
              of_first.back() == 2 ? "Lily has it.</s>" : "Tom has it now.</s>");
  }
  EXPECT_THAT(of_first, testing::UnorderedElementsAre(2U, 4U));
  const fs::path page = folder_.path() / "page.html";
  const std::string text = unwrapped(expect_code(0, verb + Arguments{"--html", page}).out);
  const std::string html = read_file(page);
  for (const std::string shown :
       {"2 conversations; 1 makes several samples: the template rewrites earlier turns (1)",
        "sample 2 of 2 of its conversation: the template writes earlier turns differently once the "
        "conversation continues"}) {
    EXPECT_THAT(text, HasSubstr(shown));
    EXPECT_THAT(html, HasSubstr(shown));
  }
  EXPECT_THAT(html, HasSubstr("<td>assistant</td><td><mark>Lily has it.</mark></td>"));
  EXPECT_THAT(html, HasSubstr("<td>assistant</td><td>Lily has it.</td>"));
}

// The blank at the prompt's end belongs to the answer's first token in the whole text.
TEST_F(ChatPreview, SaysWherePromptAndAnswerAreEncodedApart) {
  const Arguments verb = preview(two_conversations(), chat_template("{{ m.content }}", " "));
  const json all = parsed(verb);
  EXPECT_EQ(all["sources"][0]["prompt_is_apart"], 1);
  EXPECT_EQ(all["sources"][0]["template_rewrites"], 0);
  EXPECT_THAT(
      unwrapped(expect_code(0, verb).out),
      HasSubstr("sample 1 of 2 of its conversation: a prompt alone has other token ids than "
                "in the whole text"));
}

TEST_F(ChatPreview, ShowsWhatWasCutOff) {
  const Arguments verb = preview(two_conversations(), chat_template("{{ m.content }}", "\n"));
  json first = parsed(verb)["first"];
  const std::size_t number = first[0]["id"] == "line 1" ? 0 : 1;
  const auto tokens = first[number]["tokens"].get<std::int64_t>();
  const Arguments cut = {"--data.max_length", std::to_string(tokens - 12)};
  const json sample = parsed(verb + cut)["first"][number];
  EXPECT_EQ(sample["id"], "line 1");
  EXPECT_EQ(learned(sample), (std::vector<std::size_t>{2}));
  EXPECT_EQ(supervised(sample), "Lily has it.</s>");
  EXPECT_THAT(sample["cut_text"].get<std::string>(), HasSubstr("Tom has it now.</s>"));
  EXPECT_THAT(unwrapped(expect_code(0, verb + cut).out), HasSubstr("tokens of the answer cut off"));
}

TEST_F(ChatPreview, SaysWhatYieldsNothingAndWhy) {
  const json bad = {message("user", "Who?</s>"), message("assistant", "Lily")};
  const json silent = {message("user", "Who?")};
  const json good = {message("user", "Who?"), message("assistant", "Lily")};
  std::string lines =
      json{{"messages", good}}.dump() + "\n" + json{{"messages", bad}}.dump() + "\n";
  for (int i = 0; i < 25; ++i) {
    lines += json{{"messages", silent}}.dump() + "\n";
  }
  const fs::path page = folder_.path() / "page.html";
  const Arguments verb =
      preview(folder_.write("chat.jsonl", lines), chat_template("{{ m.content }}", "\n")) +
      Arguments{"--data.on_bad_sample", "skip"};
  const std::string text = unwrapped(expect_code(0, verb + Arguments{"--html", page}).out);
  EXPECT_THAT(text, HasSubstr("1 sample per epoch, from 1; 26 bad samples skipped"));
  EXPECT_THAT(text, ContainsRegex("skipped: .*chat.jsonl: line 3, .*answer"));
  EXPECT_THAT(text, HasSubstr("skipped: 6 more, which a run lists in bad_samples.jsonl"));
  EXPECT_THAT(read_file(page),
              HasSubstr("skipped: 6 more, which a run lists in bad_samples.jsonl"));
  const json all = parsed(verb);
  EXPECT_EQ(all["skipped"], 26);
  EXPECT_EQ(all["yield_nothing"].size(), 21U);
}

// Samples are shown as they are.
TEST_F(ChatPreview, FitsIn80Columns) {
  std::string words;
  for (int i = 0; i < 12; ++i) {
    words += "Lïly has it. ";
  }
  const json messages = {message("user", words), message("assistant", words),
                         message("user", "Who?"), message("assistant", "Tom")};
  const Ended ended =
      expect_code(0, preview(folder_.write("chat.jsonl", json{{"messages", messages}}.dump()),
                             chat_template("-", "")) +
                         Arguments{"--data.max_length", "150"});
  std::size_t own = 0;
  std::istringstream lines(ended.out.substr(ended.out.find("lengths: ")));
  for (std::string line; std::getline(lines, line);) {
    if (line.find("user:") != std::string::npos || line.starts_with("cut off: ") ||
        line.find(folder_.path().string()) != std::string::npos) {
      continue;
    }
    const auto characters = std::count_if(line.begin(), line.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    });
    EXPECT_LE(characters, 80) << line;
    ++own;
  }
  EXPECT_GE(own, 10U) << ended.out;
  EXPECT_THAT(ended.out, ContainsRegex("\\*? +2  assistant  L.*…\n"));
}

TEST(DataPreview, SaysWhatIsMissing) {
  const Previewed data;
  EXPECT_THAT(expect_code(64, {"data"}).err, HasSubstr("subcommand"));
  EXPECT_THAT(expect_code(64, data.preview() + Arguments{"--html"}).err, HasSubstr("--html"));
  EXPECT_THAT(expect_code(64, data.preview() + Arguments{"--data.trian", "a"}).err,
              HasSubstr("--data.trian: unknown flag"));
  EXPECT_THAT(expect_code(64, data.preview() + Arguments{"--samples", "-1"}).err,
              HasSubstr("--samples"));
  EXPECT_THAT(expect_code(64, data.preview() + Arguments{"-n", "2"}).err,
              HasSubstr("-n is the number of ranks, and a preview has none: give --samples N"));
  expect_code(66, data.preview() + Arguments{"--data.eval", "/nowhere.jsonl"});
}

}  // namespace
}  // namespace sherd::test
