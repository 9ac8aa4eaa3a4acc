#include "llm/runs/best_evaluation.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/runs/run_summary.h"
#include "tests/llm/runs/written_run.h"
#include "tests/support/temp_folder.h"

namespace llm::runs {
namespace {

using config::BestBy;

Evaluation of(std::int64_t step, double loss, double f1 = 0) {
  return {.step = step, .loss = loss, .em = f1 / 2, .f1 = f1, .set = {0, "dev"}};
}

// One that wrote no answers.
Evaluation of_loss_alone(std::int64_t step, double loss) {
  return {.step = step, .loss = loss, .set = {0, "dev"}};
}

EvaluationCourse course(const std::vector<Evaluation>& evaluations, config::EvalSection policy) {
  return course_of(evaluations, {0, "dev"}, policy);
}

std::int64_t best_step(const std::vector<Evaluation>& evaluations, BestBy by) {
  config::EvalSection policy;
  policy.best_by = by;
  return course(evaluations, policy).best->step;
}

TEST(BestEvaluation, IsTheLowestLossOrTheHighestScore) {
  const std::vector<Evaluation> three = {of(2, 3.0, 40), of(4, 1.0, 10), of(6, 2.0, 30)};
  EXPECT_EQ(best_step(three, BestBy::Loss), 4);
  EXPECT_EQ(best_step(three, BestBy::F1), 2);
  EXPECT_EQ(best_step({of(2, 1), of(4, 1)}, BestBy::Loss), 2);  // the first of equals
}

TEST(BestEvaluation, IsByF1WhereAnswersAreWritten) {
  config::EvalSection policy;
  EXPECT_EQ(name_of(measure_of(policy)), "loss");
  policy.generate = true;
  EXPECT_EQ(name_of(measure_of(policy)), "f1");
  policy.best_by = BestBy::Em;
  EXPECT_EQ(name_of(measure_of(policy)), "em");
  EXPECT_EQ(course({of(3, 1, 46.25)}, policy).best->text(), "em 23.1 at step 3");
}

TEST(BestEvaluation, CountsNeitherTheStartNorOtherFilesNorWhatIsNotFinite) {
  Evaluation other = of(4, 0.1);
  other.set.digest = "train";
  EXPECT_EQ(best_step({of(0, 0.5), of(2, NAN), other, of(6, 2)}, BestBy::Loss), 6);
  EXPECT_FALSE(course({of(0, 0.5), of(2, NAN), other}, {}).best);
}

TEST(BestEvaluation, OfSameLossAsBeforeIsNoImprovement) {
  const EvaluationCourse all = course({of(1, 3), of(2, 2), of(3, 2), of(4, 2.5)}, {});
  EXPECT_EQ(all.without_improvement, 2);
  EXPECT_FALSE(all.is_over);  // without patience never
}

TEST(Patience, EndsWithTheEvaluationsThatAreNoBetter) {
  config::EvalSection policy;
  policy.patience = 2;
  EXPECT_FALSE(course({of(1, 3), of(2, 4)}, policy).is_over);
  EXPECT_TRUE(course({of(1, 3), of(2, 4), of(3, 5)}, policy).is_over);
  EXPECT_FALSE(course({of(1, 3), of(2, 4), of(3, 2)}, policy).is_over);
  EXPECT_TRUE(course({of(1, NAN), of(2, NAN)}, policy).is_over);
}

// Other samples of the same file, or of another entry of data.eval, are another set.
TEST(BestEvaluation, IsOfOneSet) {
  Evaluation of_other_entry = of(4, 0.1);
  of_other_entry.set.index = 1;
  const std::vector<Evaluation> mixed = {of(2, 3), of_other_entry, of(6, 2)};
  EXPECT_EQ(best_step(mixed, BestBy::Loss), 6);
  EXPECT_EQ(first_set(mixed), (EvaluationSet{0, "dev"}));
  Evaluation of_other_limit = of(8, 5);
  of_other_limit.set.digest = "dev, 8 of it";  // the run went on with another limit
  EXPECT_EQ(first_set(std::vector<Evaluation>{of(2, 3), of_other_limit, of_other_entry}),
            of_other_limit.set);
  EXPECT_EQ(first_set({}), EvaluationSet());
}

// A run that began without answers, and goes on with them, has lost none of its patience.
TEST(Patience, DoesNotCountEvaluationsThatLackTheMeasure) {
  config::EvalSection policy;
  policy.patience = 2;
  policy.best_by = BestBy::F1;
  const std::vector<Evaluation> begun = {of_loss_alone(1, 3), of_loss_alone(2, 2),
                                         of_loss_alone(3, 1), of(4, 1, 10), of(5, 1, 5)};
  EXPECT_EQ(course(begun, policy).without_improvement, 1);
  EXPECT_EQ(course(begun, policy).best->step, 4);
  EXPECT_FALSE(course(begun, policy).is_over);
  EXPECT_TRUE(course({of(1, 1, 10), of(2, 1, NAN), of(3, 1, NAN)}, policy).is_over);
}

// What is better by less than min_delta is the best, and no improvement all the same.
TEST(Patience, CountsWhatIsBetterByLessThanMinDelta) {
  config::EvalSection policy;
  policy.patience = 2;
  policy.min_delta = 0.5;
  const EvaluationCourse slow = course({of(1, 3), of(2, 2.75), of(3, 2.5)}, policy);
  EXPECT_TRUE(slow.is_over);
  EXPECT_EQ(slow.best->step, 3);
  EXPECT_FALSE(course({of(1, 3), of(2, 2.75), of(3, 2.25)}, policy).is_over);
}

TEST(Summary, SaysStartAndBest) {
  const sherd::test::TempFolder folder;
  const std::string more = WrittenRun::evaluation(0, 9.5, 1) + "\n" +
                           WrittenRun::evaluation(5, 3.0, 18) + "\n" +
                           R"({"event":"early_stop","step":5})" + "\n";
  const RunSummary summary = summary_of(read_run(WrittenRun{}.write(folder.path(), more)));
  const auto json = nlohmann::json::parse(to_json(summary));
  EXPECT_EQ(json["eval_loss_at_start"], 9.5);
  EXPECT_EQ(json["em_at_start"], 1);
  EXPECT_EQ(json["eval_loss"], 3.0);
  EXPECT_EQ(json["best"], nlohmann::json::parse(R"({"by":"loss","step":4,"value":2.5})"));
  EXPECT_EQ(json["ended_early"], true);
  EXPECT_EQ(json["eval_loss_by_epoch"], nlohmann::json::parse("[3.5, 2.5]"));
  const std::string line = to_line(summary);
  EXPECT_THAT(line, testing::HasSubstr("eval_loss 3.0000 (9.5000 at the start), EM 18.0 (1.0 at "
                                       "the start), F1 23.0 (6.0 at the start), best loss 2.5000 "
                                       "at step 4"));
}

}  // namespace
}  // namespace llm::runs
