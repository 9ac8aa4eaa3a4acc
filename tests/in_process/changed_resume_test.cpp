// What may change between the sessions of a run, what may not, and what "overwrite" deletes.

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string checkpoint_at(const fs::path& run, int step) {
  return (run / "checkpoints" / ("step-0000000" + std::to_string(step))).string();
}

// A tiny model in a folder that a test may change, 16 samples, and runs of 2 steps an epoch.
class ChangedResume : public testing::Test {
 protected:
  explicit ChangedResume(const std::string& of_case = "resume-after-config-changed")
      : case_(kCases + of_case) {
    fs::copy(case_ / "tiny", model());
  }
  [[nodiscard]] fs::path model() const { return folder_.path() / "model"; }
  [[nodiscard]] fs::path run() const { return folder_.path() / "run"; }
  [[nodiscard]] Arguments train(const fs::path& output, int epochs = 4) const {
    return {"train",
            SHERD_TEST_SOURCE_DIR "/tests/e2e/base.toml",
            "--model.path",
            model().string(),
            "--data.train",
            (case_ / "data.jsonl").string(),
            "--train.output",
            output.string(),
            "--train.epochs",
            std::to_string(epochs),
            "--checkpoint.every",
            "2 steps",
            "--checkpoint.keep",
            "9"};
  }
  // As a run is left that was stopped after this step.
  static void cut_after(int step, const fs::path& output) {
    for (const auto& entry : fs::directory_iterator(output / "checkpoints")) {
      if (entry.path().string() > checkpoint_at(output, step)) {
        fs::remove_all(entry.path());
      }
    }
    fs::remove(output / "summary.json");
  }
  void change_model() const {
    fs::copy_file(case_ / "config.changed.json", model() / "config.json",
                  fs::copy_options::overwrite_existing);
  }

  fs::path case_;
  TempFolder folder_;
};

nlohmann::json last_event(const fs::path& output, const std::string& event) {
  nlohmann::json last;
  std::ifstream file(output / "log.jsonl");
  for (std::string line; std::getline(file, line);) {
    if (const auto read = nlohmann::json::parse(line); read.value("event", "") == event) {
      last = read;
    }
  }
  return last;
}

TEST_F(ChangedResume, TrainsOnWithMoreEpochsAndOtherNumbers) {
  const Arguments before = {"--optim.lr", "1e-3", "--optim.clip_grad_norm", "none"};
  expect_code(0, train(run()) + before);
  const Arguments after = {"--optim.lr", "5e-4", "--optim.clip_grad_norm", "0.5"};
  const Ended longer = expect_code(0, train(run(), 6) + after);
  EXPECT_EQ(count_of(longer.out, "changed since"), 1U);
  EXPECT_THAT(longer.out,
              HasSubstr("\nchanged since step 8: train.epochs 4 -> 6, optim.lr 0.001 -> 5e-04, "
                        "optim.clip_grad_norm \"none\" -> 0.5\n"));
  const auto rates = column(run(), "lr");
  ASSERT_EQ(rates.size(), 12U);
  EXPECT_DOUBLE_EQ(rates[7], 1e-3 * (1 - 7.0 / 8));
  EXPECT_DOUBLE_EQ(rates[8], 5e-4 * (1 - 8.0 / 12));  // the new schedule at that step
  const auto event = last_event(run(), "change");
  EXPECT_EQ(event.at("step"), 8);
  EXPECT_EQ(event.at("changes").at(1),
            nlohmann::json({{"key", "optim.lr"}, {"before", "0.001"}, {"after", "5e-04"}}));
  const std::string log = read_file(run() / "log.jsonl");
  EXPECT_THAT(expect_code(0, train(run(), 6) + after).out,
              testing::AllOf(HasSubstr("step 12 of 12: no step is left to do"),
                             Not(HasSubstr("changed since"))));
  EXPECT_THAT(expect_code(0, train(run(), 3) + after).out,
              HasSubstr("step 12 of 6: it has already made more steps, and no step is left"));
  EXPECT_EQ(read_file(run() / "log.jsonl"), log);
  expect_code(0, train(folder_.path() / "plain", 6) + after);
  EXPECT_THAT(expect_code(0, {"compare", (folder_.path() / "plain").string(), run().string()}).out,
              HasSubstr("run: optim.lr was 0.001 until step 8"));
}

TEST_F(ChangedResume, ConvertsTheStateToAnotherFormOfMasters) {
  const auto with = [](const char* dtype, const char* master) {
    return Arguments{"--precision.param_dtype", dtype, "--precision.master", master};
  };
  Arguments plain = train(run());
  plain.erase(plain.begin() + 1);  // base.toml says the dtype
  expect_code(0, plain + with("bfloat16", "float32"));
  const auto losses = column(run(), "loss");
  const auto resumed = [&](const std::string& name, const Arguments& precision) {
    Arguments words = plain;
    const fs::path output = folder_.path() / name;
    std::replace(words.begin(), words.end(), run().string(), output.string());
    const Arguments from = {"--resume", checkpoint_at(run(), 4)};
    const Ended ended = expect_code(0, words + precision + from);
    return std::pair(ended.out, column(output, "loss", 5));
  };
  const auto [said, split] = resumed("split", with("bfloat16", "split"));
  EXPECT_THAT(said, HasSubstr("changed since step 4: precision.master \"float32\" -> \"split\""));
  ASSERT_EQ(losses.size(), 8U);
  EXPECT_EQ(split, std::vector<double>(losses.begin() + 4, losses.end()));  // to the bit
  const auto [said_wide, wide] = resumed("wide", with("float32", "float32"));
  ASSERT_EQ(wide.size(), 4U);
  EXPECT_THAT(said_wide, HasSubstr("precision.param_dtype \"bfloat16\" -> \"float32\""));
  EXPECT_NEAR(wide.back(), losses.back(), 0.05 * losses.back());
  const auto rounded = resumed("rounded", with("bfloat16", "bfloat16")).second;
  ASSERT_EQ(rounded.size(), 4U);
  EXPECT_NEAR(rounded.back(), losses.back(), 0.05 * losses.back());
}

TEST_F(ChangedResume, RefusesAModelWhoseConfigHasChanged) {
  expect_code(0, train(run()));
  cut_after(4, run());
  change_model();
  const Ended ended = expect_code(64, train(run()));
  EXPECT_THAT(ended.err, HasSubstr("belongs to a run with another model:\n  config.json: "
                                   "rope_theta was 10000 and is now 500000"));
  EXPECT_EQ(count_of(ended.err, "rope_theta"), 1U);
}

TEST_F(ChangedResume, NeedsNoWeightsOfTheModel) {
  expect_code(0, train(folder_.path() / "whole"));
  expect_code(0, train(run()));
  cut_after(4, run());
  fs::remove(model() / "model.safetensors");
  EXPECT_THAT(expect_code(0, on_ranks(2, train(run()))).out, HasSubstr("resumed from"));
  EXPECT_EQ(column(run(), "loss"), column(folder_.path() / "whole", "loss"));
  EXPECT_THAT(expect_code(66, train(folder_.path() / "fresh")).err, HasSubstr("no weights"));
}

class ChangedModel : public ChangedResume {
 protected:
  ChangedModel() : ChangedResume("export-after-config-changed") {}
};

TEST_F(ChangedModel, IsSaidByEvalGenerateAndExport) {
  expect_code(0, train(run(), 1));
  const Arguments evaluation = {"eval", run().string(), "--data", (case_ / "data.jsonl").string(),
                                "--loss-only"};
  const std::string out = (folder_.path() / "out").string();
  const Arguments exporting = {"export", "--checkpoint", run().string(), "--out", out};
  expect_code(0, evaluation);
  change_model();
  for (const Arguments& verb :
       {evaluation, Arguments{"generate", run().string(), "--prompt", "1 plus 1 is"}, exporting}) {
    EXPECT_THAT(expect_code(65, verb).err,
                testing::AllOf(HasSubstr("has changed since the run"),
                               HasSubstr("config.json: rope_theta was 10000 and is now 500000")));
  }
  EXPECT_FALSE(fs::exists(out));
  expect_code(0, exporting + Arguments{"--model", model().string()});
  EXPECT_THAT(read_file(fs::path(out) / "config.json"), HasSubstr("500000.0"));
}

class Overwrite : public ChangedResume {
 protected:
  [[nodiscard]] std::string start(const Arguments& more = {}, const Arguments& variables = {}) {
    return expect_code(0, train(run()) + Arguments{"--resume", "overwrite"} + more, variables).out;
  }
};

TEST_F(Overwrite, ResumesWhatItHasBegunAndDeletesWhatItHasNot) {
  const auto has_acted =
      HasSubstr("checkpoint.resume = \"overwrite\" was already applied: a command began");
  expect_code(0, train(run()));
  cut_after(4, run());
  EXPECT_THAT(start(), Not(HasSubstr("resumed")));  // a run that it has not begun
  cut_after(4, run());
  EXPECT_THAT(start(), testing::AllOf(has_acted, HasSubstr("step-00000004, step 4 of 8")));
  EXPECT_THAT(start(), Not(HasSubstr("resumed")));  // one that had come to its end
  cut_after(4, run());
  EXPECT_THAT(start({"--optim.lr", "1e-3"}), Not(HasSubstr("resumed")));  // another command's
  EXPECT_EQ(column(run(), "loss").size(), 8U);
}

TEST_F(Overwrite, IsNotRepeatedByARestartOfItsJob) {
  const std::string job = "SLURM_JOB_ID=42";
  expect_code(0, train(run()));
  EXPECT_THAT(start({}, {job}), Not(HasSubstr("resumed")));
  EXPECT_THAT(start({}, {job, "SLURM_RESTART_COUNT=1"}),
              testing::AllOf(HasSubstr("was already applied: Slurm job 42 began"),
                             HasSubstr("no step is left to do")));
  EXPECT_THAT(start({}, {"SLURM_JOB_ID=43", "SLURM_RESTART_COUNT=1"}), Not(HasSubstr("resumed")));
}

}  // namespace
}  // namespace sherd::test
