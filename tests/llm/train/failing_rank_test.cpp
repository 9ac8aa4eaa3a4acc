// What fails on one rank of a run ends all ranks with its reason.

#include <atomic>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/setup/agreement.h"
#include "llm/train/trainer.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace llm::train {
namespace {

using sherd::Error;
using sherd::ExitCode;

config::RunConfig tiny_run(const sherd::test::TempFolder& folder) {
  const std::string input = SHERD_TEST_SOURCE_DIR "/tests/data/cases/ranks-with-another-end-token/";
  config::RunConfig config;
  config.model.path = input + "a";
  config.data.train = {{.path = input + "data.jsonl"}};
  config.data.cache = "none";
  config.train.output = (folder.path() / "run").string();
  config.train.global_batch = 4;
  config.train.max_steps = 6;
  config.device.kind = config::DeviceKind::Cpu;
  return config;
}

RunHooks quiet() {
  RunHooks hooks;
  hooks.output.say = [](const std::string& /*line*/) {};
  hooks.stop_requested = [] { return false; };
  return hooks;
}

[[noreturn]] void fail() {
  throw Error(ExitCode::Unavailable, "the lamp is out");
}

// Two ranks run with hooks that `breaks` changes on one of them; both must end with its reason,
// which is told once.
void expect_one_reason(
    const std::function<void(RunHooks& hooks, int rank)>& breaks,
    const std::function<void(config::RunConfig&)>& change = [](auto&) {}) {
  const sherd::test::TempFolder folder;
  config::RunConfig config = tiny_run(folder);
  change(config);
  std::atomic<int> told = 0;
  sherd::test::run_ranks(2, [&](sherd::World world) {
    RunHooks hooks = quiet();
    breaks(hooks, world.rank());
    try {
      run(config, world, hooks);
      ADD_FAILURE() << "rank " << world.rank() << " has trained on";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Unavailable) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr("the lamp is out"));
      told += dynamic_cast<const setup::ReportedElsewhere*>(&error) == nullptr ? 1 : 0;
    }
  });
  EXPECT_EQ(told, 1);
}

TEST(FailingRank, EndsAllWhereItIsAskedToStop) {
  std::atomic<int> asked = 0;
  expect_one_reason([&](RunHooks& hooks, int rank) {
    if (rank == 1) {
      hooks.stop_requested = [&]() -> bool { return ++asked == 3 ? fail(), true : false; };
    }
  });
}

TEST(FailingRank, EndsAllInAnEvaluation) {
  std::atomic<int> asked = 0;
  expect_one_reason(
      [&](RunHooks& hooks, int rank) {
        if (rank == 1) {
          hooks.stop_requested = [&]() -> bool { return ++asked == 4 ? fail(), true : false; };
        }
      },
      [](config::RunConfig& config) {
        config.data.eval = config.data.train;
        config.eval.every = config::Every::steps(2);
        config.eval.generate = false;
        config.eval.batch = 1;
      });
}

TEST(FailingRank, EndsAllBeforeTheFirstStep) {
  expect_one_reason([](RunHooks& hooks, int rank) {
    if (rank == 0) {
      hooks.output.say = [](const std::string& line) {
        if (line.find("first samples") != std::string::npos) {
          fail();
        }
      };
    }
  });
}

TEST(FailingRank, EndsAllWhereItSaysSomething) {
  expect_one_reason([](RunHooks& hooks, int rank) {
    if (rank == 0) {
      hooks.output.say = [](const std::string& line) {
        if (line.find("step 2/") != std::string::npos) {
          fail();
        }
      };
    }
  });
}

// Rank 0 alone finds that its folder is gone, when it records the step.
TEST(FailingRank, EndsAllWhereItsLogCannotBeWritten) {
  const sherd::test::TempFolder folder;
  const config::RunConfig config = tiny_run(folder);
  std::atomic<int> told = 0;
  sherd::test::run_ranks(2, [&](sherd::World world) {
    RunHooks hooks = quiet();
    hooks.stop_requested = [&] {  // before the first step
      if (world.rank() == 0) {
        std::filesystem::remove_all(config.train.output);
      }
      return false;
    };
    try {
      run(config, world, hooks);
      ADD_FAILURE() << "rank " << world.rank() << " has trained on";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::StorageIo) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr("was removed or replaced"));
      told += dynamic_cast<const setup::ReportedElsewhere*>(&error) == nullptr ? 1 : 0;
    }
  });
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace llm::train
