// `sherd check`: each item of it, what makes one fail, and that it leaves nothing.

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class Check : public testing::Test {
 protected:
  [[nodiscard]] fs::path output() const { return folder_.path() / "run"; }
  [[nodiscard]] Arguments check(const Arguments& more = {}) const {
    Arguments words = train(output(), "6");
    words[0] = "check";
    return words + more;
  }
  // By name.
  std::map<std::string, json> items(int code, const Arguments& more) {
    const json found = json::parse(expect_code(code, check(Arguments{"--json"} + more)).out);
    EXPECT_EQ(found.at("ok"), code == 0);
    std::map<std::string, json> by_name;
    for (const json& item : found.at("items")) {
      by_name[item.at("name")] = item;
    }
    return by_name;
  }
  void TearDown() override { EXPECT_TRUE(listing(folder_.path()).empty()); }

 private:
  TempFolder folder_;
};

TEST_F(Check, TriesEachItemOnTheRunsRanks) {
  const Ended ended = expect_code(0, check({"-n", "2"}));
  for (const char* const item :
       {"ok   ranks_agree_config", "ok   data_order", "ok   labels", "ok   padding",
        "ok   ranks_agree_parameters", "ok   ranks_agree_loss", "ok   finite", "ok   loss_falls",
        "ok   checkpoint_round_trip", "ok   throughput", "ok   memory", "ok: 11 items"}) {
    EXPECT_THAT(ended.out, HasSubstr(item));
  }
  EXPECT_THAT(ended.out, HasSubstr("32 samples of an epoch over 2 ranks: 0 missing"));
  EXPECT_THAT(ended.out, HasSubstr("on all 2 ranks, bit for bit"));
}

TEST_F(Check, SaysTheSameAsJson) {
  const auto found = items(0, {});
  EXPECT_EQ(found.size(), 11);
  const json& loss = found.at("loss_falls");
  EXPECT_LT(loss.at("measured"), loss.at("limit"));
  EXPECT_EQ(loss.at("unit"), "nats");
  EXPECT_EQ(found.at("checkpoint_round_trip").at("measured"), 0.0);
  EXPECT_GT(found.at("memory").at("measured"), 10e6);
  EXPECT_GT(found.at("throughput").at("measured"), 0.0);
}

TEST_F(Check, FailsWhereTheLossDoesNotFall) {
  const auto found = items(1, {"--optim.lr", "1e-30"});
  EXPECT_FALSE(found.at("loss_falls").at("ok"));
  EXPECT_TRUE(found.at("checkpoint_round_trip").at("ok"));
}

TEST_F(Check, FailsWhereNumbersAreNotFinite) {
  const auto found = items(1, {"--optim.lr", "1e30"});
  EXPECT_FALSE(found.at("finite").at("ok"));
  EXPECT_THAT(found.at("finite").at("message").get<std::string>(),
              HasSubstr("Nothing was updated"));
}

TEST_F(Check, FailsWhereRanksWereGivenOtherSettings) {
  const auto [first, second] =
      run_unlike_ranks(check({"--json"}), check({"--json", "--optim.lr", "0.5"}));
  EXPECT_EQ(first.code, 1) << first.err;
  EXPECT_EQ(second.code, 1) << second.err;
  const json items = json::parse(first.out).at("items");
  ASSERT_EQ(items.size(), 1);  // nothing more is tried
  EXPECT_EQ(items[0].at("name"), "ranks_agree_config");
  EXPECT_FALSE(items[0].at("ok"));
  EXPECT_THAT(items[0].at("message").get<std::string>(), HasSubstr("optim.lr"));
}

TEST_F(Check, EndsAsTrainWouldOnWhatItCannotRead) {
  EXPECT_THAT(expect_code(64, check({"-n", "0"})).err, HasSubstr("--ranks"));
  EXPECT_THAT(expect_code(66, check({"--data.eval", "/no/such/file.json"})).err,
              HasSubstr("/no/such/file.json"));
  EXPECT_THAT(expect_code(64, check({"--train.no_such_key", "1"})).err, HasSubstr("no_such_key"));
}

// While it trains, long before it would end.
TEST_F(Check, LeavesNothingWhereItIsStopped) {
  for (const Arguments& ranks : {Arguments{}, Arguments{"-n", "2"}}) {
    Program program(check(ranks + Arguments{"--train.micro_batch", "1"}));
    program.wait_for("ok   padding");
    const auto begin = std::chrono::steady_clock::now();
    while (listing(output().parent_path()).empty() &&  // until the folder of its own is there
           std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    program.signal(SIGTERM);
    const Ended ended = program.finish();
    EXPECT_EQ(ended.code, 75) << ended.out << ended.err;
    EXPECT_THAT(ended.out + ended.err, HasSubstr("stopped on request; the check left no files"));
    EXPECT_TRUE(listing(output().parent_path()).empty());
  }
}

}  // namespace
}  // namespace sherd::test
