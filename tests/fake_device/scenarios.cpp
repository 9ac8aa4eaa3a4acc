#include "tests/fake_device/scenarios.h"

#include <functional>
#include <stdexcept>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/fake_device/ranks.h"
#include "tests/support/meshes.h"
#include "tests/support/small_net.h"

namespace sherd::fake {
namespace {

constexpr int kSteps = 3;
constexpr int kFailing = 1;  // the step that fails once

struct FailsInBackward : torch::autograd::Function<FailsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("failed in backward");
  }
};

using Model = Sharded<test::Net>;

// The first two blocks run, then it fails: behind it others are gathered ahead.
void fail_in_forward(Model& model, const at::Tensor& x) {
  try {
    model.run(
        [](test::NetImpl& net, const at::Tensor& in) -> at::Tensor {
          static_cast<void>(net.blocks[1](net.blocks[0](net.input(in))));
          throw std::runtime_error("failed in forward");
        },
        x);
  } catch (const std::runtime_error&) {
  }
}

void fail_in_backward(Model& model, const at::Tensor& x) {
  try {
    model
        .run(
            [](test::NetImpl& net, const at::Tensor& in) {
              at::Tensor hidden = FailsInBackward::apply(net.blocks[0](net.input(in)));
              return net.head(net.blocks[2](net.blocks[1](hidden)));
            },
            x)
        .sum()
        .backward();
  } catch (const std::exception&) {
  }
}

// Of one strategy, since large examples take time.
void put_activations_on_host(Scenario& scenario) {
  if (scenario.options.strategy == Strategy::FullShard) {
    scenario.repeats = kLargeRepeats;
    scenario.options.offload.activations_on_host = true;
  }
}

std::vector<Scenario> all() {
  const auto with = [](std::string name, const std::function<void(Scenario&)>& change) {
    return std::pair(std::move(name), change);
  };
  const std::pair<std::string, std::function<void(Scenario&)>> ways[] = {
      with("plain", [](Scenario&) {}),
      with("bf16, checkpointed, three ahead, after each unit",
           [](Scenario& s) {
             s.options.precision.param_dtype = at::kBFloat16;
             s.options.units = unit_policy::every_unit({.checkpoint_activations = true});
             s.options.prefetch_depth = 3;
             s.options.backward_prefetch = BackwardPrefetch::Post;
             s.options.offload.optimizer_on_host = true;
             s.options.offload.parameters_on_host = true;
           }),
      with("accumulated, reduced each time",
           [](Scenario& s) {
             s.micro_batches = 3;
             s.options.precision.param_dtype = at::kBFloat16;
             s.options.precision.master = Master::Split;
             s.options.offload.optimizer_on_host = true;
             s.options.offload.gradients_on_host = true;
           }),
      with("accumulated, reduced at last",
           [](Scenario& s) {
             s.micro_batches = 2;
             s.sync_each = false;
             s.options.prefetch_depth = 0;
             put_activations_on_host(s);
           }),
      with("replicas reduced at last, nothing resharded",
           [](Scenario& s) {
             s.micro_batches = 2;
             s.all_reduce_each = false;
             s.reshard_after_backward = false;
           }),
      with("evaluated between steps",
           [](Scenario& s) {
             s.evaluates = true;
             s.options.precision.param_dtype = at::kBFloat16;
             s.options.precision.master = Master::BFloat16;
             s.options.prefetch_depth = 2;
             s.options.offload.parameters_on_host = true;
           }),
      with("failing in forward", [](Scenario& s) { s.fails_in_forward = true; }),
      with("failing in backward",
           [](Scenario& s) {
             s.fails_in_backward = true;
             s.options.offload.parameters_on_host = true;
             s.options.offload.gradients_on_host = true;
             s.options.units = unit_policy::every_unit({.checkpoint_activations = true});
             put_activations_on_host(s);
           }),
  };
  std::vector<Scenario> made;
  for (const Strategy strategy : test::kStrategies) {
    int number = 0;
    for (const auto& [name, change] : ways) {
      Scenario scenario{.name = std::string(name_of(strategy)) + ", " + name};
      scenario.options.strategy = strategy;
      const bool wants_even = test::is_hybrid(strategy);
      scenario.ranks = wants_even ? 4 : 2 + number++ % 3;
      change(scenario);
      made.push_back(std::move(scenario));
    }
  }
  return made;
}

}  // namespace

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> made = all();
  return made;
}

std::vector<at::Tensor> train(const World& world, const Scenario& scenario) {
  Model model = fully_shard(test::make_net(), test::mesh_for(world, scenario.options.strategy),
                            scenario.options);
  const StreamsEndFirst streams_end_first(world);
  model.set_reshard_after_backward(scenario.reshard_after_backward);
  AdamW optimizer(model, {.lr = 1e-2});
  std::vector<at::Tensor> values;
  for (int step = 0; step < kSteps; ++step) {
    const auto example = [&](int micro) {
      const test::Example on_host =
          test::make_example((step * scenario.micro_batches + micro) * world.size() + world.rank());
      const auto all = [&](const at::Tensor& rows) {
        return rows.repeat({scenario.repeats, 1}).to(world.device());
      };
      return test::Example{all(on_host.x), all(on_host.y)};
    };
    if (step == kFailing && scenario.fails_in_forward) {
      fail_in_forward(model, example(0).x);
    }
    if (step == kFailing && scenario.fails_in_backward) {
      fail_in_backward(model, example(0).x);
    }
    if (step == kFailing && scenario.ends_failing) {
      return {};
    }
    if (step == kFailing && scenario.fails_in_backward) {
      optimizer.zero_grad();
    }
    for (int micro = 0; micro < scenario.micro_batches; ++micro) {
      const bool is_last = micro == scenario.micro_batches - 1;
      model.set_requires_gradient_sync(is_last || scenario.sync_each);
      model.set_requires_all_reduce(is_last || scenario.all_reduce_each);
      const test::Example now = example(micro);
      const at::Tensor loss = test::sum_of_errors(model(now.x), now.y);
      loss.backward();
      values.push_back(loss.detach());
    }
    static_cast<void>(clip_grad_norm(model, 1.0));
    optimizer.step();
    optimizer.zero_grad();
    if (scenario.evaluates) {
      const at::NoGradGuard no_grad;
      values.push_back(test::sum_of_errors(model(example(0).x), example(0).y));
    }
  }
  for (const ParameterShard& shard : model.parameter_shards()) {
    values.push_back(shard.value.clone());
  }
  for (at::Tensor& value : values) {
    value = value.cpu();
  }
  return values;
}

}  // namespace sherd::fake
