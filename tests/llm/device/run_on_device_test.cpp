// The trainer on a device that is not the host: the same run, near the same numbers.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/config/run_config.h"
#include "llm/train/graphed_micro_batches.h"
#include "llm/train/train_step.h"
#include "llm/train/trainer.h"
#include "ops/with_backend.h"
#include "tests/fake_device/ranks.h"
#include "tests/fake_device/streams.h"
#include "tests/llm/model/small_bloom.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace llm::train {
namespace {

using nlohmann::json;

const std::filesystem::path kRecipe = SHERD_TEST_SOURCE_DIR "/recipes/stories260k-squad-32.toml";

// Four steps, and what the model then answers to four questions. In fp32 on any processor: "auto"
// is bf16 on some hosts.
config::RunConfig recipe(const std::filesystem::path& output) {
  config::RunConfig config = config::load(
      kRecipe, std::vector<std::string>{"--train.output=" + output.string(), "--train.max_steps=4",
                                        "--train.global_batch=4", "--train.micro_batch=1",
                                        "--precision.param_dtype=float32"});
  config.data.eval.front().limit = 4;
  return config;
}

// Asked to stop before step `steps` + 1.
RunHooks hooks_for(int steps) {
  RunHooks hooks;
  hooks.output.say = [](const std::string&) {};
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
void expect_near(const std::filesystem::path& host, const std::filesystem::path& device,
                 double tolerance = 1e-4) {
  const auto expected = records(host);
  const auto actual = records(device);
  ASSERT_EQ(expected.size(), actual.size());
  int compared = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    for (const char* const key : {"loss", "grad_norm", "eval_loss"}) {
      if (expected[i].contains(key) && expected[i].at(key).is_number()) {
        const double value = expected[i].at(key).get<double>();
        EXPECT_NEAR(actual[i].at(key).get<double>(), value, tolerance * value) << expected[i];
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

// The library of kernels for GPUs does not serve this device.
TEST_P(RunOnDevice, SaysOnceWhichKernelsCompute) {
  std::atomic<int> said{0};
  sherd::fake::run_ranks_on_devices(GetParam(), [&](sherd::World world) {
    RunHooks hooks = hooks_for(3);
    hooks.output.say = [&](const std::string& line) { said += line == "kernels: plain" ? 1 : 0; };
    static_cast<void>(run(recipe(output("device")), std::move(world), hooks));
  });
  EXPECT_EQ(said, 1);
}

TEST_P(RunOnDevice, TakesTurnsWithTheHost) {
  on_host(recipe(output("host")));
  on_host(recipe(output("both")), 2);
  on_devices(recipe(output("both")));
  expect_near(output("host"), output("both"));
}

// The host launches a step and reads the figures of the one before, for whose end it waits: no
// other wait, however the step is cut.
TEST_P(RunOnDevice, WaitsForTheStepBeforeAndForNothingElse) {
  const auto waits_of = [&](int steps, int micro_batches, config::ParamDtype dtype) {
    config::RunConfig config = recipe(output("run"));
    config.precision.param_dtype = dtype;
    config.train.max_steps = steps;
    config.train.global_batch = 2 * micro_batches;
    config.eval.at_end = false;
    config.checkpoint.at_end = false;
    config.checkpoint.resume = "overwrite";
    static_cast<void>(sherd::fake::take_host_waits(0));
    on_devices(config);
    std::map<std::string, int> by_reason;
    for (const std::string& why : sherd::fake::take_host_waits(0)) {
      ++by_reason[why];
    }
    return by_reason;
  };
  for (const auto& [micro_batches, dtype] :
       {std::pair(3, config::ParamDtype::Float32), std::pair(1, config::ParamDtype::Float16)}) {
    std::map<std::string, int> more = waits_of(5, micro_batches, dtype);
    std::map<std::string, int> fewer = waits_of(3, micro_batches, dtype);
    // For the end of it, for its figures, and for whether it was left out.
    EXPECT_EQ(more["synchronize an event"] - fewer["synchronize an event"], 2 * 3);
    more.erase("synchronize an event");
    fewer.erase("synchronize an event");
    EXPECT_EQ(more, fewer);  // of the start and the end of a run
  }
}

// As on the host, though the next step was launched before anyone knew: what is saved then is of
// the step before, and the log ends with it.
TEST_P(RunOnDevice, FailsAtAStepThatIsNotFinite) {
  const auto failing = [&](const char* name) {
    config::RunConfig config = recipe(output(name));
    config.train.max_steps = 8;
    config.optim.lr = 1e30;
    config.eval.at_end = false;
    return config;
  };
  std::vector<std::string> messages;
  for (const bool device : {false, true}) {
    const config::RunConfig config = failing(device ? "device" : "host");
    try {
      device ? on_devices(config) : on_host(config);
      ADD_FAILURE() << "trained with parameters that are not finite";
    } catch (const sherd::Error& error) {
      EXPECT_EQ(error.code(), sherd::ExitCode::NonFinite);
      messages.emplace_back(error.what());
    }
  }
  EXPECT_NE(messages.front().find("of step 2 is"), std::string::npos) << messages.front();
  EXPECT_NE(messages.front().find("Nothing was updated."), std::string::npos) << messages.front();
  EXPECT_EQ(messages.front(), messages.back());
  EXPECT_EQ(records(output("host")).size(), records(output("device")).size());
}

// A BLOOM of which the head alone is trained, and a token that it never predicts: a label of it
// has an infinite loss, and gradients like any other.
constexpr std::int64_t kNeverPredicted = 5;

model::CausalLm head_that_never_predicts_one() {
  model::CausalLm bloom = model::make_bloom(model::small_bloom_config(/*tied=*/false));
  for (const auto& parameter : bloom->named_parameters()) {
    const at::Tensor values = parameter.value().detach();
    parameter.value().requires_grad_(parameter.key() == "lm_head.weight");
    if (parameter.key() == "transformer.ln_f.weight") {
      values.zero_();
    } else if (parameter.key() == "transformer.ln_f.bias") {
      values.fill_(1);
    } else if (parameter.key() == "lm_head.weight") {
      values[kNeverPredicted].fill_(-INFINITY);
    }
  }
  return bloom;
}

std::vector<at::Tensor> values_of(const sherd::ShardedModule& model) {
  std::vector<at::Tensor> values;
  for (const sherd::ParameterShard& shard : model.parameter_shards()) {
    values.push_back(shard.value.cpu().clone());
  }
  return values;
}

void expect_equal(const std::vector<at::Tensor>& before, const std::vector<at::Tensor>& after) {
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(before[i], after[i])) << "parameter " << i;
  }
}

// Neither the step with such a loss on one rank nor the one launched behind it updates anything.
TEST_P(RunOnDevice, UpdatesNothingByAnInfiniteLossWithFiniteGradients) {
  const auto batch = [](std::int64_t label) {
    return std::vector<inputs::Batch>{
        {{1, 2, 3}, {inputs::kUnsupervised, inputs::kUnsupervised, label}, {0, 3}, 1}};
  };
  for (const auto& [dtype, has_graphs] :
       {std::pair{at::kFloat, false}, {at::kHalf, false}, {at::kFloat, true}, {at::kHalf, true}}) {
    sherd::fake::run_ranks_on_devices(GetParam(), [&, dtype = dtype, has_graphs = has_graphs](
                                                      const sherd::World& world) {
      auto model = sherd::fully_shard(head_that_never_predicts_one(), sherd::Mesh::shard(world),
                                      {.precision = {.param_dtype = dtype}});
      const sherd::fake::StreamsEndFirst streams_end_first(world);
      sherd::AdamW optimizer(model, {.lr = 1e-2});
      sherd::GradScaler scaler(model, {.init_scale = 256});
      sherd::GradScaler* const scales = dtype == at::kHalf ? &scaler : nullptr;
      std::optional<GraphedMicroBatches> graphs;
      if (has_graphs) {
        graphs.emplace(model, scales);
      }
      const auto launch = [&](std::int64_t number, std::int64_t label, const at::Tensor& left_out) {
        StepPlan plan{.number = number, .clip_grad_norm = 1.0, .left_out = left_out};
        plan.graphs = graphs ? &*graphs : nullptr;
        return launch_step(model, optimizer, scales, batch(label), plan);
      };
      const bool is_last = world.rank() == world.size() - 1;
      const int good_steps = has_graphs ? 4 : 1;
      for (int step = 0; step < good_steps; ++step) {
        EXPECT_TRUE(std::isfinite(launch(1, 3, {}).read(model.world()).loss));
      }
      const std::vector<at::Tensor> before = values_of(model);
      LaunchedStep infinite = launch(2, is_last ? kNeverPredicted : 3, {});
      const LaunchedStep behind = launch(3, 3, infinite.left_out());
      sherd::test::expect_error([&] { static_cast<void>(infinite.read(model.world())); },
                                sherd::ExitCode::NonFinite,
                                {"the loss of step 2 is inf. Nothing was updated."});
      SCOPED_TRACE(c10::toString(dtype));
      expect_equal(before, values_of(model));
      EXPECT_EQ(optimizer.steps_done(), good_steps);
      EXPECT_TRUE(!has_graphs || graphs->counts().launches >= 3);
    });
  }
  EXPECT_EQ(sherd::fake::take_faults(), std::vector<std::string>{});
}

// One rank's loss is infinite: under StepPlan::skips_non_finite the step leaves no trace, and the
// one that was launched behind it does what it would have done without it.
TEST_P(RunOnDevice, SkipsAStepWithALossThatIsNotFinite) {
  const auto train = [&](const sherd::World& world, bool is_poisoned) {
    auto model = sherd::fully_shard(head_that_never_predicts_one(), sherd::Mesh::shard(world));
    const sherd::fake::StreamsEndFirst streams_end_first(world);
    sherd::AdamW optimizer(model, {.lr = 1e-2});
    const bool is_last = world.rank() == world.size() - 1;
    const auto launch = [&](std::int64_t number, std::int64_t label) {
      const std::vector<inputs::Batch> batch = {
          {{1, 2, 3}, {inputs::kUnsupervised, inputs::kUnsupervised, label}, {0, 3}, 1}};
      return launch_step(model, optimizer, nullptr, batch,
                         {.number = number, .clip_grad_norm = 1.0, .skips_non_finite = true});
    };
    EXPECT_EQ(launch(1, 3).read(model.world()).skipped, "");
    if (is_poisoned) {
      LaunchedStep infinite = launch(2, is_last ? kNeverPredicted : 3);
      LaunchedStep behind = launch(3, 3);
      EXPECT_EQ(infinite.read(model.world()).skipped, "the loss");
      EXPECT_EQ(behind.read(model.world()).skipped, "");
    } else {
      EXPECT_EQ(launch(3, 3).read(model.world()).skipped, "");
    }
    EXPECT_EQ(optimizer.steps_done(), 2);
    return values_of(model);
  };
  sherd::fake::run_ranks_on_devices(GetParam(), [&](const sherd::World& world) {
    expect_equal(train(world, true), train(world, false));
  });
  EXPECT_EQ(sherd::fake::take_faults(), std::vector<std::string>{});
}

// Nor does a step with gradients that no scale helps, or the one launched behind it.
TEST_P(RunOnDevice, UpdatesNothingByGradientsThatNoScaleHelps) {
  const std::vector<inputs::Batch> batch = {
      {{1, 2, 3}, {inputs::kUnsupervised, inputs::kUnsupervised, 3}, {0, 3}, 1}};
  const auto train = [&](const sherd::World& world) {
    auto model = sherd::fully_shard(head_that_never_predicts_one(), sherd::Mesh::shard(world),
                                    {.precision = {.param_dtype = at::kHalf}});
    const sherd::fake::StreamsEndFirst streams_end_first(world);
    bool overflows = false;
    model.set_all_reduce_hook([&](const std::string& /*unit*/, const at::Tensor& shard) {
      if (overflows) {
        shard.fill_(INFINITY);
      }
    });
    sherd::AdamW optimizer(model, {.lr = 1e-2});
    sherd::GradScaler scaler(model, {.init_scale = 1e-4});
    const auto launch = [&](std::int64_t number, const at::Tensor& left_out) {
      return launch_step(model, optimizer, &scaler, batch,
                         {.number = number, .clip_grad_norm = 1.0, .left_out = left_out});
    };
    static_cast<void>(launch(1, {}).read(model.world()));
    const std::vector<at::Tensor> before = values_of(model);
    overflows = true;
    sherd::test::expect_error(
        [&] {
          LaunchedStep hopeless = launch(2, {});
          overflows = false;
          const LaunchedStep behind = launch(3, hopeless.left_out());
          static_cast<void>(hopeless.read(model.world()));
        },
        sherd::ExitCode::NonFinite,
        {"the gradients of step 2 are not finite in float16 at any scale of the loss. Nothing was "
         "updated."});
    expect_equal(before, values_of(model));
    EXPECT_EQ(optimizer.steps_done(), 1);
  };
  sherd::test::run_ranks(GetParam(), train);
  sherd::fake::run_ranks_on_devices(GetParam(), train);
  EXPECT_EQ(sherd::fake::take_faults(), std::vector<std::string>{});
}

// The first scale is too large for these gradients: steps are left out, and what follows is as if
// they had not been.
TEST_P(RunOnDevice, LeavesOutWhatOverflowsInFp16) {
  const auto with = [&](const char* name) {
    config::RunConfig config = recipe(output(name));
    config.train.max_steps = 8;
    config.precision.param_dtype = config::ParamDtype::Float16;
    config.eval.at_end = false;
    return config;
  };
  on_host(with("host"));
  on_devices(with("device"));
  expect_near(output("host"), output("device"), 2e-2);
  const std::vector<json> steps = records(output("device"));
  const auto left_out = std::count_if(steps.begin(), steps.end(), [](const json& step) {
    return step.at("grad_norm").get<double>() == 0;
  });
  EXPECT_GT(left_out, 0);
  EXPECT_LT(left_out, 8);
}

// Said by a back end that chooses, as that of GPUs does.
TEST(Run, SaysOnceWhichKernelComputesAttention) {
  const sherd::test::TempFolder folder;
  config::RunConfig config = recipe(folder.path() / "run");
  config.train.max_steps = 2;
  config.eval.at_end = false;
  std::vector<std::string> said;
  sherd::test::run_ranks(1, [&](sherd::World world) {
    sherd::ops::Backend backend = sherd::ops::backend_of(at::empty({0}));
    backend.attention_choices = [] {
      return std::vector<sherd::ops::AttentionChoice>{
          {.kernel = sherd::ops::AttentionKernel::Flash,
           .heads = 32,
           .key_heads = 8,
           .head_size = 128,
           .dtype = c10::kBFloat16,
           .why = "not cuDNN: the documents of a batch differ in length"}};
    };
    const sherd::ops::WithBackend chosen(backend);
    RunHooks hooks = hooks_for(100);
    hooks.output.say = [&](const std::string& line) { said.push_back(line); };
    static_cast<void>(run(config, std::move(world), hooks));
  });
  EXPECT_EQ(std::count(said.begin(), said.end(),
                       "attention: flash attention (32 heads, 8 key heads of 128, bfloat16, "
                       "documents of different lengths); not cuDNN: the documents of a batch "
                       "differ in length"),
            1);
}

class OneRunOnDevice : public RunOnDevice {};

// The same sample in each step: most micro-batches are one launch.
TEST_P(OneRunOnDevice, HasTheSameNumbersByGraphs) {
  const auto launches_of = [&](bool graphs) {
    config::RunConfig config = recipe(output(graphs ? "graphs" : "none"));
    config.data.train.front().limit = GetParam();
    config.train.global_batch = GetParam();
    config.train.max_steps = 12;
    config.device.cuda_graphs = graphs;
    config.eval.at_end = false;
    config.checkpoint.at_end = false;
    static_cast<void>(sherd::fake::take_launches(0));
    on_devices(config);
    return sherd::fake::take_launches(0);
  };
  const int without = launches_of(false);
  EXPECT_LT(launches_of(true), without * 3 / 4);
  expect_near(output("none"), output("graphs"), 0);
}

TEST_P(OneRunOnDevice, HasNoGraphsOnTheHost) {
  config::RunConfig config = recipe(output("host"));
  config.device.cuda_graphs = true;
  sherd::test::expect_error([&] { on_host(config); }, sherd::ExitCode::Usage,
                            {"device.cuda_graphs is given", "computes on the CPU", "leave it out"});
}

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
         "LibTorch held",
         "These settings are planned to take less, fastest first:", "--train.micro_batch 1"});
    sherd::fake::set_memory_limit(0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneRunOnDevice, testing::Values(1));
INSTANTIATE_TEST_SUITE_P(Ranks, RunOnDevice, testing::Values(1, 2));

}  // namespace
}  // namespace llm::train
