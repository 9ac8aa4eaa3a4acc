// Runs side by side, and whether they compare.

#include "llm/runs/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/llm/runs/written_run.h"
#include "tests/support/temp_folder.h"

namespace llm::runs {
namespace {

using sherd::test::TempFolder;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Compared : public testing::Test {
 protected:
  Comparison beside(const WrittenRun& other) {
    return compare({WrittenRun().write(folder_.path()), other.write(folder_.path())});
  }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }
  // In all that shows it.
  static void expect_scaling(const Comparison& both, const std::string& word) {
    EXPECT_THAT(table_of(both).at(0), Contains("scaling"));
    EXPECT_EQ(table_of(both).at(1).back(), "");
    EXPECT_EQ(table_of(both).at(2).back(), word);
    EXPECT_THAT(to_json(both), HasSubstr(R"("scaling":")" + word + "\""));
    EXPECT_THAT(to_html(both), HasSubstr("<td>" + word + "</td>"));
  }

 private:
  TempFolder folder_;
};

TEST_F(Compared, OfTheSameBatchShowStrongScaling) {
  const Comparison both = beside({.name = "two", .ranks = 2, .step_seconds = 0.25});
  EXPECT_THAT(both.differences, IsEmpty());
  EXPECT_EQ(both.runs[0].speedup, 1);
  EXPECT_EQ(both.runs[1].speedup, 2);
  EXPECT_EQ(both.runs[1].scaling_efficiency, 1);
  expect_scaling(both, "strong");
}

TEST_F(Compared, OfTheSameBatchARankShowWeakScaling) {
  const Comparison both = beside({.name = "two", .ranks = 2, .global_batch = 16});
  EXPECT_THAT(both.differences, IsEmpty());
  EXPECT_EQ(both.runs[1].scaling_efficiency, 1);
  expect_scaling(both, "weak");
}

TEST_F(Compared, OfAnotherBatchShowNeither) {
  expect_scaling(beside({.name = "two", .ranks = 2, .global_batch = 12}), "neither");
}

TEST_F(Compared, OfAsManyRanksShowNoScaling) {
  const Comparison both = beside({.name = "other"});
  EXPECT_THAT(to_text(both), Not(HasSubstr("scaling")));
  EXPECT_THAT(to_json(both), HasSubstr(R"("scaling":null)"));
}

TEST_F(Compared, SayWhatIsNotTheSame) {
  const Comparison both = beside(
      {.name = "other", .lr = 0.5, .global_batch = 16, .data_sha256 = "d2", .isa = "avx512"});
  EXPECT_FALSE(both.comparable());
  EXPECT_THAT(both.differences, ElementsAre("other: train.global_batch = 16, first: 8",
                                            "other: optim.lr = 0.5, first: 0.001",
                                            "other: SHA-256 of data.train d2, first: d1",
                                            "other: instructions avx512, first: avx2"));
  EXPECT_THAT(to_text(both), HasSubstr("not comparable: other: optim.lr = 0.5, first: 0.001"));
}

TEST_F(Compared, SayThatOtherQuestionsWereEvaluated) {
  const auto of = [&](const std::string& name, const std::string& sha, int samples,
                      const std::string& set) {
    return WrittenRun{.name = name,
                      .eval_data = fmt::format(
                          R"(,"data_sha256":"{}","samples":{},"data_index":0,"data_set":"{}")", sha,
                          samples, set)}
        .write(folder());
  };
  const auto differences = [&](const std::filesystem::path& other) {
    return compare({of("first", "e1", 10, "s1"), other}).differences;
  };
  EXPECT_THAT(differences(of("same", "e1", 10, "s1")), IsEmpty());
  EXPECT_THAT(differences(of("file", "e2", 10, "s2")),
              ElementsAre("file: SHA-256 of data.eval[0] e2, first: e1"));
  EXPECT_THAT(differences(of("limit", "e1", 5, "s2")),
              ElementsAre("limit: samples of data.eval[0] 5, first: 10"));
  EXPECT_THAT(differences(of("order", "e1", 10, "s2")),
              ElementsAre("order: choice of samples of data.eval[0] s2, first: s1"));
}

// A curve ends where the run has come to, however many points it has.
TEST_F(Compared, KeepTheLastPointOfALongCurve) {
  std::string steps;
  for (int step = 5; step <= 1500; ++step) {
    steps += fmt::format(R"({{"step":{},"loss":1,"supervised_tokens":1}})", step) + "\n";
  }
  const std::string page = to_html(compare({WrittenRun().write(folder(), steps)}));
  const std::size_t last_x = 630;  // of the page's curves
  EXPECT_THAT(page, HasSubstr(fmt::format(" {}.0,", last_x)));
}

TEST_F(Compared, AreATableForPeople) {
  const std::string text = to_text(beside({.name = "two", .ranks = 2, .step_seconds = 0.25}));
  EXPECT_THAT(text, HasSubstr("run      strategy  ranks  train loss  eval loss    EM    F1"));
  EXPECT_THAT(text, HasSubstr("two    full_shard      2         2.5        2.5  20.0  25.0"));
  EXPECT_THAT(text, HasSubstr("loss by epoch    1    2\n"));
  EXPECT_THAT(text, HasSubstr("two eval       3.5  2.5"));
  EXPECT_THAT(text, Not(HasSubstr("not comparable")));
}

TEST_F(Compared, HaveAColumnOfTheUtilizationWhereSomeKnowIt) {
  const Comparison both = beside({.name = "two", .more_of_a_step = R"(,"mfu":0.25)"});
  EXPECT_THAT(to_text(both), HasSubstr("  steps/s    MFU  eval samples/s"));
  EXPECT_THAT(to_text(both), HasSubstr("        2  0.250              10"));
  EXPECT_THAT(to_csv(both), HasSubstr("train_steps_per_second,mfu,"));
  EXPECT_THAT(to_csv(beside({.name = "three"})), Not(HasSubstr("mfu")));
}

TEST_F(Compared, AreJsonAndCsv) {
  const Comparison both = beside({.name = "a,b", .ranks = 2, .step_seconds = 0.25});
  const auto json = nlohmann::json::parse(to_json(both));
  EXPECT_EQ(json.at("comparable"), true);
  const auto& run = json.at("runs").at(1);
  EXPECT_EQ(run.at("name"), "a,b");
  EXPECT_EQ(run.at("train_samples_per_second"), 32);
  EXPECT_EQ(run.at("speedup"), 2);
  EXPECT_EQ(run.at("em"), 20);
  EXPECT_EQ(run.at("eval_loss_by_epoch").size(), 2);
  EXPECT_THAT(to_csv(both), HasSubstr("name,strategy,ranks,train_loss,"));
  EXPECT_THAT(to_csv(both), HasSubstr("\n\"a,b\",full_shard,2,2.5,"));
}

TEST_F(Compared, AreAPageThatNeedsNothingElse) {
  const std::string page = to_html(beside({.name = "<b>&", .lr = 0.5}));
  EXPECT_THAT(page, HasSubstr("<td>&lt;b&gt;&amp;</td>"));
  EXPECT_THAT(page, Not(HasSubstr("<b>&")));
  EXPECT_THAT(page, HasSubstr("<figure id=\"loss\">"));
  EXPECT_THAT(page, HasSubstr("<table id=\"losses\">"));
  EXPECT_THAT(page, HasSubstr("<td>first train</td>"));
  EXPECT_THAT(page, HasSubstr("<li>&lt;b&gt;&amp;: optim.lr = 0.5, first: 0.001</li>"));
  EXPECT_THAT(page, Not(HasSubstr("http")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("inf")));
}

TEST_F(Compared, ShowWhereTheTimeOfAStepWentInRunsThatTimedIt) {
  EXPECT_THAT(phases_table_of(beside({.name = "two"})), IsEmpty());
  const Comparison both = beside({.name = "timed",
                                  .step_seconds = 0.4,
                                  .more_of_a_step = R"(,"phase_seconds":{"forward":0.125})"});
  const auto rows = phases_table_of(both);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_THAT(rows[1],
              testing::ElementsAre("timed", "400.0", "100.0", "", "125.0", "", "", "", "", "", ""));
  EXPECT_THAT(to_text(both), HasSubstr("a step, ms    all   data  gather  forward"));
  EXPECT_THAT(to_html(both), HasSubstr("<table id=\"phases\">"));
}

}  // namespace
}  // namespace llm::runs
