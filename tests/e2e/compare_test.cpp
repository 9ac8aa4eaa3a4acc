// `sherd compare` of real runs.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Compare : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    const Arguments evaluated = {"--data.eval", kQuestions, "--eval.every", "epoch"};
    expect_code(0, train(run("one"), "6") + evaluated);
    expect_code(0, on_ranks(2, train(run("two"), "6") + evaluated));
    expect_code(0, train(run("other"), "3"));
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static fs::path run(const std::string& name) { return folder_->path() / name; }
  static fs::path page() { return folder_->path() / "page.html"; }
  static Arguments compare(const Arguments& more) { return Arguments{"compare"} + more; }

 private:
  static inline std::unique_ptr<TempFolder> folder_;
};

TEST_F(Compare, HasTheFiguresOfEachRun) {
  const json found =
      json::parse(expect_code(0, compare({run("one"), run("two"), "--json", "--strict"})).out);
  EXPECT_EQ(found.at("comparable"), true);
  const json& one = found.at("runs").at(0);
  const json& two = found.at("runs").at(1);
  EXPECT_EQ(one.at("ranks"), 1);
  EXPECT_EQ(two.at("ranks"), 2);
  for (const json& each : {one, two}) {
    EXPECT_EQ(each.at("steps"), 6);
    EXPECT_EQ(each.at("train_loss_by_epoch").size(), 2);  // three steps an epoch
    EXPECT_EQ(each.at("eval_loss_by_epoch").size(), 2);
    EXPECT_GT(each.at("train_samples_per_second"), 0.0);
    EXPECT_GT(each.at("eval_samples_per_second"), 0.0);
    // Pages that other processes of the program have too are shared among more or fewer of them.
    EXPECT_GT(each.at("max_peak_bytes").get<double>(), each.at("constant_bytes").get<double>() / 2);
  }
  EXPECT_EQ(one.at("train_loss"), two.at("train_loss"));  // the same run, on one rank and on two
  EXPECT_NEAR(two.at("speedup").get<double>(),
              two.at("train_samples_per_second").get<double>() /
                  one.at("train_samples_per_second").get<double>(),
              1e-9);
}

TEST_F(Compare, TellsWhatIsNotComparable) {
  const Ended ended = expect_code(1, compare({run("one"), run("other"), "--strict"}));
  EXPECT_THAT(ended.out, HasSubstr("not comparable: other: steps 3, one: 6"));
  expect_code(0, compare({run("one"), run("other")}));
}

TEST_F(Compare, WritesAPageAndCsv) {
  const Ended ended = expect_code(0, compare({run("one"), "--csv", "--html", page()}));
  EXPECT_THAT(ended.out, HasSubstr("name,strategy,ranks,"));
  EXPECT_THAT(read_file(page()), HasSubstr("<td>one</td><td>full_shard</td><td>1</td>"));
}

TEST_F(Compare, TakesARunThatGoesOnOrWasKilled) {
  const fs::path broken = run("broken");
  fs::copy(run("one"), broken, fs::copy_options::recursive);
  fs::remove(broken / "summary.json");
  fs::resize_file(broken / "log.jsonl", fs::file_size(broken / "log.jsonl") - 10);
  EXPECT_THAT(expect_code(0, compare({broken})).out, HasSubstr("broken"));
}

TEST_F(Compare, RefusesWhatIsNoRun) {
  EXPECT_THAT(expect_code(66, compare({kModel})).err, HasSubstr("is not the folder of a run"));
  EXPECT_THAT(expect_code(66, compare({run("nowhere")})).err, HasSubstr("nowhere"));
  EXPECT_THAT(expect_code(64, {"compare"}).err, HasSubstr("runs is required"));
  expect_code(64, compare({run("one"), "--csv", "--json"}));
  expect_code(73, compare({run("one"), "--html", "/no/such/folder/page.html"}));
}

TEST_F(Compare, ARunEndsWithItsSummary) {
  const json summary = json::parse(read_file(run("one") / "summary.json"));
  EXPECT_EQ(summary.at("name"), "one");
  EXPECT_EQ(summary.at("steps"), 6);
  const Ended again = expect_code(0, train(run("told"), "3"));
  EXPECT_THAT(again.out, HasSubstr("summary: train_loss "));
  EXPECT_THAT(again.out, HasSubstr(" samples/s, "));
}

}  // namespace
}  // namespace sherd::test
