// `sherd fetch` and `sherd train` by processes that fetch, with a hub on loopback: what others see
// of a token, and who fetches where several want the same.

#include "tests/e2e/secrets.h"
#include "tests/e2e/training.h"
#include "tests/support/fetching.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(Fetch, TheTokenGoesToTheHubAlone) {
  const std::string token = "hf_canary0123456789";
  hub.before = [&](const Asked& asked) -> std::optional<Answer> {
    return asked.header("Authorization") == "Bearer " + token
               ? std::nullopt
               : std::optional(Answer{401, "{}", {{"X-Error-Code", "GatedRepo"}}});
  };
  refuse(77, "is gated, and no token was sent: accept its conditions at " + hub.url() +
                 "/tiny-org/stories");
  fs::create_directories(home());
  std::ofstream(home() / "token") << token << "\n";
  const Ended by_file = expect_code(0, kFetch, variables());
  fs::remove(home() / "token");
  fs::remove_all(repo());
  std::string commands;  // of all processes, while the token is in use
  hub.at_storage = [&](const Asked&, Answer answer) {
    commands = command_lines();
    return answer;
  };
  Program program(kFetch, variables({"HF_TOKEN=" + token}));
  const Ended by_variable = program.finish();
  EXPECT_EQ(by_variable.code, 0);
  EXPECT_THAT(commands, HasSubstr(kHubModel));
  EXPECT_THAT(commands, Not(HasSubstr(token)));
  for (const Ended& ended : {by_file, by_variable}) {
    EXPECT_THAT(ended.out + ended.err, Not(HasSubstr("canary")));
  }
  ASSERT_FALSE(hub.asked_of_storage().empty());
  for (const Asked& asked : hub.asked_of_storage()) {
    for (const auto& [name, value] : asked.headers) {
      EXPECT_THAT(value, Not(HasSubstr("hf_canary"))) << name;
    }
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (entry.is_regular_file()) {
      EXPECT_THAT(read_file(entry.path()), Not(HasSubstr("canary"))) << entry.path();
    }
  }
}

TEST_F(Fetch, TwoAtOnceFetchOnce) {
  Program one(kFetch, variables());
  Program two(kFetch, variables());
  EXPECT_EQ(one.finish().code, 0);
  EXPECT_EQ(two.finish().code, 0);
  EXPECT_EQ(hub.asked_of_storage().size(), 1U);
  EXPECT_EQ(read_file(snapshot() / "model.safetensors"), hub.files.at("model.safetensors"));
}

TEST_F(FetchData, ARunTakesTheNameOfADataSet) {
  const std::string name = kHubData + ":plain_text/train";
  Arguments run = train(folder.path() / "run", "2");
  std::replace(run.begin(), run.end(), kQuestions, name);
  Arguments dry = run;
  dry.emplace_back("--dry-run");
  EXPECT_THAT(expect_code(66, dry, variables_of_data()).err,
              HasSubstr("sherd fetch " + kHubData + " --dataset"));
  expect_code(0, on_ranks(2, run), variables_of_data());
  EXPECT_EQ(data.asked_of_storage().size(), 1U);
  const TempFolder other;
  expect_code(0, on_ranks(2, train(other.path() / "run", "2")));
  EXPECT_EQ(column(folder.path() / "run", "loss"), column(other.path() / "run", "loss"));
  EXPECT_THAT(read_file(folder.path() / "run/config.toml"), HasSubstr("\"parquet\""));
  const Ended lacking = expect_code(66, {"eval", kModel, "--data", kHubData + ":plain_text/test"},
                                    variables_of_data());
  EXPECT_THAT(lacking.err, HasSubstr("--data = \"tiny-org/questions:plain_text/test\": there is no "
                                     "such file, and as the name of a data set on a hub: "));
  EXPECT_THAT(lacking.err, HasSubstr("has no split 'test' in 'plain_text'. It has: train, "
                                     "validation"));
  expect_code(0, {"eval", kModel, "--loss-only", "--data", kHubData + ":plain_text/dev"},
              variables_of_data());
}

TEST_F(FetchData, SeveralFilesOfASplitAreOneDataSet) {
  for (const std::string split : {"train", "validation"}) {
    data.files["sums/" + split + "-00000-of-00002.parquet"] = parquet("sums-none.parquet");
    data.files["sums/" + split + "-00001-of-00002.parquet"] = parquet("sums-zstd.parquet");
  }
  const fs::path output = folder.path() / "run";
  Arguments run = train(output, "2") +
                  Arguments{"--data.train[0].limit", "9", "--data.train[0].limit_order", "file"};
  std::replace(run.begin(), run.end(), kQuestions, kHubData + ":sums/train");
  const std::string told = "sums/train-0000*-of-00002.parquet: 9 records, ";
  EXPECT_THAT(expect_code(0, on_ranks(2, run), variables_of_data()).out, HasSubstr(told));
  EXPECT_EQ(data.asked_of_storage().size(), 2U);
  EXPECT_THAT(read_file(output / "config.toml"), HasSubstr("sums/train-0000*-of-00002.parquet\""));
  EXPECT_THAT(expect_code(0, run, variables_of_data()).out, HasSubstr(told));  // it is complete

  const fs::path answers = folder.path() / "answers";
  const Ended scored = expect_code(0,
                                   {"eval", kModel, "--data", kHubData + ":sums/validation",
                                    "--predictions", answers.string(), "--json"},
                                   variables_of_data());
  EXPECT_EQ(nlohmann::json::parse(scored.out)["samples"], 14);
  const auto by_id = nlohmann::json::parse(read_file(answers / "predictions.json"));
  EXPECT_EQ(by_id.size(), 14U);  // an id each
}

}  // namespace
}  // namespace sherd::test
