// The trainer on a device that is not the host: the same run, near the same numbers.

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/config/run_config.h"
#include "llm/train/trainer.h"
#include "tests/fake_device/ranks.h"
#include "tests/fake_device/streams.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace llm::train {
namespace {

using nlohmann::json;

const std::filesystem::path kRecipe = SHERD_TEST_SOURCE_DIR "/recipes/stories260k-squad-32.toml";

// Four steps, and what the model then answers to four questions.
config::RunConfig recipe(const std::filesystem::path& output) {
  config::RunConfig config = config::load(
      kRecipe, std::vector<std::string>{"--train.output=" + output.string(), "--train.max_steps=4",
                                        "--train.global_batch=4", "--train.micro_batch=1"});
  config.data.eval.front().limit = 4;
  return config;
}

// Asked to stop before step `steps` + 1.
RunHooks hooks_for(int steps) {
  RunHooks hooks;
  hooks.say = [](const std::string&) {};
  hooks.stop_requested = [left = std::make_shared<int>(steps)] { return (*left)-- <= 0; };
  return hooks;
}

// Of steps and evaluations.
std::vector<json> records(const std::filesystem::path& output) {
  std::vector<json> found;
  std::ifstream file(output / "log.jsonl");
  for (std::string line; std::getline(file, line);) {
    if (json record = json::parse(line); record.contains("loss") || record.contains("eval_loss")) {
      found.push_back(std::move(record));
    }
  }
  return found;
}

// Losses, norms and scores of two runs, record by record.
void expect_near(const std::filesystem::path& host, const std::filesystem::path& device) {
  const auto expected = records(host);
  const auto actual = records(device);
  ASSERT_EQ(expected.size(), actual.size());
  int compared = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    for (const char* const key : {"loss", "grad_norm", "eval_loss"}) {
      if (expected[i].contains(key) && expected[i].at(key).is_number()) {
        const double value = expected[i].at(key).get<double>();
        EXPECT_NEAR(actual[i].at(key).get<double>(), value, 1e-4 * value) << expected[i];
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 8);
}

class RunOnDevice : public testing::TestWithParam<int> {
 protected:
  const sherd::test::TempFolder folder;
  std::filesystem::path output(const char* name) const { return folder.path() / name; }

  void on_host(const config::RunConfig& config, int steps = 100) const {
    sherd::test::run_ranks(GetParam(), [&](sherd::World world) {
      static_cast<void>(run(config, std::move(world), hooks_for(steps)));
    });
  }
  void on_devices(const config::RunConfig& config, int steps = 100) const {
    sherd::fake::run_ranks_on_devices(GetParam(), [&](sherd::World world) {
      static_cast<void>(run(config, std::move(world), hooks_for(steps)));
    });
    EXPECT_EQ(sherd::fake::take_faults(), std::vector<std::string>{});
  }
};

TEST_P(RunOnDevice, HasTheNumbersOfTheHost) {
  on_host(recipe(output("host")));
  on_devices(recipe(output("device")));
  expect_near(output("host"), output("device"));
}

TEST_P(RunOnDevice, TakesTurnsWithTheHost) {
  on_host(recipe(output("host")));
  on_host(recipe(output("both")), 2);
  on_devices(recipe(output("both")));
  expect_near(output("host"), output("both"));
}

// What a step asks of the device, each a wait of the host: the loss, and the norm of the gradients;
// of several ranks what the norm is agreed on with.
TEST_P(RunOnDevice, WaitsTwiceAStepHoweverItIsCut) {
  const auto waits_of = [&](int steps, int micro_batches) {
    config::RunConfig config = recipe(output("run"));
    config.train.max_steps = steps;
    config.train.global_batch = 2 * micro_batches;
    config.eval.at_end = false;
    config.checkpoint.at_end = false;
    config.checkpoint.resume = "overwrite";
    static_cast<void>(sherd::fake::take_host_waits(0));
    on_devices(config);
    return sherd::fake::take_host_waits(0);
  };
  const auto more = waits_of(5, 3);
  const auto fewer = waits_of(3, 3);
  const size_t a_step = GetParam() == 1 ? 2 : 4;
  EXPECT_EQ(more.size() - fewer.size(), 2 * a_step) << testing::PrintToString(more);
  EXPECT_EQ(waits_of(5, 1).size() - waits_of(3, 1).size(), 2 * a_step);
}

class OneRunOnDevice : public RunOnDevice {};

// While the model is made, and in the first step. (Over several ranks the launcher ends the
// others.)
TEST_P(OneRunOnDevice, SaysWhatWouldFitWhereMemoryEnds) {
  for (const std::size_t limit : {std::size_t{1} << 20, std::size_t{6} << 20}) {
    sherd::test::expect_error(
        [&] {
          sherd::fake::run_ranks_on_devices(GetParam(), [&](sherd::World world) {
            sherd::fake::set_memory_limit(limit);
            config::RunConfig config = recipe(output("run"));
            config.train.micro_batch = 4;
            config.checkpoint.resume = "overwrite";
            static_cast<void>(run(config, std::move(world), hooks_for(100)));
          });
        },
        sherd::ExitCode::OutOfMemory,
        {"out of memory on", "rank 0: ", "the fake device has no", "A rank was planned to take",
         "LibTorch held", "By plan these take less, the fastest first:", "--train.micro_batch 1"});
    sherd::fake::set_memory_limit(0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneRunOnDevice, testing::Values(1));
INSTANTIATE_TEST_SUITE_P(Ranks, RunOnDevice, testing::Values(1, 2));

}  // namespace
}  // namespace llm::train
