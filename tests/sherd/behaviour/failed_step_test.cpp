// What is left of a step that an exception has ended: nothing of the failed micro-batch, and no
// state that the next step could stumble over.

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>

#include "sherd/communicator.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "tests/support/decorated_world.h"
#include "tests/support/expect_error.h"
#include "tests/support/meshes.h"
#include "tests/support/odd_nets.h"
#include "tests/support/ranks.h"

namespace sherd::test {
namespace {

struct Bomb : torch::autograd::Function<Bomb> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("blown in backward");
  }
};

enum class Blown { Never, Forward, Backward };

// Of three units: the first and the second run backward after the bomb, the third before it.
at::Tensor loss_with_bomb(Sharded<StackNet>& model, int64_t number, Blown blown) {
  const auto body = [&](StackNetImpl& stack, const at::Tensor& x) {
    const at::Tensor y = stack.layers[1](stack.layers[0](x));
    if (blown == Blown::Forward) {
      throw std::runtime_error("blown in forward");
    }
    return stack.layers[2](blown == Blown::Backward ? Bomb::apply(y) : y);
  };
  return loss_of(model.run(body, odd_input(10 * number + model.world().rank())));
}

Sharded<StackNet> stack_of(const World& world, Strategy strategy) {
  return fully_shard(builder<StackNet>()(), mesh_for(world, strategy), {.strategy = strategy});
}

std::vector<at::Tensor> copied_gradients(const ShardedModule& model) {
  std::vector<at::Tensor> found;
  for (const ParameterShard& shard : model.parameter_shards()) {
    found.push_back(shard.gradient.defined() ? shard.gradient.clone() : at::Tensor());
  }
  return found;
}

std::vector<at::Tensor> copied_values(const ShardedModule& model) {
  std::vector<at::Tensor> found;
  for (const ParameterShard& shard : model.parameter_shards()) {
    found.push_back(shard.value.clone());
  }
  return found;
}

void expect_same(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& actual,
                 const std::string& where) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(expected[i], actual[i])) << where << ", parameter " << i;
  }
}

TEST(FailedStep, BackwardLeavesNoGradients) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      auto model = stack_of(world, strategy);
      loss_with_bomb(model, 1, Blown::Never).backward();  // earlier micro-batches go with it
      EXPECT_THROW(loss_with_bomb(model, 2, Blown::Backward).backward(), std::runtime_error);
      for (const at::Tensor& gradient : copied_gradients(model)) {
        EXPECT_FALSE(gradient.defined()) << name_of(strategy);
      }
      loss_with_bomb(model, 3, Blown::Never).backward();  // without zero_grad()
      auto alone = stack_of(world, strategy);
      loss_with_bomb(alone, 3, Blown::Never).backward();
      expect_same(copied_gradients(alone), copied_gradients(model), name_of(strategy));
    });
  }
}

TEST(FailedStep, BackwardThatIsFollowedByAnUpdateIsRefused) {
  run_ranks(2, [](World world) {
    auto model = stack_of(world, Strategy::FullShard);
    AdamW optimizer(model);
    const auto before = copied_values(model);
    EXPECT_THROW(loss_with_bomb(model, 2, Blown::Backward).backward(), std::runtime_error);
    expect_error([&] { optimizer.step(); }, ExitCode::Usage,
                 {"[AdamW::step] no parameter has a gradient"});
    expect_same(before, copied_values(model), "values");
  });
}

TEST(FailedStep, BackwardLeavesNoGradientsInViews) {
  run_ranks(2, [](World world) {
    auto model = stack_of(world, Strategy::FullShard);
    const auto views = optim_parameters(model).values();
    loss_with_bomb(model, 1, Blown::Never).backward();
    EXPECT_THROW(loss_with_bomb(model, 2, Blown::Backward).backward(), std::runtime_error);
    loss_with_bomb(model, 3, Blown::Never).backward();
    auto alone = stack_of(world, Strategy::FullShard);
    loss_with_bomb(alone, 3, Blown::Never).backward();
    const auto expected = copied_gradients(alone);
    for (size_t i = 0; i < views.size(); ++i) {
      EXPECT_TRUE(at::equal(expected[i], views[i].grad())) << "parameter " << i;
    }
  });
}

// Gradients of earlier micro-batches are complete, wherever they are kept.
TEST(FailedStep, ForwardLeavesEarlierMicroBatchesAsTheyAre) {
  struct How {
    bool sync = true;
    bool all_reduce = true;
  };
  for (const How how : {How{}, How{.sync = false}, How{.all_reduce = false}}) {
    for (const Strategy strategy : kStrategies) {
      run_ranks(4, [&](World world) {
        const auto accumulated = [&](bool fails) {
          auto model = stack_of(world, strategy);
          model.set_requires_gradient_sync(how.sync);
          model.set_requires_all_reduce(how.all_reduce);
          loss_with_bomb(model, 1, Blown::Never).backward();
          if (fails) {
            EXPECT_THROW(loss_with_bomb(model, 2, Blown::Forward), std::runtime_error);
          }
          model.set_requires_gradient_sync(true);
          model.set_requires_all_reduce(true);
          loss_with_bomb(model, 3, Blown::Never).backward();
          return copied_gradients(model);
        };
        expect_same(accumulated(false), accumulated(true), name_of(strategy));
      });
    }
  }
}

TEST(FailedStep, OfAnOptimizerInBackwardIsFollowedByOthers) {
  run_ranks(2, [](World world) {
    auto model = stack_of(world, Strategy::FullShard);
    AdamW optimizer(model, {.lr = 1e-2}, {}, {.in_backward = true});
    EXPECT_THROW(loss_with_bomb(model, 2, Blown::Backward).backward(), std::runtime_error);
    const auto before = copied_values(model);
    loss_with_bomb(model, 3, Blown::Never).backward();
    optimizer.step();
    for (size_t i = 0; i < before.size(); ++i) {
      const at::Tensor after = model.parameter_shards()[i].value;
      EXPECT_TRUE(after.numel() == 0 || !at::equal(before[i], after)) << "parameter " << i;
    }
  });
}

// Units that have been updated when a backward fails are new and the others old. In a world of one
// each is updated as soon as its own backward has ended.
TEST(FailedStep, OfAnOptimizerInBackwardTearsWhatItHasBegunToUpdate) {
  auto model = stack_of(World::alone(), Strategy::FullShard);
  AdamW optimizer(model, {.lr = 1e-2}, {}, {.in_backward = true});
  EXPECT_THROW(loss_with_bomb(model, 2, Blown::Backward).backward(), std::runtime_error);
  const std::vector<std::string> torn = {" are torn: an optimizer in backward ended in an error"};
  expect_error([&] { loss_with_bomb(model, 3, Blown::Never); }, ExitCode::Usage, torn);
  expect_error([&] { optimizer.step(); }, ExitCode::Usage, torn);
  expect_error([&] { static_cast<void>(full_state_dict(model)); }, ExitCode::Usage, torn);
}

/// Goes on where a backward inside its forward has failed.
struct TriesABackwardImpl : torch::nn::Module {
  TriesABackwardImpl()
      : inner(register_module("inner", Unit<Layer>())),
        own(register_module("own", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = inner(x);
    if (tries) {
      const at::Tensor leaf = x.detach().requires_grad_();
      EXPECT_THROW(loss_of(inner(Bomb::apply(leaf))).backward(), std::runtime_error);
    }
    return own(inner(y));
  }
  bool tries = false;
  Unit<Layer> inner;
  torch::nn::Linear own;
};
TORCH_MODULE(TriesABackward);
struct TriesABackwardNetImpl : torch::nn::Module {
  TriesABackwardNetImpl() : outer(register_module("outer", Unit<TriesABackward>())) {}
  at::Tensor forward(const at::Tensor& x) { return outer(x); }
  Unit<TriesABackward> outer;
};
TORCH_MODULE(TriesABackwardNet);

TEST(FailedStep, BackwardInsideAForwardLeavesThatItsParameters) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      const auto gradients = [&](bool tries, bool views) {
        TriesABackwardNet net = builder<TriesABackwardNet>()();
        net->outer->tries = tries;
        auto model = fully_shard(net, mesh_for(world, strategy), {.strategy = strategy});
        if (views) {
          static_cast<void>(optim_parameters(model));
        }
        loss_of(model(odd_input(world.rank()))).backward();
        return copied_gradients(model);
      };
      for (const bool views : {false, true}) {
        expect_same(gradients(false, views), gradients(true, views), name_of(strategy));
      }
    });
  }
}

// A backward that is refused before it begins is followed by one that ends.
TEST(FailedStep, ARefusedBackwardIsFollowedByOthers) {
  run_ranks(2, [](World world) {
    const auto train = [&](bool refused) {
      auto model = stack_of(world, Strategy::FullShard);
      AdamW optimizer(model, {.lr = 1e-2}, {}, {.in_backward = true});
      if (refused) {
        model.set_requires_gradient_sync(false);
        expect_error([&] { loss_with_bomb(model, 2, Blown::Never).backward(); }, ExitCode::Usage,
                     {"[backward] unit 'root' accumulates gradients"});
        model.set_requires_gradient_sync(true);
      }
      for (int64_t step = 0; step < 2; ++step) {
        loss_with_bomb(model, step, Blown::Never).backward();
        optimizer.step();
      }
      return copied_values(model);
    };
    expect_same(train(false), train(true), "values");
  });
}

/// Fails the `fails_at`th collective that begins from now on; none where it is 0.
class FailingCollective final : public CollectiveObserver {
 public:
  void started(const Collective& /*collective*/) override {
    if (fails_at > 0 && --fails_at == 0) {
      throw std::runtime_error("blown in a collective");
    }
  }
  int fails_at = 0;
};

// Whether forward or backward had a collective of that number.
bool fails_at_collective(World world, Strategy strategy, int number) {
  const auto observer = std::make_shared<FailingCollective>();
  world.set_observer(observer);
  auto model = stack_of(world, strategy);
  observer->fails_at = number;
  bool failed = false;
  try {
    loss_with_bomb(model, 2, Blown::Never).backward();
  } catch (const std::runtime_error&) {
    failed = true;
  }
  observer->fails_at = 0;
  model.zero_grad();
  loss_with_bomb(model, 3, Blown::Never).backward();
  auto alone = stack_of(world, strategy);
  loss_with_bomb(alone, 3, Blown::Never).backward();
  expect_same(copied_gradients(alone), copied_gradients(model),
              std::string(name_of(strategy)) + ", collective " + std::to_string(number));
  return failed;
}

// On all ranks at once: whatever fails, the next step has a fresh model's bits.
TEST(FailedStep, AtEachCollectiveOfForwardAndBackward) {
  for (const Strategy strategy : kStrategies) {
    int failures = 0;
    for (std::atomic<bool> failed = true; failed.exchange(false);) {
      const int number = ++failures;
      run_ranks(4, [&](World world) {
        if (fails_at_collective(std::move(world), strategy, number)) {
          failed = true;
        }
      });
    }
    EXPECT_GE(failures, 6) << name_of(strategy);  // a gather and a reduction of each unit
  }
}

/// Throws where it is told to gather for the `fails_at`th time from now.
class FailingGather final : public DecoratedCommunicator {
 public:
  FailingGather(std::unique_ptr<Communicator> inner, std::shared_ptr<int> countdown)
      : DecoratedCommunicator(std::move(inner)), countdown_(std::move(countdown)) {}
  void* gather(Segment segment, void* slot, const GatherEvents& after) override {
    if (--*countdown_ == 0) {
      throw Error(ExitCode::OutOfMemory, "no gather this time");
    }
    return DecoratedCommunicator::gather(segment, slot, after);
  }

 private:
  std::shared_ptr<int> countdown_;
};

// The gather of the second segment of a unit fails, on all ranks.
TEST(FailedStep, AGatherThatFailsLeavesNeitherMemoryNorAForward) {
  run_ranks(2, [](World world) {
    const auto countdown = std::make_shared<int>(0);
    const World failing = decorated_world(world, [&](std::unique_ptr<Communicator> inner) {
      return std::make_unique<FailingGather>(std::move(inner), countdown);
    });
    StackNet net = builder<StackNet>()();
    for (const auto& item : net->named_parameters()) {
      item.value().set_requires_grad(!item.key().ends_with("bias"));
    }
    auto model = fully_shard(net, Mesh::shard(failing));
    const at::Tensor expected = model(odd_input(1)).detach();
    static_cast<void>(model(odd_input(1)));  // gathers ahead
    const int64_t held = model.memory().bytes(MemoryKind::Gathered);
    for (const int at : {2, 4, 6}) {  // the root has no segments, and each layer has two
      *countdown = at;
      expect_error([&] { model(odd_input(1)); }, ExitCode::OutOfMemory, {"no gather this time"});
      *countdown = 0;
      EXPECT_EQ(full_state_dict(model).size(), model.world().rank() == 0 ? 6U : 0U);
      EXPECT_NO_THROW(static_cast<void>(optim_parameters(model)));  // outside of any forward
      EXPECT_TRUE(at::equal(model(odd_input(1)).detach(), expected));
      EXPECT_LE(model.memory().bytes(MemoryKind::Gathered), held);
    }
  });
}

}  // namespace
}  // namespace sherd::test
