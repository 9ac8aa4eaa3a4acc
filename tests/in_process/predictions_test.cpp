// The answers of each evaluation lie in files, as SQuAD's own script reads them.

#include <map>

#include "tests/in_process/run_program.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::vector<json> lines_of(const fs::path& path) {
  std::vector<json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(json::parse(line));
  }
  return lines;
}

// The ids in the file of questions, with their texts.
std::map<std::string, std::string> questions() {
  std::map<std::string, std::string> found;
  const json file = json::parse(read_file(kQuestions));
  for (const auto& article : file.at("data")) {
    for (const auto& paragraph : article.at("paragraphs")) {
      for (const auto& question : paragraph.at("qas")) {
        found[question.at("id")] = question.at("question");
      }
    }
  }
  return found;
}

class Predictions : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    output_ = folder_->path() / "run";
    ended_ = expect_code(
        0, on_ranks(2, evaluated(output_, "2", "1 steps")) +
               Arguments{"--eval.generate", "true", "--data.max_answer_tokens", "6", "--eval.batch",
                         "3", "--data.eval[1].path", kQuestions, "--data.eval[1].limit", "2"});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  // NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
  static inline std::unique_ptr<TempFolder> folder_;
  static inline fs::path output_;
  static inline Ended ended_;
  // NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)
};

TEST_F(Predictions, AnswerEachQuestionById) {
  const json answers = json::parse(read_file(output_ / "predictions-2.json"));
  const auto known = questions();
  EXPECT_EQ(answers.size(), 8U);
  for (const auto& [id, answer] : answers.items()) {
    EXPECT_EQ(known.count(id), 1U) << id;
    EXPECT_TRUE(answer.is_string());
  }
  for (const char* name : {"predictions-1.json", "predictions-1.jsonl", "predictions-2.jsonl",
                           "predictions-2-1.json", "predictions-2-1.jsonl"}) {
    EXPECT_TRUE(fs::exists(output_ / name)) << name;
  }
}

TEST_F(Predictions, HaveTheScoresThatTheLogHas) {
  const json answers = json::parse(read_file(output_ / "predictions-2.json"));
  double em = 0;
  double f1 = 0;
  const auto lines = lines_of(output_ / "predictions-2.jsonl");
  for (const json& line : lines) {
    em += line.at("em").get<double>();
    f1 += line.at("f1").get<double>();
    EXPECT_EQ(line.at("prediction"), answers.at(line.at("id").get<std::string>()));
    EXPECT_EQ(line.at("question"), questions().at(line.at("id")));
    EXPECT_GE(line.at("answers").size(), 1U);
  }
  ASSERT_EQ(lines.size(), 8U);
  for (const json& record : events(output_, "evaluation")) {
    if (record.value("predictions", "") == "predictions-2.json") {
      EXPECT_NEAR(record.at("em").get<double>(), 100 * em / 8, 1e-9);
      EXPECT_NEAR(record.at("f1").get<double>(), 100 * f1 / 8, 1e-9);
    }
  }
  EXPECT_EQ(summary(output_).at("best").at("by"), "f1");
}

TEST_F(Predictions, AreTheSameBySherdEval) {
  const fs::path out = folder_->path() / "answers/of-last";
  const Ended ended =
      expect_code(0, {"eval", output_, "--predictions", out, "--batch", "5", "--json"});
  EXPECT_EQ(read_file(out / "predictions.json"), read_file(output_ / "predictions-2.json"));
  EXPECT_EQ(read_file(out / "predictions.jsonl"), read_file(output_ / "predictions-2.jsonl"));
  // Of each data.eval.
  EXPECT_EQ(read_file(out / "predictions-1.json"), read_file(output_ / "predictions-2-1.json"));
  const json line = json::parse(ended.out);
  EXPECT_EQ(line.at("samples"), 8);
  ASSERT_EQ(line.at("files").size(), 2U);
  EXPECT_EQ(line.at("files")[0].at("loss"), line.at("loss"));
  EXPECT_EQ(line.at("files")[1].at("samples"), 2);
  EXPECT_EQ(line.at("files")[1].at("data"), kQuestions);
  const Ended text = expect_code(0, {"eval", output_, "--loss-only"});
  EXPECT_THAT(text.out, HasSubstr("evaluation of " + kQuestions + ": loss "));
  EXPECT_THAT(text.out, HasSubstr(" over 8 samples"));
  EXPECT_THAT(text.out, HasSubstr(" over 2 samples"));
}

TEST_F(Predictions, NeedAnswersAndAFolder) {
  const Ended loss = expect_code(64, {"eval", output_, "--loss-only", "--predictions", "x"});
  EXPECT_THAT(loss.err, HasSubstr("--loss-only"));
  const std::string file = folder_->write("file", "").string();
  const Ended nowhere = expect_code(73, {"eval", output_, "--predictions", file + "/x"});
  EXPECT_THAT(nowhere.err, HasSubstr("cannot create the folder"));
}

TEST(NoPredictions, AreWrittenWhereTheyAreNotWanted) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(0, evaluated(output, "1", "never") + Arguments{"--eval.generate", "true",
                                                             "--data.max_answer_tokens", "2",
                                                             "--eval.predictions", "false"});
  EXPECT_FALSE(fs::exists(output / "predictions-1.json"));
}

// What a run that goes on makes anew is not left from before.
TEST(StalePredictions, AreRemovedOnResume) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Arguments run = train(output, "2") + Arguments{"--checkpoint.every", "1 steps"};
  expect_code(0, run);
  fs::remove_all(output / "checkpoints/step-00000002");
  std::ofstream(output / "predictions-1.json") << "{}";
  std::ofstream(output / "predictions-2.json") << "{}";
  expect_code(0, run);
  EXPECT_TRUE(fs::exists(output / "predictions-1.json"));
  EXPECT_FALSE(fs::exists(output / "predictions-2.json"));
}

}  // namespace
}  // namespace sherd::test
