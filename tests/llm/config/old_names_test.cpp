// Keys and values of earlier versions.

#include "gmock/gmock.h"
#include "tests/llm/config/config_files.h"

namespace llm::config::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OldNames : public ConfigFiles {
 protected:
  RunConfig read(const std::optional<std::filesystem::path>& file,
                 const std::vector<std::string>& flags = {}) {
    notes.clear();
    return load(file, flags, [this](const std::string& line) {
      const std::string prefix = folder().string() + "/";
      notes.push_back(line.starts_with(prefix) ? line.substr(prefix.size()) : line);
    });
  }
  std::vector<std::string> notes;
};

TEST_F(OldNames, AreReadFromAFileWithALineThatNamesTheNewOne) {
  const RunConfig config = read(write(kRequired + R"(train.threads = 1
[optim]
schedule = "cosine"
warmup_steps = 5
)"));
  EXPECT_EQ(config.schedule.kind, Schedule::Cosine);
  EXPECT_EQ(config.schedule.warmup, (Warmup{5, 0}));
  EXPECT_EQ(config.device.threads, 1);
  EXPECT_THAT(notes,
              ElementsAre("run.toml:6: optim.schedule is now schedule.kind",
                          "run.toml:7: optim.warmup_steps is now schedule.warmup = \"5 steps\"",
                          "run.toml:4: train.threads is now device.threads"));
}

TEST_F(OldNames, AreFlags) {
  const RunConfig config = read(
      write(kRequired), {"--checkpoint.every_steps", "50", "--eval.every_steps=0", "--log.jsonl",
                         "l", "--precision.moments_dtype=bfloat16", "--optim.min_lr_ratio", "0.5"});
  EXPECT_EQ(config.checkpoint.every, Every::steps(50));
  EXPECT_EQ(config.eval.every, Every{});
  EXPECT_EQ(config.log.sink.front().path, "l");
  EXPECT_EQ(config.precision.moments, MomentsDtype::BFloat16);
  EXPECT_EQ(config.schedule.min_lr_ratio, 0.5);
  EXPECT_THAT(notes,
              ElementsAre("--checkpoint.every_steps is now --checkpoint.every = \"50 steps\"",
                          "--eval.every_steps is now --eval.every = \"never\"",
                          "--log.jsonl is now --log.sink[0].path",
                          "--precision.moments_dtype is now --precision.moments",
                          "--optim.min_lr_ratio is now --schedule.min_lr_ratio"));
}

TEST_F(OldNames, OfALimitMeanTheFirstOfTheFile) {
  const RunConfig config = read(write(kRequired + "data.train_limit = 250\n"),
                                {"--data.eval", "e", "--data.eval_limit=9"});
  EXPECT_EQ(config.data.train,
            (std::vector<DataSet>{{.path = "t", .limit = 250, .limit_order = LimitOrder::File}}));
  EXPECT_EQ(config.data.eval,
            (std::vector<DataSet>{{.path = "e", .limit = 9, .limit_order = LimitOrder::File}}));
  EXPECT_THAT(notes, ElementsAre("run.toml:4: data.train_limit is now data.train[0].limit and "
                                 "data.train[0].limit_order = \"file\"",
                                 "--data.eval_limit is now --data.eval[0].limit and "
                                 "--data.eval[0].limit_order = \"file\""));
}

TEST_F(OldNames, OfValuesAreWords) {
  const RunConfig config = read(write(kRequired + R"(data.max_length = 0
data.cache = ""
data.train_limit = 0
train.max_steps = 0
train.threads = 0
optim.clip_grad_norm = 0.0
parallel.shard_size = 0
parallel.reshard_after_forward_size = 0
)"));
  RunConfig plain = load(std::nullopt, kRequiredFlags);
  plain.optim.clip_grad_norm = std::nullopt;
  plain.data.train[0].limit_order = LimitOrder::File;
  EXPECT_EQ(config, plain);
  EXPECT_THAT(notes,
              ::testing::Contains(
                  "run.toml:4: data.max_length = 0: is now written data.max_length = \"model\""));
  EXPECT_THAT(notes, ::testing::Contains("run.toml:9: optim.clip_grad_norm = 0.0: is now written "
                                         "optim.clip_grad_norm = \"none\""));
  read(write(kRequired), {"--data.max_length", "0"});
  EXPECT_THAT(notes, ElementsAre("--data.max_length 0: is now written --data.max_length model"));
}

TEST_F(OldNames, AreRefusedBesideTheNewOne) {
  EXPECT_EQ(faults(write(kRequired + "optim.schedule = 'linear'\nschedule.kind = 'cosine'\n")),
            "run.toml:4: optim.schedule = 'linear': given twice, schedule.kind and its old name");
  EXPECT_EQ(faults(write(kRequired), {"--device.threads=1", "--train.threads=1"}),
            "--train.threads 1: given twice, device.threads and its old name");
}

TEST_F(OldNames, OfAFlagWinOverTheNewOneInAFile) {
  const RunConfig config =
      read(write(kRequired + "schedule.kind = 'cosine'\n"), {"--optim.schedule", "constant"});
  EXPECT_EQ(config.schedule.kind, Schedule::Constant);
}

TEST_F(OldNames, WithWrongValuesNameBoth) {
  EXPECT_EQ(
      faults(write(kRequired + "optim.warmup_steps = -1\n")),
      "run.toml:4: optim.warmup_steps = -1 (now schedule.warmup): must be steps such as \"100 "
      "steps\", or a share of the run from 0 to 1");
  EXPECT_THAT(
      faults(write(kRequired), {"--checkpoint.every_steps", "often"}),
      HasSubstr("--checkpoint.every_steps often (now --checkpoint.every): must be \"never\""));
}

TEST_F(OldNames, AreNotNeededByWhatIsPrinted) {
  read(write(to_toml(load(std::nullopt, kRequiredFlags))));
  EXPECT_THAT(notes, IsEmpty());
}

}  // namespace
}  // namespace llm::config::testing
