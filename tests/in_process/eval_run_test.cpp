// `sherd eval RUN`: a run's own checkpoints on its own data.

#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

TEST_F(EvalRun, IsWhatTheRunFoundItself) {
  const auto last = evaluate({output_});
  EXPECT_EQ(last.at("samples"), 8);
  EXPECT_NEAR(last.at("loss").get<double>(), logged_loss(3), 1e-6);
  EXPECT_NEAR(evaluate({output_, "--checkpoint", "last"}).at("loss").get<double>(), logged_loss(3),
              1e-6);
  EXPECT_NEAR(evaluate({output_, "--checkpoint", "2"}).at("loss").get<double>(), logged_loss(2),
              1e-6);
  EXPECT_NE(logged_loss(2), logged_loss(3));
}

TEST_F(EvalRun, TokenizesOnce) {
  const Arguments cache = {"XDG_CACHE_HOME=" + (folder_->path() / "cache").string()};
  const Arguments command = {"eval", kModel, "--data", kQuestions, "--loss-only", "--json"};
  const auto loss = [&] {
    return nlohmann::json::parse(expect_code(0, command, cache).out).at("loss");
  };
  const auto first = loss();
  const fs::path kept = folder_->path() / "cache/sherd/tokens";
  ASSERT_EQ(std::distance(fs::directory_iterator(kept), {}), 1);
  const fs::path file = fs::directory_iterator(kept)->path();
  const auto written = fs::last_write_time(file);
  EXPECT_EQ(loss(), first);
  EXPECT_EQ(fs::last_write_time(file), written);
}

TEST_F(EvalRun, GivesWayToFlags) {
  EXPECT_EQ(evaluate({output_, "--limit", "2"}).at("samples"), 2);
  EXPECT_EQ(evaluate({output_, "--limit", "0"}).at("samples"), 32);
  EXPECT_EQ(evaluate({output_, "--data", kQuestions}).at("samples"), 32);
  EXPECT_EQ(evaluate({"--model", output_, "--limit", "3"}).at("samples"), 3);
}

void refuse(int code, const Arguments& flags, const std::string& part) {
  EXPECT_THAT(expect_code(code, Arguments{"eval"} + flags).err, HasSubstr(part));
}

TEST_F(EvalRun, SaysWhichCheckpointIsNotThere) {
  refuse(66, {output_, "--checkpoint", "7"}, "has no checkpoint of step 7; there are 1, 2, 3.");
  refuse(64, {output_, "--checkpoint", "newest"},
         "give best, last or the number of a step, or the folder of a checkpoint");
  refuse(64, {kModel, "--checkpoint", "last", "--data", kQuestions},
         "selects a checkpoint of a run: ");
  refuse(64, {output_ / "checkpoints/step-00000002", "--checkpoint", "last"},
         "is a checkpoint itself");
}

TEST_F(EvalRun, TakesTheFolderOfACheckpoint) {
  const fs::path second = output_ / "checkpoints/step-00000002";
  EXPECT_NEAR(evaluate({output_, "--checkpoint", second}).at("loss").get<double>(), logged_loss(2),
              1e-6);
  EXPECT_EQ(evaluate({"--checkpoint", second}).at("loss"), evaluate({second}).at("loss"));
  refuse(64, {}, "--model is required");
  EXPECT_NE(expect_code(0, {"generate", "--checkpoint", second, "--prompt", "Once"}).out, "");
  const fs::path exported = folder_->path() / "exported";
  for (const Arguments& flags : {Arguments{output_, "--checkpoint", "2"},
                                 Arguments{output_, "--checkpoint", second}, Arguments{second}}) {
    fs::remove_all(exported);
    EXPECT_THAT(expect_code(0, Arguments{"export"} + flags + Arguments{"--out", exported}).out,
                HasSubstr("exported " + second.string()));
  }
  fs::remove_all(exported);
  EXPECT_THAT(expect_code(0, {"export", output_, "--out", exported}).out,
              HasSubstr("step-00000003"));
  EXPECT_THAT(expect_code(64, {"export", "--checkpoint", "best", "--out", exported}).err,
              HasSubstr("sherd export RUN --checkpoint best"));
}

TEST_F(EvalRun, OfNothingSaysWhereItLooked) {
  refuse(66, {"nosuchrun"}, "'nosuchrun' does not exist; relative paths begin here, in /");
  EXPECT_THAT(expect_code(66, {"export", "nosuchrun", "--out", "x"}).err,
              HasSubstr("'nosuchrun' does not exist; relative paths begin here, in /"));
  const TempFolder empty;
  refuse(66, {empty.path()}, "the model folder '" + empty.path().string() + "' has no config.json");
  EXPECT_THAT(expect_code(66, {"eval", kModel, "--data", "nofile.json"}).err,
              HasSubstr("nofile.json: cannot be opened: No such file or directory; relative paths "
                        "begin here, in /"));
}

// A run's folder in the place of a model's, and in that of a recipe.
TEST_F(EvalRun, IsNoModelButARecipe) {
  const TempFolder other;
  Arguments of_run = train(other.path() / "run");
  std::replace(of_run.begin(), of_run.end(), kModel, output_.string());
  const std::string run = output_.string();
  EXPECT_THAT(
      expect_code(64, of_run).err,
      HasSubstr("'" + run + "' is a run: a model folder is needed here. sherd export " + run +
                " --out FOLDER makes one from it. To continue the run itself: sherd train " + run));
  EXPECT_THAT(expect_code(0, {"train", output_}).out, HasSubstr("no step is left to do"));
  expect_code(0, {"plan", output_});
  EXPECT_THAT(expect_code(0, {"data", "preview", output_, "--samples", "1"}).out,
              HasSubstr("supervised"));
}

TEST_F(EvalRun, NeedsDataOfItsOwnOrAFlag) {
  refuse(64, {kModel}, "--data is missing: '" + kModel + "' is a model, not a run");
  const fs::path bare = folder_->path() / "bare";
  expect_code(0, train(bare, "1"));
  refuse(64, {bare}, "is a run without data.eval");
  refuse(66, {bare, "--checkpoint", "best"}, "has no evaluation after a step");
}

TEST_F(EvalRun, OfARunThatHasSavedNothingSaysSo) {
  const fs::path unsaved = folder_->path() / "unsaved";
  expect_code(0, train(unsaved, "1") +
                     Arguments{"--checkpoint.every", "never", "--checkpoint.at_end", "false"});
  fs::remove(unsaved / "checkpoints");  // which is there only if something was saved
  const std::string why = "'" + unsaved.string() + "' is a run without a complete checkpoint";
  refuse(66, {unsaved}, why);
  refuse(66, {unsaved, "--checkpoint", "last"}, why);
  EXPECT_THAT(expect_code(66, {"generate", unsaved, "--prompt", "Once"}).err, HasSubstr(why));
}

// Without a recipe there are no keys: advice is in the flags of this verb, and they work.
TEST(EvalOfAModel, AdvisesItsOwnFlags) {
  const TempFolder folder;
  const auto advised = [&](int code, const std::string& file, const Arguments& flags,
                           const std::string& advice) {
    const Ended ended =
        expect_code(code, Arguments{"eval", kModel, "--data", folder.path() / file} + flags);
    EXPECT_THAT(ended.err, HasSubstr(advice));
    EXPECT_THAT(ended.err, testing::Not(testing::ContainsRegex("data\\.[a-z]+_")));
  };
  const auto works = [&](const std::string& file, const Arguments& flags) {
    expect_code(0,
                Arguments{"eval", kModel, "--loss-only", "--data", folder.path() / file} + flags);
  };
  const std::string answer = R"({"role": "assistant", "content": "Lily"}]})";
  folder.write("data.jsonl", R"({"messages": [{"role": "user", "content": "Who?"}, )" + answer);
  advised(66, "data.jsonl", {}, "set --template to a file or to one of chatml, llama2");
  advised(66, "data.jsonl", {"--template", "gemma"},
          "--template: gemma ends an answer with \"Lily<end_of_turn>");
  advised(66, "data.jsonl", {"--template", "none"}, "--template: \"none\" is neither a file nor");
  works("data.jsonl", {"--template", "zephyr"});

  folder.write("special.jsonl",
               R"({"messages": [{"role": "user", "content": "Who</s>?"}, )" + answer);
  advised(65, "special.jsonl", {"--template", "zephyr"},
          "remove it, or set --special-tokens-in-text as_text");
  works("special.jsonl", {"--template", "zephyr", "--special-tokens-in-text", "as_text"});

  const fs::path other = folder.write(
      "other.jinja",
      "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}</s>{% endif %}"
      "{% endfor %}{% if add_generation_prompt %} now {% endif %}");
  advised(65, "data.jsonl", {"--template", other}, "or set --on-template-mismatch as_rendered");
  works("data.jsonl", {"--template", other, "--on-template-mismatch", "as_rendered"});

  folder.write("bad.jsonl",
               "no JSON\nnor this\n"
               R"({"prompt": "Who?", "completion": "Lily"})");
  advised(65, "bad.jsonl", {}, "or give --on-bad-sample skip to leave bad samples out");
  advised(65, "bad.jsonl", {"--on-bad-sample", "skip", "--max-bad-samples", "0"},
          "1 bad sample is more than --max-bad-samples 0 allows to skip");
  works("bad.jsonl", {"--on-bad-sample", "skip", "--max-bad-samples", "2"});

  folder.write("columns.jsonl", R"({"q": "Who?", "a": "Lily"})");
  advised(65, "columns.jsonl", {}, "name them with --columns PROMPT,COMPLETION; other kinds have");
  works("columns.jsonl", {"--columns", "q,a"});
  folder.write("array.jsonl", R"([{"prompt": "Who?", "completion": "Lily"}])");
  advised(65, "array.jsonl", {}, "give --format json for an array");
  works("array.jsonl", {"--format", "json"});
  advised(64, "data.jsonl", {"--max-length", "9", "--max-answer-tokens", "9"},
          "--max-length (9) must be larger than --max-answer-tokens (9)");
}

}  // namespace
}  // namespace sherd::test
