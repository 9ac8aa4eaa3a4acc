#include "gmock/gmock.h"
#include "tests/llm/config/config_files.h"

namespace llm::config::testing {
namespace {

using Load = ConfigFiles;
using ::testing::ElementsAre;

TEST_F(Load, ReadsSections) {
  const RunConfig config = load(write(R"(
# a comment
[model]
path = "stories"
[data]
train = "train.json"
eval = "dev.json"
[train]
output = "runs/a"
epochs = 40
[optim]
lr = 3e-3
betas = [0.9, 0.95]
weight_decay = 0     # an integer where a number is wanted
schedule = "constant"
[eval]
generate = true
)"),
                                {});
  EXPECT_EQ(config.model.path, "stories");
  EXPECT_EQ(config.train.epochs, 40);
  EXPECT_EQ(config.train.global_batch, 8);
  EXPECT_THAT(config.optim.betas, ElementsAre(0.9, 0.95));
  EXPECT_EQ(config.optim.weight_decay, 0.0);
  EXPECT_EQ(config.optim.schedule, Schedule::Constant);
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
  EXPECT_EQ(load(std::nullopt, kRequiredFlags).data.train, "t");
}

TEST_F(Load, ReadsBackWhatIsPrinted) {
  RunConfig config;
  config.model.path = "a \"quoted\" \\ path\twith 'all', ü and\nlines";
  config.data = {"t", "e", 512, 16, 1000, 200, "c"};
  config.train = {"o", 3, 17, 12, 4, 9007199254740993, 2};
  config.optim = {1.0 / 3.0, {0.1, 0.30000000000000004}, 1e-300, 5.0, Schedule::Cosine, 7, 0.1,
                  0.0};
  config.parallel = {Strategy::HybridShard, 4, 2, 0};
  config.memory = {true, MomentsDtype::BFloat16, 100};
  config.precision = {ParamDtype::BFloat16, ReduceDtype::Float32};
  config.checkpoint = {5, 3, "never", false};
  config.log = {10, "l.jsonl"};
  config.eval = {4, false, true, 2};
  EXPECT_EQ(load(write(to_toml(config)), {}), config) << to_toml(config);

  const RunConfig plain = load(std::nullopt, kRequiredFlags);
  EXPECT_EQ(load(write(to_toml(plain)), {}), plain) << to_toml(plain);
}

}  // namespace
}  // namespace llm::config::testing
