#include "gmock/gmock.h"
#include "tests/llm/config/config_files.h"

namespace llm::config::testing {
namespace {

using Load = ConfigFiles;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(Load, ReadsSections) {
  const RunConfig config = load(write(R"(
# a comment
[model]
path = "stories"
ignore_fields = ["a", 'b']
[data]
packing = "first_fit"
train = "train.json"
eval = "dev.json"
[train]
output = "runs/a"
epochs = 40
[optim]
lr = 3e-3
betas = [0.9, 0.95]
weight_decay = 0     # an integer where a number is wanted
[schedule]
kind = "constant"
[eval]
generate = true
)"),
                                {});
  EXPECT_EQ(config.model.path, "stories");
  EXPECT_THAT(config.model.ignore_fields, ElementsAre("a", "b"));
  EXPECT_EQ(config.data.packing, Packing::FirstFit);
  EXPECT_EQ(config.train.epochs, 40);
  EXPECT_EQ(config.train.global_batch, 8);
  EXPECT_THAT(config.optim.betas, ElementsAre(0.9, 0.95));
  EXPECT_EQ(config.optim.weight_decay, 0.0);
  EXPECT_EQ(config.schedule.kind, Schedule::Constant);
  EXPECT_TRUE(config.eval.generate);
}

TEST_F(Load, TakesDotsTablesAndWindowsLinesAlike) {
  const RunConfig config =
      load(write(kRequired + "optim = { lr = 0.5, eps = 1e-6 }\r\n[eval]\r\nbatch = 4\r\n"), {});
  EXPECT_EQ(config.optim.lr, 0.5);
  EXPECT_EQ(config.optim.eps, 1e-6);
  EXPECT_EQ(config.eval.batch, 4);
}

TEST_F(Load, LetsAFlagWin) {
  const auto file = write(kRequired + "train.epochs = 3\ntrain.seed = 5\n");
  const std::vector<std::string> flags = {"--train.epochs", "4"};
  const RunConfig config = load(file, flags);
  EXPECT_EQ(config.train.epochs, 4);
  EXPECT_EQ(config.train.seed, 5);
}

TEST_F(Load, NeedsNoFile) {
  EXPECT_EQ(load(std::nullopt, kRequiredFlags).data.train.front().path, "t");
}

TEST_F(Load, ReadsBackWhatIsPrinted) {
  RunConfig config;
  config.model.path = "a \"quoted\" \\ path\twith 'all', ü and\nlines";
  config.model.ignore_fields = {"a", "b c", "d\"e"};
  config.data = {512,
                 16,
                 "c",
                 {std::int64_t{64} << 20},
                 Packing::FirstFit,
                 {{"t", DataFormat::Squad, 1000, LimitOrder::File, 1},
                  {"u", DataFormat::Squad, std::nullopt, LimitOrder::Random, 0.25}},
                 {{"e", DataFormat::Squad, 200, LimitOrder::Random, 1}}};
  config.train = {"o", Objective::Supervised, 3, 17, 12, 4, 9007199254740993};
  config.device = {DeviceKind::Cpu, 1};
  config.optim = {OptimKind::AdamW, 1.0 / 3.0, {0.1, 0.30000000000000004}, 1e-300, 5.0, true,
                  std::nullopt};
  config.schedule = {Schedule::Cosine, {7, 0}, 0.1};
  config.parallel = {Strategy::HybridShard, 4, 2, 0, std::chrono::milliseconds(1500)};
  config.precision = {ParamDtype::BFloat16, ReduceDtype::Float32, MomentsDtype::BFloat16,
                      MasterFormat::Split, Scaler::None};
  config.memory = {true, 100};
  config.checkpoint = {Every::steps(5), false, 3, true, ExportOf::Best, "never"};
  config.eval = {true, Every::time(std::chrono::minutes(90)), false, true, false, 2, BestBy::Em, 4,
                 0.5};
  config.log = {10,         "n",      "p",
                {"a", "b"}, {10, 12}, {{SinkKind::Jsonl, "l.jsonl"}, {SinkKind::Wandb, "", true}}};
  EXPECT_EQ(load(write(to_toml(config)), {}), config) << to_toml(config);

  config.schedule.warmup = {std::nullopt, 0.05};
  config.checkpoint.every = Every{};
  EXPECT_EQ(load(write(to_toml(config)), {}), config) << to_toml(config);

  const RunConfig plain = load(std::nullopt, kRequiredFlags);
  EXPECT_EQ(load(write(to_toml(plain)), {}), plain) << to_toml(plain);
}

TEST_F(Load, NamesTheOutputAfterTheFile) {
  const auto file = write("model.path = 'm'\ndata.train = 't'\n");
  EXPECT_EQ(load(file, {}).train.output, "runs/run");
  const std::vector<std::string> flags = {"--train.output", "o"};
  EXPECT_EQ(load(file, flags).train.output, "o");
  EXPECT_THAT(faults(std::nullopt, {"--model.path=m", "--data.train=t"}),
              HasSubstr("train.output is missing"));
}

TEST_F(Load, RefusesMoreThreadsThanTheMachineHasOnWhichItIsToRun) {
  const auto file = write(kRequired);
  const std::vector<std::string> flags = {"--train.threads", "3"};
  EXPECT_EQ(load(file, flags, {}, 3).device.threads, 3);
  EXPECT_EQ(load(file, flags).device.threads, 3);
  try {
    (void)load(file, flags, {}, 2);
    FAIL() << "taken";
  } catch (const sherd::Error& error) {
    EXPECT_EQ(error.code(), sherd::ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr("--train.threads: device.threads = 3 is more than the "
                                        "processors that a rank may use here: 2"));
  }
}

}  // namespace
}  // namespace llm::config::testing
