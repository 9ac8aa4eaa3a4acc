// Names on a hub in the place of paths, with a hub on loopback.

#include <sstream>
#include <thread>

#include "tests/e2e/training.h"
#include "tests/support/fetching.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

class HubNames : public Fetch {
 protected:
  // How often a rank says it; `sherd launch` quotes its last output.
  static int times(const std::string& text, const std::string& part) {
    int found = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      found += !line.starts_with("  | ") && line.find(part) != std::string::npos ? 1 : 0;
    }
    return found;
  }
};

TEST_F(HubNames, ARunTakesTheNameOfAModel) {
  const Ended reading = expect_code(
      66, {"plan", "--model.path", kHubModel, "--data.train", kQuestions, "--train.output", "x"},
      variables());
  EXPECT_THAT(reading.err,
              HasSubstr("Fetch it on a host with a network: sherd fetch " + kHubModel));
  EXPECT_TRUE(hub.asked().empty());
  const Ended first = expect_code(0, on_ranks(2, train_by_name()), variables());
  EXPECT_THAT(first.out, HasSubstr("model.safetensors: "));
  EXPECT_EQ(hub.asked_of_storage().size(), 1U);
  EXPECT_THAT(read_file(folder.path() / "run/config.toml"), HasSubstr(snapshot().string()));
  const TempFolder other;
  expect_code(0, on_ranks(2, train(other.path() / "run", "2")));
  EXPECT_EQ(column(folder.path() / "run", "loss"), column(other.path() / "run", "loss"));
}

constexpr const char* kWhy =
    "model.path = \"tiny-org/stories\": there is no such folder, and as the name of a model on a "
    "hub: ";

TEST_F(HubNames, ARunSaysOnceWhyANameIsNoModel) {
  const Ended ended =
      expect_code(66, on_ranks(2, train_by_name()), variables({"HF_HUB_OFFLINE=1"}));
  EXPECT_EQ(times(ended.err, kWhy), 1) << ended.err;
  const Arguments second_rank = {"RANK=1",
                                 "LOCAL_RANK=1",
                                 "WORLD_SIZE=2",
                                 "LOCAL_WORLD_SIZE=2",
                                 "MASTER_ADDR=127.0.0.1",
                                 "MASTER_PORT=29511",
                                 "HF_HUB_OFFLINE=1"};
  EXPECT_EQ(expect_code(66, train_by_name(), variables(second_rank)).err, "");
}

TEST_F(HubNames, OneRankTriesAndSaysWhyItFailed) {
  hub.before = [](const Asked&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    return std::optional(Answer{404, "{}", {{"X-Error-Code", "RepoNotFound"}}});
  };
  const Ended missing = expect_code(66, on_ranks(4, train_by_name()), variables());
  EXPECT_EQ(times(missing.err, kWhy), 1) << missing.err;
  EXPECT_THAT(missing.err, HasSubstr("has no model tiny-org/stories"));
  EXPECT_EQ(hub.asked().size(), 1U);
  hub.before = [](const Asked&) { return std::nullopt; };
  hub.at_storage = [](const Asked&, Answer answer) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    answer.body[100] = static_cast<char>(~answer.body[100]);
    return answer;
  };
  const Ended wrong = expect_code(65, on_ranks(4, train_by_name()), variables());
  EXPECT_EQ(times(wrong.err, kWhy), 1) << wrong.err;
  EXPECT_THAT(wrong.err, HasSubstr("the hub lists the SHA-256"));
  EXPECT_EQ(hub.asked_of_storage().size(), 1U);
}

TEST_F(HubNames, AnotherRunIsToldWhyToo) {
  hub.before = [](const Asked&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2000));
    return std::optional(Answer{404, "{}", {{"X-Error-Code", "RepoNotFound"}}});
  };
  Program one(train_by_name(), variables());
  Program two(train_by_name(), variables());
  for (Program* program : {&one, &two}) {
    const Ended ended = program->finish();
    EXPECT_EQ(ended.code, 66);
    EXPECT_THAT(ended.err, HasSubstr("has no model tiny-org/stories"));
  }
  EXPECT_EQ(hub.asked().size(), 1U);
}

TEST_F(HubNames, RanksWithDifferentCommitsDoNotTrain) {
  const TempFolder other;
  expect_code(0, kFetch, variables());
  hub.commit = std::string(40, 'b');  // the branch moves on between two hosts' fetches
  const Arguments elsewhere{"HF_HOME=" + other.path().string(), "HF_ENDPOINT=" + hub.url()};
  expect_code(0, kFetch, elsewhere);
  const std::string port = std::to_string(launch::listen_on_loopback({}).port);
  const auto rank = [&](const std::string& number) {
    return Arguments{"RANK=" + number, "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                     "MASTER_PORT=" + port};
  };
  Program second(train_by_name(), rank("1") + elsewhere);
  Program first(train_by_name(), rank("0") + variables());
  const Ended ended = first.finish();
  EXPECT_EQ(ended.code, 78);
  EXPECT_EQ(second.finish().code, 78);
  EXPECT_THAT(ended.err, HasSubstr("the commit of tiny-org/stories (`sherd fetch tiny-org/stories` "
                                   "on each host downloads the newest) is " +
                                   kCommit + " on rank 0 and " + hub.commit + " on rank 1"));
}

TEST_F(HubNames, OtherVerbsTakeThemToo) {
  Arguments preview = train_by_name();
  preview.front() = "preview";
  preview.insert(preview.begin(), "data");
  expect_code(0, preview, variables());
  const std::size_t asked = hub.asked().size();
  expect_code(0, {"eval", kHubModel, "--data", kQuestions, "--loss-only", "--limit", "2"},
              variables());
  expect_code(0, {"generate", kHubModel, "--prompt", "Tom", "--max-new-tokens", "2"}, variables());
  expect_code(0, {"bench", "--model", kHubModel, "--seq", "8", "--steps", "1", "--warmup", "0"},
              variables());
  expect_code(0, train(folder.path() / "run", "1"));
  expect_code(0,
              {"export", "--checkpoint", folder.path() / "run", "--out", folder.path() / "out",
               "--model", kHubModel},
              variables());
  EXPECT_EQ(hub.asked().size(), asked);  // all of the cache
  EXPECT_THAT(
      expect_code(66, {"generate", "tiny-org/none", "--prompt", "Tom"}, variables()).err,
      HasSubstr("--model = \"tiny-org/none\": there is no such folder, and as the name of a "
                "model on a hub: "));
}

}  // namespace
}  // namespace sherd::test
