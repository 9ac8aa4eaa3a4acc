// Micro-batches as graphs of a device: the numbers of micro-batches without them, whatever the
// order of what may overlap in a graph, and no access that nothing orders.

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/memory.h"
#include "sherd/optim.h"
#include "sherd/sharded_module.h"
#include "step/step.h"
#include "tests/fake_device/scenario_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/meshes.h"
#include "tests/support/small_net.h"

namespace sherd::fake {
namespace {

using Inputs = std::vector<at::Tensor>;

constexpr int kStepsWithGraphs = 6;
constexpr int kFailingStep = 3;  // of scenarios that fail in it: graphs are there by then

struct Outcome {
  std::vector<at::Tensor> values;  // losses, and parameters as they lie on the rank
  MicroBatchGraphs::Counts counts;
  Communicator::Counts collectives;
  std::pair<size_t, size_t> waits_of_capture = {};  // of the first: where they begin and end
};

Inputs inputs_of(const World& world, int number) {
  const test::Example example = test::make_example(number * world.size() + world.rank());
  return {example.x, example.y};
}

Outcome train_by_micro_batches(const World& world, const Scenario& scenario, bool as_graphs) {
  auto model = fully_shard(test::make_net(), test::mesh_for(world, scenario.options.strategy),
                           scenario.options);
  const StreamsEndFirst streams_end_first(world);
  AdamW optimizer(model, {.lr = 1e-2});
  std::optional<MicroBatchGraphs> graphs;
  if (as_graphs) {
    graphs.emplace(model);
  }
  const auto micro_batch = [&](const Inputs& in) {
    const at::Tensor loss = test::sum_of_errors(model(in[0]), in[1]);
    loss.backward();
    return loss.detach();
  };
  const auto fails = [&](const Inputs& in) -> at::Tensor {
    static_cast<void>(model(in[0]));
    throw std::runtime_error("failed in forward");
  };
  Outcome outcome;
  for (int step = 0; step < kStepsWithGraphs; ++step) {
    if (scenario.fails_in_forward && step == kFailingStep) {
      const Inputs now = {at::ones({7, 5}).to(world.device())};
      EXPECT_THROW(static_cast<void>(as_graphs ? graphs->run(now, fails) : fails(now)),
                   std::runtime_error);
    }
    for (int micro = 0; micro < scenario.micro_batches; ++micro) {
      const bool is_last = micro == scenario.micro_batches - 1;
      model.set_requires_gradient_sync(is_last || scenario.sync_each);
      const Inputs now = inputs_of(world, step * scenario.micro_batches + micro);
      const size_t waits_before = waits(world.device().index()).size();
      outcome.values.push_back(
          as_graphs ? graphs->run(now, micro_batch).clone()
                    : micro_batch({now[0].to(world.device()), now[1].to(world.device())}));
      if (as_graphs && graphs->counts().captures == 1 && outcome.waits_of_capture.second == 0) {
        outcome.waits_of_capture = {waits_before, waits(world.device().index()).size()};
      }
    }
    if (scenario.evaluates) {  // its gathers follow a launch that no update has followed
      const at::NoGradGuard no_grad;
      const Inputs now = inputs_of(world, step);
      outcome.values.push_back(
          test::sum_of_errors(model(now[0].to(world.device())), now[1].to(world.device())));
    }
    static_cast<void>(clip_grad_norm(model, 1.0));
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const ParameterShard& shard : model.parameter_shards()) {
    outcome.values.push_back(shard.value.clone());
  }
  for (at::Tensor& value : outcome.values) {
    value = value.cpu();
  }
  outcome.collectives = model.counts();
  if (graphs) {
    outcome.counts = graphs->counts();
  }
  return outcome;
}

// By rank.
std::vector<Outcome> by_micro_batches(const Scenario& scenario, bool as_graphs, uint64_t seed) {
  set_seed(seed);
  std::vector<Outcome> outcomes(static_cast<size_t>(scenario.ranks));
  run_ranks_on_devices(scenario.ranks, [&](const World& world) {
    outcomes[static_cast<size_t>(world.rank())] =
        train_by_micro_batches(world, scenario, as_graphs);
  });
  return outcomes;
}

Scenario scenario_of(std::string name, int ranks, const std::function<void(Scenario&)>& change) {
  Scenario scenario{.name = std::move(name), .ranks = ranks};
  change(scenario);
  return scenario;
}

std::vector<Scenario> scenarios_with_graphs() {
  return {
      scenario_of("alone, accumulated", 1, [](Scenario& s) { s.micro_batches = 2; }),
      scenario_of("alone, bf16, checkpointed", 1,
                  [](Scenario& s) {
                    s.options.precision.param_dtype = at::kBFloat16;
                    s.options.units = unit_policy::every_unit({.checkpoint_activations = true});
                  }),
      scenario_of("evaluated, failing in a step", 2,
                  [](Scenario& s) {
                    s.evaluates = true;
                    s.fails_in_forward = true;
                  }),
      scenario_of("checkpointed, three ahead, masters on the host", 2,
                  [](Scenario& s) {
                    s.options.precision.param_dtype = at::kBFloat16;
                    s.options.precision.master = Master::Split;
                    s.options.units = unit_policy::every_unit({.checkpoint_activations = true});
                    s.options.prefetch_depth = 3;
                    s.options.backward_prefetch = BackwardPrefetch::Post;
                    s.options.offload.optimizer_on_host = true;
                  }),
      scenario_of("alone, accumulated, masters on a disk", 1,
                  [](Scenario& s) {
                    s.micro_batches = 2;
                    s.options.precision.param_dtype = at::kBFloat16;
                    s.options.offload.optimizer_folder = testing::TempDir();
                  }),
      // Its slots come and go: graphs are captured anew in each step, for the third micro-batch.
      scenario_of("accumulated, reduced each time, evaluated in full precision", 2,
                  [](Scenario& s) {
                    s.micro_batches = 3;
                    s.evaluates = true;
                    s.options.precision.param_dtype = at::kBFloat16;
                    s.options.precision.full_precision_in_eval = true;
                  }),
      scenario_of("accumulated, reduced at last", 2,
                  [](Scenario& s) {
                    s.micro_batches = 3;
                    s.sync_each = false;
                    s.options.strategy = Strategy::ShardGradOp;
                  }),
      scenario_of("replicas", 2, [](Scenario& s) { s.options.strategy = Strategy::NoShard; }),
      scenario_of("rows and replicas, accumulated", 4,
                  [](Scenario& s) {
                    s.micro_batches = 2;
                    s.options.strategy = Strategy::HybridShard;
                  }),
  };
}

void expect_same(const std::vector<Outcome>& expected, const std::vector<Outcome>& found,
                 bool fails) {
  for (size_t rank = 0; rank < expected.size(); ++rank) {
    ASSERT_EQ(expected[rank].values.size(), found[rank].values.size());
    for (size_t i = 0; i < expected[rank].values.size(); ++i) {
      EXPECT_TRUE(at::equal(expected[rank].values[i], found[rank].values[i]))
          << "rank " << rank << ", value " << i;
    }
    EXPECT_EQ(expected[rank].collectives.reductions, found[rank].collectives.reductions);
    const auto gathers = [](const Outcome& of) { return of.collectives.gathers; };
    // What an exception drops is gathered ahead or not.
    EXPECT_LE(std::abs(gathers(expected[rank]) - gathers(found[rank])), fails ? 1 : 0);
  }
}

class MicroBatchesAsGraphs : public testing::TestWithParam<size_t> {
 protected:
  const Scenario scenario = scenarios_with_graphs()[GetParam()];
};

TEST_P(MicroBatchesAsGraphs, HaveTheSameBits) {
  SCOPED_TRACE(scenario.name);
  const std::vector<Outcome> expected = by_micro_batches(scenario, false, 0);
  for (const uint64_t seed : {1U, 2U, 3U}) {
    const std::vector<Outcome> found = by_micro_batches(scenario, true, seed);
    expect_same(expected, found, scenario.fails_in_forward);
    for (const Outcome& one : found) {
      EXPECT_EQ(one.counts.launches + one.counts.as_they_are,
                kStepsWithGraphs * scenario.micro_batches + (scenario.fails_in_forward ? 1 : 0));
      EXPECT_GE(one.counts.launches,
                scenario.options.precision.full_precision_in_eval ? 3 : 3 * scenario.micro_batches);
    }
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

INSTANTIATE_TEST_SUITE_P(All, MicroBatchesAsGraphs,
                         testing::Range<size_t>(0, scenarios_with_graphs().size()));

// A wait in a capture that is taken away is missed: by what runs at once then, or by what a launch
// finds; for each pair of streams one that shows.
TEST(MicroBatchGraphs, MissWaitsThatAreTakenAway) {
  const Scenario scenario = scenario_of("plain", 2, [](Scenario&) {});
  lose_wait(0, -1);
  const auto [first, last] = by_micro_batches(scenario, true, 0)[0].waits_of_capture;
  const std::vector<Wait> all = waits(0);
  ASSERT_LT(first, last);
  std::map<std::pair<int, int>, std::vector<int>> by_streams;
  for (size_t i = first; i < last; ++i) {
    if (all[i].orders) {
      by_streams[{all[i].stream, all[i].waits_for}].push_back(static_cast<int>(i));
    }
  }
  EXPECT_GE(by_streams.size(), 5);
  const auto is_missed_without = [&](int number) {
    lose_wait(0, number);
    try {
      static_cast<void>(by_micro_batches(scenario, true, 0));
    } catch (const std::exception&) {
      static_cast<void>(take_faults());
      return true;
    }
    return !take_faults().empty();
  };
  for (const auto& [streams, numbers] : by_streams) {
    EXPECT_TRUE(std::any_of(numbers.begin(), numbers.end(), is_missed_without))
        << "stream " << streams.first << " need not wait for " << streams.second << ", as after "
        << all[static_cast<size_t>(numbers.front())].after;
  }
  lose_wait(0, -1);
}

using Model = Sharded<test::Net>;

at::Tensor loss_of(Model& model, const Inputs& in) {
  return test::sum_of_errors(model(in[0]), in[1]);
}

// The same at most six times, until it is captured and launched, or throws.
void run_until_launched(MicroBatchGraphs& graphs, const World& world,
                        const MicroBatchGraphs::MicroBatch& micro_batch) {
  for (int i = 0; i < 6 && graphs.counts().launches == 0; ++i) {
    static_cast<void>(graphs.run(inputs_of(world, i), micro_batch));
  }
}

// The copies of its inputs, and one launch for all that it is else.
TEST(MicroBatchGraphs, AreOneLaunch) {
  run_ranks_on_devices(1, [](const World& world) {
    Model model = fully_shard(test::make_net(), Mesh::shard(world));
    const StreamsEndFirst streams_end_first(world);
    MicroBatchGraphs graphs(model);
    const auto micro_batch = [&](const Inputs& in) {
      const at::Tensor loss = loss_of(model, in);
      loss.backward();
      return loss;
    };
    const auto launches = [&] {
      static_cast<void>(take_launches(0));
      static_cast<void>(graphs.run(inputs_of(world, 0), micro_batch));
      return take_launches(0);
    };
    EXPECT_GT(launches(), 100);
    run_until_launched(graphs, world, micro_batch);
    EXPECT_EQ(launches(), 5);  // from the host and into the graph's, each of two; the graph
    EXPECT_EQ(graphs.counts().captures, 1);
    // Another shape is another micro-batch; what was captured stays.
    static_cast<void>(graphs.run({at::ones({7, 5}), at::ones({7, 3})}, micro_batch));
    EXPECT_EQ(launches(), 5);
    EXPECT_EQ(graphs.counts().captures, 1);
  });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

struct Refusal {
  std::function<at::Tensor(Model&, const Inputs&, bool& is_later)> micro_batch;
  std::vector<std::string> says;
};

// Each in a capture; then gradients are what they were, and the model trains on.
TEST(MicroBatchGraphs, SayWhyAMicroBatchCannotBeCaptured) {
  const std::vector<Refusal> refusals = {
      {[](Model& model, const Inputs& in, bool&) {
         const at::Tensor loss = loss_of(model, in);
         static_cast<void>(loss.item<float>());
         loss.backward();
         return loss;
       },
       {"the host waits in a capture: item"}},
      {[](Model& model, const Inputs& in, bool&) {
         const at::Tensor loss = loss_of(model, in);
         loss.backward();
         return loss * to_device(at::ones({2}), loss.device());
       },
       {"[to_device] a tensor of the host, of 2 elements", "pass it as an input"}},
      {[](Model& model, const Inputs& in, bool& is_later) {
         const at::Tensor loss = loss_of(model, in);
         loss.backward();
         if (is_later) {
           throw std::runtime_error("of the caller's");
         }
         return loss;
       },
       {"of the caller's"}},
      {[](Model& model, const Inputs& in, bool& is_later) {
         const at::Tensor loss = model
                                     .run(
                                         [&](test::NetImpl& net, const at::Tensor& x) {
                                           const at::Tensor hidden =
                                               net.blocks[is_later ? 1 : 0](net.input(x));
                                           return net.head(net.blocks[is_later ? 0 : 1](hidden));
                                         },
                                         in[0])
                                     .sum();
         loss.backward();
         return loss;
       },
       {"it runs other units, or in another order, than when it was run last"}},
      {[](Model& model, const Inputs& in, bool& is_later) {
         const at::Tensor loss = loss_of(model, in);
         loss.backward();
         if (is_later) {
           const Buffer allocated(64, MemoryKind::Gathered, detail::engine_of(model).model.ledger);
         }
         return loss;
       },
       {"the model's buffers in memory were not the same before and after the capture",
        "Do that between micro-batches."}},
      {[](Model& model, const Inputs& in, bool&) {
         const at::Tensor loss = loss_of(model, in) * at::rand({}).item<float>();
         loss.backward();
         return loss;
       },
       {"random numbers are drawn, and unit 'block0', whose activations are checkpointed"}},
      {[kept = std::make_shared<at::Tensor>()](Model& model, const Inputs& in, bool&) {
         *kept = loss_of(model, in);
         kept->backward();
         return *kept;
       },
       {"something still holds the graph of a forward", "let go of it"}},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.says.front());
    run_ranks_on_devices(1, [&](const World& world) {
      ShardOptions options;
      if (refusal.says.front().starts_with("random")) {
        options.units = unit_policy::every_unit({.checkpoint_activations = true});
      }
      Model model = fully_shard(test::make_net(), Mesh::shard(world), options);
      const StreamsEndFirst streams_end_first(world);
      MicroBatchGraphs graphs(model);
      bool is_later = false;
      const auto micro_batch = [&](const Inputs& in) {
        return refusal.micro_batch(model, in, is_later);
      };
      for (int i = 0; i < 3; ++i) {  // gradients, and a sum to add to; nothing is captured yet
        static_cast<void>(graphs.run(inputs_of(world, i), micro_batch));
      }
      ASSERT_EQ(graphs.counts().captures, 0);
      const auto gradients = [&] {
        std::vector<at::Tensor> all;
        for (const ParameterShard& shard : model.parameter_shards()) {
          if (shard.gradient.defined()) {
            all.push_back(shard.gradient.cpu());
          }
        }
        return all;
      };
      const std::vector<at::Tensor> before = gradients();
      is_later = true;
      std::vector<std::string> says = refusal.says;
      says.insert(says.end(), {"[MicroBatchGraphs] this micro-batch cannot be captured",
                               "Gradients and parameters are as they were before it."});
      test::expect_error(
          [&] { static_cast<void>(graphs.run(inputs_of(world, 3), micro_batch)); },
          refusal.says.front() == "of the caller's" ? ExitCode::Internal : ExitCode::Usage, says);
      const std::vector<at::Tensor> after = gradients();
      ASSERT_EQ(before.size(), after.size());
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(at::equal(before[i], after[i])) << i;
      }
      loss_of(model, {inputs_of(world, 4)[0], inputs_of(world, 4)[1].to(world.device())})
          .backward();
    });
    EXPECT_EQ(take_faults(), std::vector<std::string>{});
  }
}

// One rank cannot: none launches what the others have captured, and all go on.
TEST(MicroBatchGraphs, AreCapturedByAllRanksOrNone) {
  run_ranks_on_devices(2, [](const World& world) {
    Model model = fully_shard(test::make_net(), Mesh::shard(world));
    const StreamsEndFirst streams_end_first(world);
    AdamW optimizer(model, {.lr = 1e-2});
    MicroBatchGraphs graphs(model);
    bool fails = true;
    const auto micro_batch = [&](const Inputs& in) {
      const at::Tensor loss = loss_of(model, in);
      loss.backward();
      if (world.rank() == 1 && fails) {
        static_cast<void>(loss.item<float>());
      }
      return loss;
    };
    test::expect_error([&] { run_until_launched(graphs, world, micro_batch); }, ExitCode::Usage,
                       {"cannot be captured as a graph, rank 1: ", "the host waits in a capture"});
    fails = false;
    run_until_launched(graphs, world, micro_batch);
    EXPECT_GT(graphs.counts().launches, 0);
    optimizer.step();
  });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

TEST(MicroBatchGraphs, AreRefusedWhereTheHostHasAPart) {
  test::expect_error([] { MicroBatchGraphs(fully_shard(test::make_net(), test::alone())); },
                     ExitCode::Usage, {"the model is on cpu, which keeps no graphs", "use a GPU"});
  run_ranks_on_devices(1, [](const World& world) {
    const auto refused = [&](const ShardOptions& options, const std::string& says) {
      test::expect_error(
          [&] { MicroBatchGraphs(fully_shard(test::make_net(), Mesh::shard(world), options)); },
          ExitCode::Usage, {"[MicroBatchGraphs] ", says, "run micro-batches without graphs"});
    };
    refused({.debug = true}, "ShardOptions::debug");
    refused({.ignored = [](const std::string& name) { return name == "head.bias"; }},
            "ShardOptions::ignored");
    refused({.offload = {.activations_on_host = true}}, "more than masters and moments");
    Model model = fully_shard(test::make_net(), Mesh::shard(world));
    const StreamsEndFirst streams_end_first(world);
    test::expect_error([&] { MicroBatchGraphs(model, 0); }, ExitCode::Usage,
                       {"`max_graphs` is at least 1, got 0"});
    MicroBatchGraphs graphs(model);
    const auto refuses = [&](const std::string& says) {
      test::expect_error(
          [&] {
            static_cast<void>(
                graphs.run(inputs_of(world, 0), [](const Inputs& in) { return in[0]; }));
          },
          ExitCode::Usage,
          {"[MicroBatchGraphs] ", says, "repeats what the device does, not the host"});
    };
    model.set_reshard_after_backward(false);
    refuses("unit 'root' stays gathered after backward");
    model.set_reshard_after_backward(true);
    model.set_all_reduce_hook([](const std::string&, const at::Tensor&) {});
    refuses("unit 'root' has an all-reduce hook");
    model.set_all_reduce_hook({});
    {
      const at::Tensor waits_for_backward = model(inputs_of(world, 0)[0].to(world.device()));
      refuses("a forward waits for its backward");
    }
    {
      const AdamW in_backward(model, {}, {}, {.in_backward = true});
      refuses("the optimizer works in backward");
    }
    static_cast<void>(optim_parameters(model));
    refuses("an optimizer of LibTorch may write the parameters");
  });
  run_ranks_on_devices(2, [](const World& world) {
    ShardOptions options{.strategy = Strategy::NoShard};
    Model model = fully_shard(test::make_net(), Mesh::shard(world), options);
    const StreamsEndFirst streams_end_first(world);
    MicroBatchGraphs graphs(model);
    model.set_requires_all_reduce(false);
    const auto run = [&] {
      static_cast<void>(graphs.run(inputs_of(world, 0), [](const Inputs& in) { return in[0]; }));
    };
    test::expect_error(run, ExitCode::Usage,
                       {"gradients of unit 'root' are summed over the replicas later"});
    model(inputs_of(world, 0)[0].to(world.device())).sum().backward();
    model.set_requires_all_reduce(true);
    test::expect_error(run, ExitCode::Usage,
                       {"gradients of unit 'root' await their sum over the replicas"});
  });
}

}  // namespace
}  // namespace sherd::fake
