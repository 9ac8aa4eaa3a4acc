// Several samples in a row: the run is the same on any number of ranks, and goes on where it
// stopped.

#include <fstream>

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

constexpr int kQuestionsOfFile = 29;

// Questions of lengths that differ, about ten to the longest row.
void write_questions(const fs::path& path) {
  nlohmann::json paragraphs = nlohmann::json::array();
  for (int i = 0; i < kQuestionsOfFile; ++i) {
    std::string context = "Tom has a ball.";
    for (int more = 0; more < i % 5; ++more) {
      context += " He likes it.";
    }
    paragraphs.push_back({{"context", context},
                          {"qas",
                           {{{"id", std::to_string(i)},
                             {"question", "What has Tom?"},
                             {"answers", {{{"text", "a ball"}, {"answer_start", 8}}}}}}}});
  }
  std::ofstream(path) << nlohmann::json{{"version", "1.1"},
                                        {"data", {{{"title", "t"}, {"paragraphs", paragraphs}}}}};
}

class PackedRun : public testing::Test {
 protected:
  PackedRun() { write_questions(questions()); }

  [[nodiscard]] fs::path questions() const { return folder_.path() / "questions.json"; }
  [[nodiscard]] fs::path output(const std::string& name) const { return folder_.path() / name; }
  [[nodiscard]] Arguments run(const std::string& name, const std::string& packing = "first_fit") {
    return {"train",
            SHERD_TEST_SOURCE_DIR "/tests/e2e/base.toml",
            "--model.path",
            kModel,
            "--data.train",
            questions().string(),
            "--data.packing",
            packing,
            "--data.max_length",
            "256",
            "--train.output",
            output(name).string(),
            "--train.max_steps",
            "6",
            "--train.global_batch",
            "4",
            "--checkpoint.every",
            "2 steps",
            "--checkpoint.keep",
            "9",
            "--optim.lr",
            "1e-3"};
  }

 private:
  TempFolder folder_;
};

TEST_F(PackedRun, IsTheSameOnAnyNumberOfRanksAndGoesOnBitByBit) {
  const Ended whole = expect_code(0, on_ranks(2, run("whole")));
  EXPECT_THAT(whole.out, HasSubstr("packing: 29 samples in "));
  EXPECT_THAT(whole.out, HasSubstr(" rows of at most 256 tokens, "));
  const auto losses = column(output("whole"), "loss");
  ASSERT_EQ(losses.size(), 6U);
  EXPECT_LT(losses.back(), losses.front());

  expect_code(0, run("alone") + Arguments{"--train.micro_batch", "2"});
  const auto alone = column(output("alone"), "loss");
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(alone[step], losses[step], 1e-5 * losses[step]) << "step " << step + 1;
  }

  const std::string middle = (output("whole") / "checkpoints/step-00000002").string();
  expect_code(0, on_ranks(2, run("rest")) + Arguments{"--checkpoint.resume", middle});
  EXPECT_EQ(column(output("rest"), "loss", 3),
            std::vector<double>(losses.begin() + 2, losses.end()));
  EXPECT_TRUE(exported_weights(output("rest")) == exported_weights(output("whole")));

  const Ended other =
      expect_code(64, on_ranks(2, run("other", "none")) + Arguments{"--checkpoint.resume", middle});
  EXPECT_THAT(other.err, HasSubstr("data.packing was \"first_fit\" and is now \"none\""));
}

TEST_F(PackedRun, HasFewerRowsThanSamples) {
  const Ended packed = expect_code(0, run("packed"));
  const Ended single = expect_code(0, run("single", "none"));
  const auto tokens = column(output("packed"), "tokens");
  EXPECT_GT(tokens.front(), 2 * column(output("single"), "tokens").front());
  EXPECT_THAT(single.out, testing::Not(HasSubstr("packing:")));
}

}  // namespace
}  // namespace sherd::test
