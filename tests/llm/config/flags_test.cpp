#include "llm/config/flags.h"

#include "gmock/gmock.h"
#include "tests/llm/config/config_files.h"

namespace llm::config::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> faults_of(const std::vector<std::string>& flags) {
  Reading reading;
  read_flags(flags, reading);
  return reading.faults;
}

TEST(Flags, SetEveryKindOfValue) {
  Reading reading;
  const std::vector<std::string> flags = {"--model.path",
                                          "a folder",
                                          "--train.seed=7",
                                          "--optim.lr",
                                          "3e-3",
                                          "--optim.betas",
                                          "0.9,0.95",
                                          "--schedule.kind",
                                          "cosine",
                                          "--eval.generate",
                                          "true",
                                          "--checkpoint.at_end=false",
                                          "--precision.param_dtype",
                                          "bfloat16",
                                          "--data.cache=a=b",
                                          "--schedule.warmup",
                                          "0.03",
                                          "--eval.every=2 h",
                                          "--optim.clip_grad_norm",
                                          "none",
                                          "--parallel.shard_size=4",
                                          "--model.ignore_fields",
                                          "a, b,c"};
  read_flags(flags, reading);
  EXPECT_THAT(reading.faults, ElementsAre());
  const RunConfig& config = reading.config;
  EXPECT_EQ(config.model.path, "a folder");
  EXPECT_THAT(config.model.ignore_fields, ElementsAre("a", "b", "c"));
  EXPECT_EQ(config.train.seed, 7);
  EXPECT_EQ(config.optim.lr, 3e-3);
  EXPECT_THAT(config.optim.betas, ElementsAre(0.9, 0.95));
  EXPECT_EQ(config.schedule.kind, Schedule::Cosine);
  EXPECT_TRUE(config.eval.generate);
  EXPECT_FALSE(config.checkpoint.at_end);
  EXPECT_EQ(config.precision.param_dtype, ParamDtype::BFloat16);
  EXPECT_EQ(config.data.cache, "a=b");
  EXPECT_EQ(config.schedule.warmup, (Warmup{std::nullopt, 0.03}));
  EXPECT_EQ(config.eval.every, Every::time(std::chrono::hours(2)));
  EXPECT_EQ(config.optim.clip_grad_norm, std::nullopt);
  EXPECT_EQ(config.parallel.shard_size, 4);
}

TEST(Flags, RefuseWhatTheyCannotRead) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> rows = {
      {{"--optim.lr", "-1"}, "--optim.lr -1: must be a number above 0"},
      {{"--optim.lr="}, "--optim.lr : must be a number above 0"},
      {{"--optim.lr", "1e-5x"}, "--optim.lr 1e-5x: must be a number above 0"},
      {{"--optim.lr", "nan"}, "--optim.lr nan: must be a number above 0"},
      {{"--optim.lr", "1e999"}, "--optim.lr 1e999: must be a number above 0"},
      {{"--train.seed", "1.5"}, "--train.seed 1.5: must be an integer of at least 0"},
      {{"--train.seed", "99999999999999999999"}, "must be an integer of at least 0"},
      {{"--optim.betas", "0.9"},
       "--optim.betas 0.9: must be two numbers, each of at least 0 and below 1"},
      {{"--optim.betas", "0.9,0.95,0.99"}, "must be two numbers"},
      {{"--optim.betas", "0.9,"}, "must be two numbers"},
      {{"--eval.generate", "yes"}, "--eval.generate yes: must be true or false"},
      {{"--eval.generate"}, "--eval.generate: needs a value: true or false"},
      {{"--eval.generate", "--eval.batch=4"}, "--eval.generate: needs a value: true or false"},
      {{"--schedule.kind", "step"},
       "--schedule.kind step: must be one of \"linear\", \"cosine\", \"constant\""},
      {{"--lr", "1"}, "--lr: unknown flag; did you mean --optim.lr?"},
      {{"--epoch", "1"}, "--epoch: unknown flag; did you mean --train.epochs?"},
      {{"--trian.seed", "1"}, "--trian.seed: unknown flag; did you mean --train.seed?"},
      {{"--train.sede=1"}, "--train.sede: unknown flag; did you mean --train.seed?"},
      {{"--zzz.qqqqqqqqqqqqqq", "1"},
       "--zzz.qqqqqqqqqqqqqq: unknown flag; known sections are model, adapter, data"},
      {{"--", "1"}, "--: unknown flag"},
      {{"--train.seed=1", "--train.seed=2"}, "--train.seed 2: given twice"},
      {{"--optim", "1"}, "--optim: unknown flag; known in [optim] are kind, lr"},
      {{"--lora.r", "8"}, "--lora.r: unknown flag; here it is adapter.kind: \"lora\""},
      {{"--adapter.layers=0,b"}, "must be a list of integers from 0 to 1000000 such as [0, 1]"},
      {{"--zzzz.r", "8"}, "--zzzz.r: unknown flag; known sections are model"},
      {{"--data.packing=true"}, "--data.packing true: must be one of"},
      {{"--data.workers=2"}, "--data.workers: not supported yet: threads that prepare data"},
      {{"--model.ignore_fields", "a,,b"}, "must be a list of strings such as"},
      {{"--data.train[0].name", "a"},
       "--data.train[0].name: not supported yet: names of data sets"},
      {{"--device.kind=tpu"}, "--device.kind tpu: must be one of"},
      {{"--data.train.limit", "5"},
       "--data.train.limit: unknown flag; did you mean --data.train[0].limit?"},
      {{"--data.train[2].path", "x"}, "--data.train[2].path: unknown flag"},
      {{"--data.train[-1].path", "x"}, "--data.train[-1].path: unknown flag"},
      {{"--data.train[x].path", "x"}, "--data.train[x].path: unknown flag"},
      {{"--data.train[0]", "x"}, "--data.train[0]: unknown flag"},
      {{"--data.train"}, "--data.train: needs a value: a string"},
      {{"--log.sink", "x"}, "--log.sink: unknown flag"},
      {{"--train.threads"}, "--train.threads: needs a value: \"auto\" or an integer"},
      {{"run2.toml"}, "run2.toml: not expected here: flags are --section.key value"},
      {{"-n", "--train.seed=1"}, "-n: not expected here"},
  };
  for (const auto& [flags, message] : rows) {
    EXPECT_THAT(faults_of(flags), ElementsAre(HasSubstr(message))) << flags[0];
  }
}

}  // namespace
}  // namespace llm::config::testing
