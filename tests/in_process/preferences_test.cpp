// train.objective = "dpo": pairs from file to log, on one rank and on several.

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/in_process/preference_runs.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// A run of pairs in a file of its own.
Arguments pairs_of(const fs::path& data, const fs::path& output) {
  return train_case(kModel, data, output) + Arguments{"--train.objective",    "dpo",
                                                      "--train.max_steps",    "2",
                                                      "--train.global_batch", "2"};
}

TEST(Preferences, BeginAtTheLogarithmOf2AndAreLearned) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run", cache = folder.path() / "cache";
  const Ended ended = expect_code(0, recipe("train", output, cache));
  EXPECT_THAT(ended.out, HasSubstr("preferences.jsonl: 40 pairs, "));
  EXPECT_THAT(ended.out, HasSubstr(" | rejected: "));
  EXPECT_THAT(ended.out,
              ContainsRegex("step 20/20 \\| loss 0\\.[0-9]+ \\| margin [0-9.]+ \\| acc "));
  const std::vector<json> steps = read_log(output / "log.jsonl");
  ASSERT_EQ(steps.size(), 20U);
  EXPECT_NEAR(steps[0]["loss"].get<double>(), std::numbers::ln2, 1e-5);
  for (const char* name : {"rewards/chosen", "rewards/rejected", "rewards/margins"}) {
    EXPECT_NEAR(figure(steps[0], name), 0, 1e-4) << name;
  }
  EXPECT_LT(figure(steps[0], "logps/chosen"), 0);
  EXPECT_EQ(steps[0]["samples"], 8);
  const std::vector<json> evaluations = events(output, "evaluation");
  ASSERT_EQ(evaluations.size(), 5U);  // at the start, and after each epoch
  EXPECT_NEAR(evaluations.front()["loss"].get<double>(), std::numbers::ln2, 1e-5);
  EXPECT_GE(figure(evaluations.back(), "rewards/accuracies"), 0.95);
  EXPECT_LT(evaluations.back()["loss"].get<double>(), 0.6);
  EXPECT_THAT(ended.out, HasSubstr("evaluating 40 pairs before the first step"));
  EXPECT_THAT(ended.out, ContainsRegex("evaluation: loss 0\\.[0-9]+ over 40 pairs .*, accuracy "));

  // By itself, with the reference model loaded before it.
  for (const Arguments& data : {Arguments(), Arguments{"--data", kPairs}}) {
    const auto alone = json::parse(
        expect_code(0,
                    Arguments{"eval", "--model", output.string(), "--loss-only", "--json"} + data)
            .out);
    EXPECT_NEAR(alone["loss"].get<double>(), evaluations.back()["loss"].get<double>(), 1e-5);
    EXPECT_EQ(figure(alone, "rewards/accuracies"),
              figure(evaluations.back(), "rewards/accuracies"));
  }
}

// The reference is the same model with the adapter off: nothing is kept of it.
TEST(Preferences, WithAnAdapterBeginAtTheLogarithmOf2ToTheLastBit) {
  const TempFolder folder;
  const Arguments flags = {"--adapter.kind", "lora", "--optim.lr", "5e-3", "--train.epochs", "2"};
  std::vector<double> losses;
  for (const int ranks : {1, 2, 3}) {
    const fs::path output = folder.path() / std::to_string(ranks);
    const fs::path cache = folder.path() / "cache";
    const Arguments verb =
        recipe("train", output, cache) + flags +
        Arguments{"--train.global_batch", "6", "--train.micro_batch", ranks == 1 ? "3" : "1"};
    expect_code(0, ranks == 1 ? verb : on_ranks(ranks, verb));
    const std::vector<json> steps = read_log(output / "log.jsonl");
    EXPECT_EQ(static_cast<float>(steps[0]["loss"].get<double>()), std::numbers::ln2_v<float>);
    for (const char* name :
         {"rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"}) {
      EXPECT_EQ(figure(steps[0], name), 0) << name;
    }
    EXPECT_EQ(figure(events(output, "evaluation").back(), "rewards/accuracies"), 1);
    losses.push_back(steps.back()["loss"].get<double>());
    for (const auto& file : fs::directory_iterator(cache)) {
      EXPECT_NE(file.path().extension(), ".reference");
    }
    if (ranks == 2) {
      const auto alone = json::parse(
          expect_code(0, {"eval", "--model", output.string(), "--loss-only", "--json"}).out);
      EXPECT_NEAR(alone["loss"].get<double>(),
                  events(output, "evaluation").back()["loss"].get<double>(), 1e-6);
    }
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-5);
  EXPECT_NEAR(losses[2], losses[0], 1e-5);
}

// The first run computes the log-probabilities of the reference model for all others.
TEST(Preferences, AreLearnedAlikeOnAnyRanksAndAfterAStop) {
  const TempFolder folder;
  const fs::path cache = folder.path() / "cache";
  const auto run = [&](const std::string& name, int ranks, const Arguments& more) {
    const fs::path output = folder.path() / name;
    const Arguments flags = {"--eval.at_start",      "false", "--train.micro_batch",    "1",
                             "--train.global_batch", "6",     "--optim.clip_grad_norm", "none"};
    const Arguments verb = recipe("train", output, cache) + flags + more;
    expect_code(0, ranks == 1 ? verb : on_ranks(ranks, verb));
    return read_log(output / "log.jsonl");
  };
  const std::vector<json> alone = run("one", 1, {});
  const auto expect_same = [&](const std::vector<json>& others) {
    ASSERT_EQ(others.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      for (const char* key : {"samples", "tokens"}) {
        EXPECT_EQ(others[i][key], alone[i][key]) << key << " of step " << i + 1;
      }
      EXPECT_NEAR(others[i]["loss"].get<double>(), alone[i]["loss"].get<double>(), 1e-6);
      for (const auto& [name, value] : alone[i]["figures"].items()) {
        EXPECT_NEAR(figure(others[i], name.c_str()), value.get<double>(), 1e-4) << name;
      }
    }
  };
  expect_same(run("two", 2, {}));
  expect_same(run("three", 3, {}));
  const Arguments first_epoch = {"--train.epochs", "1", "--schedule.kind", "constant"};
  const std::vector<json> whole = run("whole", 1, {"--schedule.kind", "constant"});
  static_cast<void>(run("parts", 2, first_epoch));
  const std::vector<json> parts = run("parts", 2, {"--schedule.kind", "constant"});
  ASSERT_EQ(parts.size(), whole.size());
  EXPECT_NEAR(parts.back()["loss"].get<double>(), whole.back()["loss"].get<double>(), 1e-6);
}

// The weights of the run's beginning are gone from the model: they are read once more.
TEST(Preferences, AResumedRunComputesTheReferenceAnewWhereItWasNotKept) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments one = {"--train.epochs", "1", "--schedule.kind", "constant"};
  const Arguments two = {"--train.epochs", "2", "--schedule.kind", "constant"};
  expect_code(0, recipe("train", output, "none") + one);
  expect_code(0, recipe("train", output, "none") + two);
  expect_code(0, recipe("train", folder.path() / "whole", "none") + two);
  EXPECT_EQ(read_log(output / "log.jsonl").back()["loss"],
            read_log(folder.path() / "whole" / "log.jsonl").back()["loss"]);
}

// A stop before the first step: the next start goes on.
TEST(Preferences, StopWhileTheReferenceIsComputed) {
  const TempFolder folder;
  const Arguments verb = recipe("train", folder.path() / "run", folder.path() / "cache");
  const Ended stopped = run_until({.text = "memory: planned peak"}, verb);
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("stopped before the first step"));
  expect_code(0, verb + Arguments{"--train.epochs", "1"});
}

// Packed rows hold whole pairs.
TEST(Preferences, ArePackedAsPairs) {
  const TempFolder folder;
  const Arguments flags = {"--data.packing",       "first_fit", "--data.max_length",   "200",
                           "--train.global_batch", "4",         "--train.micro_batch", "2"};
  const fs::path output = folder.path() / "run";
  const Ended ended = expect_code(0, on_ranks(2, recipe("train", output, "none") + flags));
  EXPECT_THAT(ended.out, HasSubstr(" of at most 400 tokens, "));
  const std::vector<json> steps = read_log(output / "log.jsonl");
  EXPECT_GT(steps[0]["samples"].get<int>(), 4);
  EXPECT_NEAR(steps[0]["loss"].get<double>(), std::numbers::ln2, 1e-5);
  EXPECT_LT(steps.back()["loss"].get<double>(), 0.65);
}

TEST(Preferences, OfEachShapeAreRead) {
  const TempFolder folder;
  const std::vector<std::pair<std::string, std::string>> shapes = {
      {"text.jsonl", R"({"prompt": "Who is it?", "chosen": "Lily", "rejected": "Tom"})"},
      {"hh.jsonl", R"({"chosen": "\n\nHuman: Hi\n\nAssistant: Hello you", )"
                   R"("rejected": "\n\nHuman: Hi\n\nAssistant: Hello no"})"},
      {"lists.jsonl",
       R"({"prompt": [{"role": "user", "content": "Hi"}], "chosen": [{"role": "assistant", )"
       R"("content": "Yes"}], "rejected": [{"role": "assistant", "content": "No"}]})"},
      {"whole.json",
       R"([{"prompt": "Hi", "chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", )"
       R"("content": "Yes"}], "rejected": [{"role": "user", "content": "Hi"}, )"
       R"({"role": "assistant", "content": "No"}], "score_chosen": 3}])"}};
  for (const auto& [name, record] : shapes) {
    SCOPED_TRACE(name);
    const fs::path data = folder.write(name, record);
    const Ended ended = expect_code(0, pairs_of(data, folder.path() / (name + ".run")) +
                                           Arguments{"--data.chat_template", "zephyr"});
    EXPECT_THAT(ended.out, HasSubstr(name + ": 1 pair, "));
    EXPECT_NEAR(read_log(folder.path() / (name + ".run") / "log.jsonl")[0]["loss"].get<double>(),
                std::numbers::ln2, 1e-5);
  }
}

// Each token once, and both prompts alike: BOS, the whole prompt, then the answer and its end.
TEST(Preferences, HaveOneBeginAndOneEndPerText) {
  const TempFolder folder;
  const fs::path data = folder.write(
      "p.jsonl", R"({"prompt": "Who is it?", "chosen": "It is Lily", "rejected": "It is Tom"})");
  Arguments preview = pairs_of(data, folder.path() / "run");
  preview.insert(preview.begin(), {"data"});
  preview[1] = "preview";
  const std::string shown = expect_code(0, preview).out;
  EXPECT_THAT(shown, HasSubstr("<s> Who is it?[[ It is Lily</s>]]\nrejected:\n"
                               "<s> Who is it?[[ It is Tom</s>]]"));
}

TEST(Preferences, BadPairsAreRefusedByName) {
  const TempFolder folder;
  struct Case {
    std::string record;
    std::string message;
  };
  const std::vector<Case> cases = {
      {R"({"prompt": "a", "chosen": "b", "rejected": "b"})",
       "line 1, byte 0: \"chosen\" and \"rejected\" are equal: a pair without a difference teaches "
       "nothing"},
      {R"({"prompt": "a", "completion": "b"})",
       "has no \"chosen\"; its columns are \"prompt\", \"completion\": a preference pair has"},
      {R"({"chosen": "left", "rejected": "right"})",
       "have no common beginning that could be one: name the prompt's field with columns"},
      {R"({"prompt": "a", "chosen": "b", "rejected": 3})",
       "\"rejected\" should be a string, is number"},
      {R"({"prompt": "a", "chosen": "", "rejected": "c"})", "\"chosen\" is empty"},
      {R"({"prompt": [{"role": "user", "content": "a"}], "chosen": "b", "rejected": "c"})",
       "\"prompt\" is a list of messages: \"chosen\" and \"rejected\" should be such lists too"}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.record);
    const fs::path data = folder.write("pairs.jsonl", one.record);
    const Ended ended = expect_code(65, pairs_of(data, folder.path() / "run"));
    EXPECT_THAT(ended.err, HasSubstr(one.message));
  }
}

// The answers differ behind the cut only.
TEST(Preferences, WhoseDifferenceIsCutOffAreRefused) {
  const TempFolder folder;
  std::string same = "a";
  for (int i = 0; i < 100; ++i) {
    same += " dog";
  }
  const fs::path data =
      folder.write("pairs.jsonl", R"({"prompt": "Who?", "chosen": ")" + same +
                                      R"( yes", "rejected": ")" + same + R"( no"})");
  const Ended ended =
      expect_code(65, pairs_of(data, folder.path() / "run") + Arguments{"--data.max_length", "64"});
  EXPECT_THAT(ended.err, HasSubstr("are the same tokens within data.max_length (64)"));
}

TEST(Preferences, AreForDpoAlone) {
  const TempFolder folder;
  const Ended supervised = expect_code(65, train_on(kPairs, folder.path() / "run"));
  EXPECT_THAT(supervised.err, HasSubstr("preference pairs need train.objective = \"dpo\""));
  const Ended format = expect_code(
      64, pairs_of(kPairs, folder.path() / "run") + Arguments{"--data.train[0].format", "jsonl"});
  EXPECT_THAT(format.err, HasSubstr("train.objective = \"dpo\" reads preference pairs: leave "
                                    "data.train[0].format out, or set it to \"preference\""));
  const Ended pairs = expect_code(64, train_on(kPairs, folder.path() / "run") +
                                          Arguments{"--data.train[0].format", "preference"});
  EXPECT_THAT(pairs.err,
              HasSubstr("data.train[0].format = \"preference\" is for train.objective = \"dpo\""));
}

// A model whose scores are no numbers is told by the pair, before the first step.
TEST(Preferences, WithNaNAsLogProbabilityAreNamed) {
  const TempFolder folder;
  const fs::path model = folder.path() / "model";
  fs::copy(kModel, model);
  std::string weights = read_file(model / "model.safetensors");
  std::fill(weights.end() - 64, weights.end(), '\xff');  // NaN in the last tensor
  fs::permissions(model / "model.safetensors", fs::perms::owner_all);
  std::ofstream(model / "model.safetensors", std::ios::binary) << weights;
  Arguments verb = pairs_of(kPairs, folder.path() / "run");
  verb[2] = model.string();
  const Ended ended = expect_code(79, verb);
  EXPECT_THAT(ended.err, HasSubstr("preferences.jsonl: the model gives pair 1 (in file order, from "
                                   "1) log-probabilities of nan"));
}

TEST(Preferences, ArePlannedAndCheckedWithoutASecondModel) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run", cache = folder.path() / "cache";
  const auto plan =
      json::parse(expect_code(0, recipe("plan", output, cache) + Arguments{"--json"}).out);
  Arguments supervised =
      recipe("plan", output, cache) + Arguments{"--json",     "--train.objective",
                                                "supervised", "--data.train[0].columns.completion",
                                                "chosen",     "--data.eval[0].columns.completion",
                                                "chosen"};
  const auto other = json::parse(expect_code(0, supervised).out);
  EXPECT_EQ(plan.at("phases").at("load"), other.at("phases").at("load"));
  EXPECT_EQ(plan.at("checkpoint_bytes"), other.at("checkpoint_bytes"));
  EXPECT_THAT(plan.at("batch").get<std::string>(), HasSubstr("of the data: 4 pairs, "));
  const Ended checked = expect_code(0, recipe("check", output, cache));
  EXPECT_THAT(checked.out, HasSubstr("ok   labels"));
  EXPECT_THAT(checked.out, ContainsRegex("ok   loss_falls +loss 0\\.6931 -> "));
}

}  // namespace
}  // namespace sherd::test
