// What `sherd eval` and the log of `sherd train` tell programs.

#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

TEST(Evaluation, WithoutJsonIsALineForPeople) {
  const Ended ended =
      expect_code(0, {"eval", "--model", kModel, "--data", kQuestions, "--limit", "2", "--show",
                      "1", "--max-length", "128", "--max-answer-tokens", "4"});
  for (const char* part : {"question:", "gold:", "predicted:", "evaluation: loss", "EM", "F1"}) {
    EXPECT_THAT(ended.out, testing::HasSubstr(part));
  }
}

// A folder with a field that this version does not know.
fs::path folder_with_a_strange_field(const fs::path& to) {
  copy_of_model(to);
  auto config = nlohmann::ordered_json::parse(read_file(to / "config.json"));
  config["neftune"] = 5;
  std::ofstream(to / "config.json") << config;
  return to;
}

TEST(StrangeField, IsIgnoredWhereTheFlagSaysSo) {
  const TempFolder folder;
  const std::string model = folder_with_a_strange_field(folder.path() / "model").string();
  Arguments eval = kEvaluation;
  eval[2] = model;
  const Arguments bench = {"bench",   "--model", model,      "--seq", "16",
                           "--steps", "1",       "--warmup", "0",     "--json"};
  for (const Arguments& verb : {eval, bench}) {
    const Ended refused = expect_code(65, verb);
    EXPECT_THAT(refused.err, testing::HasSubstr("\"neftune\" 5 is unknown, and may change"));
    EXPECT_THAT(refused.err, testing::HasSubstr("--ignore-fields neftune"));
    EXPECT_THAT(refused.err, testing::Not(testing::HasSubstr("model.ignore_fields")));
    expect_code(0, verb + Arguments{"--ignore-fields", "neftune,another"});
  }
}

// The run's own are ignored too.
TEST(StrangeField, ThatCameAfterTheRunIsIgnoredWhereTheFlagSaysSo) {
  const TempFolder folder;
  const std::string model = copy_of_model(folder.path() / "model").string();
  const std::string output = (folder.path() / "run").string();
  Arguments run = train(output, "1");
  std::replace(run.begin(), run.end(), kModel, model);
  expect_code(0, run);
  fs::remove_all(model);
  folder_with_a_strange_field(model);
  const std::string out = (folder.path() / "out").string();
  const Arguments verb = {"export", "--checkpoint", output, "--out", out};
  EXPECT_THAT(expect_code(65, verb).err, testing::HasSubstr("--ignore-fields neftune"));
  expect_code(0, verb + Arguments{"--ignore-fields=neftune"});
  Arguments eval = kEvaluation;
  eval[2] = output;
  EXPECT_THAT(expect_code(65, eval).err, testing::HasSubstr("--ignore-fields neftune"));
  expect_code(0, eval + Arguments{"--ignore-fields", "neftune"});
}

TEST(StepLog, HasOneCompleteObjectAStep) {
  const TempFolder folder;
  const fs::path log = folder.path() / "steps.jsonl";
  const Ended ended = expect_code(0, on_ranks(2, train(folder.path() / "run", "4")) +
                                         Arguments{"--train.micro_batch", "6", "--log.jsonl", log});
  const auto records = read_log(log);
  ASSERT_EQ(records.size(), 4U);
  for (size_t i = 0; i < records.size(); ++i) {
    const auto& record = records[i];
    EXPECT_EQ(record.at("step"), i + 1);
    for (const char* key : {"loss", "grad_norm", "lr", "tokens", "step_seconds",
                            "tokens_per_second", "peak_rank_bytes", "data_wait_seconds"}) {
      EXPECT_TRUE(record.at(key).is_number() && record.at(key) > 0) << key;
    }
    EXPECT_NEAR(record.at("tokens_per_second").get<double>(),
                record.at("tokens").get<double>() / record.at("step_seconds").get<double>(), 1);
    EXPECT_LE(record.at("tokens"), 12 * 128);  // real tokens, no padding
    EXPECT_GT(record.at("peak_rank_bytes"), 10'000'000);
  }
  EXPECT_FALSE(fs::exists(folder.path() / "run/log.jsonl"));
  EXPECT_THAT(ended.out,
              testing::ContainsRegex("step 4/4 \\| loss [0-9.]+ \\| gnorm [0-9.e+-]+ \\| "
                                     "lr [0-9.e-]+ \\| [0-9.]+k? tok/s \\| mem [0-9.]+ "
                                     "[MG]iB \\| eta 00:00:00"));
}

}  // namespace
}  // namespace sherd::test
