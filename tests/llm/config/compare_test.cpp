// Which settings make another run, and what an older program's settings count as.

#include <stdexcept>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "llm/config/run_config.h"

namespace llm::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> differences(const RunConfig& before, const RunConfig& after) {
  std::vector<std::string> texts;
  for (const Difference& difference : deciding_differences(before, after)) {
    texts.push_back(difference.key + ": " + difference.before + " -> " + difference.after);
  }
  return texts;
}

RunConfig with_data() {
  RunConfig config;
  config.data.train = {{.path = "t"}};
  return config;
}

TEST(Differences, AreThoseThatDecide) {
  RunConfig before = with_data();
  RunConfig after = before;
  after.model.path = "elsewhere";
  after.data.train[0].path = "moved";
  after.data.eval = {{.path = "e", .limit = 5}};
  after.train.micro_batch = 4;
  after.checkpoint.every = Every{};
  EXPECT_THAT(differences(before, after), IsEmpty());
  after.train.seed = 5;
  after.schedule.warmup = {7, 0};
  after.data.train[0].limit = 9;
  EXPECT_THAT(differences(before, after),
              ElementsAre("data.train[0].limit: \"all\" -> 9", "train.seed: 0 -> 5",
                          "schedule.warmup: 0.0 -> \"7 steps\""));
}

TEST(Differences, SayWhatAResumedRunMayChange) {
  const RunConfig before = with_data();
  RunConfig after = before;
  after.data.max_answer_tokens = 5;
  after.train.epochs = 2;
  after.train.on_non_finite = OnNonFinite::Skip;
  after.train.max_skipped = 5;
  after.optim.lr = 1;
  after.precision.master = MasterFormat::Split;
  after.precision.param_dtype = ParamDtype::BFloat16;
  std::vector<std::pair<std::string, OnResume>> found;
  for (const Difference& each : deciding_differences(before, after)) {
    found.emplace_back(each.key, each.on_resume);
  }
  EXPECT_THAT(found, ElementsAre(std::pair("data.max_answer_tokens", OnResume::Fixed),
                                 std::pair("train.epochs", OnResume::Numbers),
                                 std::pair("train.on_non_finite", OnResume::Numbers),
                                 std::pair("optim.lr", OnResume::Numbers),
                                 std::pair("precision.param_dtype", OnResume::Numbers),
                                 std::pair("precision.master", OnResume::Numbers)));
}

TEST(Differences, LeaveOutWhatHasNoEffect) {
  RunConfig before = with_data();
  RunConfig after = before;
  after.optim.weight_decay_on_norms_and_biases = true;  // of a decay of 0
  after.data.train[0].limit_order = LimitOrder::File;   // of no limit
  EXPECT_THAT(differences(before, after), IsEmpty());
  before.optim.weight_decay = 0.1;
  after.optim.weight_decay = 0.1;
  EXPECT_THAT(differences(before, after),
              ElementsAre("optim.weight_decay_on_norms_and_biases: false -> true"));
}

TEST(SettingsWithoutEffect, AreNamedWithTheReason) {
  RunConfig config = with_data();
  EXPECT_THAT(settings_without_effect(config, 2), IsEmpty());
  config.optim.weight_decay_on_norms_and_biases = true;
  config.data.train[0].limit_order = LimitOrder::File;
  config.parallel.strategy = Strategy::NoShard;
  config.parallel.prefetch_depth = 3;
  config.eval.batch = 2;
  EXPECT_THAT(
      settings_without_effect(config, 2),
      ElementsAre(
          "data.train[0].limit_order = \"file\" has no effect: all questions are used",
          "optim.weight_decay_on_norms_and_biases = true has no effect: optim.weight_decay is 0",
          "parallel.prefetch_depth = 3 has no effect: parallel.strategy gathers nothing",
          "eval.batch = 2 has no effect: there is no data.eval"));
}

TEST(SettingsWithoutEffect, AreThoseOfGpusOnTheCpu) {
  RunConfig config = with_data();
  config.device.attention = AttentionKernel::Flash;
  config.train.deterministic = true;
  EXPECT_THAT(settings_without_effect(config, 1), IsEmpty());
  config.device.kind = DeviceKind::Cpu;
  EXPECT_THAT(settings_without_effect(config, 1),
              ElementsAre("train.deterministic = true has no effect: device.kind is cpu",
                          "device.attention = \"flash\" has no effect: device.kind is cpu"));
}

TEST(SettingsWithoutEffect, AreThoseOfSeveralRanksOnOne) {
  RunConfig config = with_data();
  config.parallel.strategy = Strategy::ShardGradOp;
  EXPECT_THAT(settings_without_effect(config, 1),
              ElementsAre("parallel.strategy = \"shard_grad_op\" has no effect: there is one "
                          "rank"));
  EXPECT_THAT(settings_without_effect(config, 2), IsEmpty());
  config.parallel.strategy = Strategy::NoShard;
  EXPECT_THAT(settings_without_effect(config, 1), IsEmpty()) << "one rank does just that";
}

TEST(Differences, KnowItemsThatCameAndWent) {
  RunConfig two = with_data();
  two.data.train.push_back({.path = "u", .weight = 2});
  EXPECT_THAT(differences(with_data(), two),
              ElementsAre("data.train[1].format: absent -> \"auto\"",
                          "data.train[1].limit: absent -> \"all\"",
                          "data.train[1].columns.prompt: absent -> \"prompt\"",
                          "data.train[1].columns.completion: absent -> \"completion\"",
                          "data.train[1].columns.messages: absent -> \"messages\"",
                          "data.train[1].columns.text: absent -> \"text\"",
                          "data.train[1].weight: absent -> 2.0"));
  EXPECT_THAT(
      differences(two, with_data()),
      ElementsAre("data.train[1].columns.completion: \"completion\" -> absent",
                  "data.train[1].columns.messages: \"messages\" -> absent",
                  "data.train[1].columns.prompt: \"prompt\" -> absent",
                  "data.train[1].columns.text: \"text\" -> absent",
                  "data.train[1].format: \"auto\" -> absent",
                  "data.train[1].limit: \"all\" -> absent", "data.train[1].weight: 2.0 -> absent"));
}

TEST(SettingsInCommon, LeaveOutWhatBelongsToAHost) {
  RunConfig one = with_data();
  RunConfig other = one;
  other.model.path = "there";
  other.data.train[0].path = "there.json";
  other.data.cache = "none";
  other.device.threads = 1;
  other.log.sink[0].path = "there.jsonl";
  EXPECT_EQ(settings_in_common(one), settings_in_common(other));
  other.optim.lr = 1;
  EXPECT_NE(settings_in_common(one), settings_in_common(other));
  EXPECT_THAT(settings_in_common(one),
              ::testing::Contains(std::pair<std::string, std::string>("optim.lr", "2e-05")));
}

// As version 0.1.0 printed it.
constexpr const char* kOld = R"([model]
path = "m"
init = "weights"

[data]
train = "t"
eval = "e"
max_length = 0
max_answer_tokens = 32
train_limit = 250
eval_limit = 0
cache = ""

[train]
output = "o"
epochs = 1
max_steps = 0
global_batch = 8
micro_batch = 1
seed = 0
threads = 1024

[optim]
lr = 2e-05
betas = [0.9, 0.999]
eps = 1e-08
weight_decay = 0.01
schedule = "linear"
warmup_steps = 3
min_lr_ratio = 0.0
clip_grad_norm = 1.0

[parallel]
strategy = "full_shard"
shard_size = 0
reshard_after_forward_size = 0
prefetch_depth = 1

[memory]
activation_checkpointing = false
moments_dtype = "float32"
loss_chunk_tokens = 512

[precision]
param_dtype = "float32"
reduce_dtype = "float32"

[checkpoint]
every_steps = 0
keep = 2
resume = "auto"
at_end = true

[log]
every_steps = 1
jsonl = ""

[eval]
every_steps = 0
at_end = true
generate = false
batch = 8
)";

TEST(FromToml, ReadsWhatAnEarlierVersionPrinted) {
  const RunConfig config = from_toml(kOld);
  EXPECT_EQ(config.data.train, (std::vector<DataSet>{{.path = "t",
                                                      .format = DataFormat::Squad,
                                                      .limit = 250,
                                                      .limit_order = LimitOrder::File}}));
  EXPECT_EQ(config.schedule.warmup, (Warmup{3, 0}));
  EXPECT_EQ(config.optim.clip_grad_norm, 1.0);
  EXPECT_EQ(config.checkpoint.every, Every{});
  EXPECT_EQ(config.precision.param_dtype, ParamDtype::Float32);
}

TEST(FromToml, GivesKeysThatWereNotThereTheirOldMeaning) {
  EXPECT_TRUE(from_toml(kOld).optim.weight_decay_on_norms_and_biases);
  EXPECT_EQ(from_toml("data.train = 't'").data.train[0].limit_order, LimitOrder::File);
  EXPECT_EQ(from_toml("").schedule.kind, Schedule::Linear);
}

TEST(FromToml, ReadsWhatIsPrinted) {
  const RunConfig config = with_data();
  EXPECT_EQ(from_toml(to_toml(config)), config);
}

TEST(FromToml, RefusesOtherText) {
  for (const char* text : {"[optim", "optim.lr = 'x'", "telemetry.on = true"}) {
    try {
      static_cast<void>(from_toml(text));
      ADD_FAILURE() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("the configuration cannot be read:\n  config:1"));
    }
  }
}

}  // namespace
}  // namespace llm::config
