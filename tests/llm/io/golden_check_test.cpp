// The program golden_check: sharded over ranks, all models agree with the reference; bad input
// ends with the right exit code.

#include <array>
#include <cstdio>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "tests/llm/io/model_folders.h"
#include "tests/llm/io/published_bloom.h"

namespace llm::io {
namespace {

struct Outcome {
  int code;
  std::string output, errors;
};

Outcome golden_check(const std::string& arguments) {
  const TemporaryFolder folder;
  const std::string command = SHERD_TEST_BINARY_DIR "/bin/golden_check " + arguments + " >" +
                              folder / "out" + " 2>" + folder / "err";
  const int status = std::system(command.c_str());
  return {WEXITSTATUS(status), read_all(folder / "out"), read_all(folder / "err")};
}

std::string golden_of(const std::string& model) {
  return kData + "goldens/" + model + ".safetensors";
}

void expect_agreement(const std::string& folder, const std::string& model, int ranks) {
  SCOPED_TRACE(model + " on " + std::to_string(ranks));
  const Outcome outcome =
      golden_check(folder + " " + golden_of(model) + " --ranks " + std::to_string(ranks));
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1);
  const auto report = nlohmann::json::parse(outcome.output);
  double sum = 0;
  for (const char* field : {"logits_rel", "loss_rel", "grad_rel", "losses_rel", "grad_norms_rel"}) {
    EXPECT_LE(report.at(field).get<double>(), 1e-4) << field;
    sum += report.at(field).get<double>();
  }
  EXPECT_GT(sum, 0) << "nothing was compared";
  EXPECT_FALSE(report.at("grad_worst").get<std::string>().empty());
}

TEST(GoldenCheck, AllModelsAgreeOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3}) {  // two rows: the third rank has none
    expect_agreement(kData + "stories260k-hf", "stories260k-hf", ranks);
    expect_agreement(kData + "tiny-llama3-hf", "tiny-llama3-hf", ranks);
    expect_agreement(kData + "tiny-bloom-hf", "tiny-bloom-hf", ranks);
  }
}

TEST(GoldenCheck, IgnoresFieldsWhereTheFlagSaysSo) {
  const TemporaryFolder folder;
  const std::string model = folder / "model";
  std::filesystem::copy(kData + "stories260k-hf", model);
  auto config = nlohmann::json::parse(read_all(model + "/config.json"));
  config["neftune"] = 5;
  std::ofstream(model + "/config.json") << config;
  const Outcome refused = golden_check(model + " " + golden_of("stories260k-hf"));
  EXPECT_EQ(refused.code, 65) << refused.errors;
  EXPECT_NE(refused.errors.find("--ignore-fields neftune"), std::string::npos) << refused.errors;
  expect_agreement("--ignore-fields neftune " + model, "stories260k-hf", 1);
}

TEST(GoldenCheck, BloomAsCheckpointsArePublishedMeansTheSame) {
  const TemporaryFolder folder;
  make_published_bloom(folder.path(), at::kFloat);
  expect_agreement(folder.path(), "tiny-bloom-hf", 2);
}

TEST(GoldenCheck, TheConfigOfTransformers5MeansTheSame) {
  const TemporaryFolder folder;
  std::filesystem::copy(kData + "tiny-llama3-hf", folder.path());
  std::filesystem::rename(folder / "config.v5.json", folder / "config.json");
  expect_agreement(folder.path(), "tiny-llama3-hf", 2);
}

TEST(GoldenCheck, ADifferenceIsReportedAndIsNoFailure) {
  const TemporaryFolder folder;
  std::filesystem::copy(kData + "tiny-llama3-hf", folder.path());
  auto config = nlohmann::json::parse(read_all(folder / "config.json"));
  config["rope_scaling"] = nullptr;
  write_all(folder / "config.json", config.dump());
  const Outcome outcome = golden_check(folder.path() + " " + golden_of("tiny-llama3-hf"));
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_GT(nlohmann::json::parse(outcome.output).at("logits_rel").get<double>(), 0.1);
}

void expect_refusal(const std::string& arguments, int code, const std::string& message) {
  const Outcome outcome = golden_check(arguments);
  EXPECT_EQ(outcome.code, code);
  EXPECT_THAT(outcome.errors, testing::HasSubstr(message));
  EXPECT_EQ(outcome.output, "");
}

TEST(GoldenCheck, BadInputIsToldWithItsExitCode) {
  const std::string stories = kData + "stories260k-hf", golden = golden_of("stories260k-hf");
  expect_refusal(stories, 64, "GOLDEN is required");
  expect_refusal(stories + " " + golden + " --ranks 0", 64, "--ranks");
  expect_refusal("/nowhere " + golden, 66, "the model folder '/nowhere' does not exist");
  expect_refusal(stories + " /nowhere", 66, "/nowhere");
  expect_refusal(stories + " " + stories + "/model.safetensors", 65,
                 "tensor `input_ids` is missing");
  expect_refusal(kData + "tiny-llama3-hf " + golden, 65, "has another shape");
  const TemporaryFolder empty;
  expect_refusal(empty.path() + " " + golden, 66, "has no config.json. A model folder has");
}

}  // namespace
}  // namespace llm::io
