// Offload from a device to its host: masters and moments, parameters, gradients, and what units
// save for backward.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "sherd/checkpoint.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "storage/activation_store.h"
#include "storage/host_storage.h"
#include "tests/fake_device/offloads.h"
#include "tests/fake_device/scenario_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/slot_linear.h"
#include "tests/support/small_net.h"
#include "tests/support/temp_folder.h"

namespace sherd::fake {
namespace {

// What a checkpoint, whole tensors and initialisation see of a model after some steps.
std::vector<at::Tensor> shown_states(const World& world, const ShardOptions& options,
                                     const std::string& folder, bool loads) {
  test::Net net = test::make_net();
  auto model = fully_shard(net, Mesh::shard(world), options);
  const StreamsEndFirst streams_end_first(world);
  AdamW optimizer(model, {.lr = 1e-2});
  const auto step = [&](int index) {
    const test::Example example = test::make_example(index);
    test::sum_of_errors(model(example.x), example.y.to(world.device())).backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  if (loads) {
    load_checkpoint(model, optimizer, folder);
  } else {
    initialize(model, 5, [](ParameterInit& parameter) { parameter.fill_normal(0, 0.1); });
    step(0);
    with_full_parameters(model, "", [&] { net->parameters().front().flatten()[0] = 7.5; },
                         {.writeback = true});
    step(1);
    save_checkpoint(model, optimizer, folder, "");
  }
  const StateDict values = full_state_dict(model, {.rank0_only = false});
  const OptimStateDict states = full_optim_state_dict(model, optimizer, /*rank0_only=*/false);
  step(2);
  load_full_state_dict(model, values);
  load_full_optim_state_dict(model, optimizer, states);
  step(2);
  std::vector<at::Tensor> shown;
  for (const auto& item : full_state_dict(model, {.rank0_only = false})) {
    shown.push_back(item.value().cpu());
  }
  for (const MomentShard& moment : optimizer.moments()) {
    shown.insert(shown.end(), {moment.exp_avg.cpu(), moment.exp_avg_sq.cpu()});
  }
  return shown;
}

// Bytes of a parameter in bf16 that rest there.
constexpr int64_t kBytesOnHost = 2 + 4 + 8 + 4;

TEST(OffloadToTheHost, WhatRestsOnTheHostIsFilledShownSavedAndLoaded) {
  const test::TempFolder folder;
  const std::string disk = folder.path().string();
  set_seed(1);
  for (const Master master : {Master::Float32, Master::Split}) {
    ShardOptions options{.precision = {.param_dtype = at::kBFloat16, .master = master}};
    Values shown(2);
    int number = 0;
    for (const Offload& offload :
         {Offload{}, Offload{.optimizer_on_host = true}, Offload{.parameters_on_host = true},
          Offload{.gradients_on_host = true}, all_on_host(), Offload{.optimizer_folder = disk},
          Offload{.parameter_folder = disk}, Offload{.gradient_folder = disk},
          Offload{.gradient_folder = disk, .optimizer_on_host = true, .parameters_on_host = true},
          all_on_disk(disk)}) {
      options.offload = offload;
      const std::string saved =
          (folder.path() / (name_of(master) + std::to_string(number++))).string();
      for (const bool loads : {false, true}) {
        run_ranks_on_devices(2, [&](const World& world) {
          const auto states = shown_states(world, options, saved, loads);
          auto& first = shown[static_cast<size_t>(world.rank())];
          first = first.empty() ? states : first;
          ASSERT_EQ(first.size(), states.size());
          for (size_t i = 0; i < first.size(); ++i) {
            EXPECT_TRUE(at::equal(first[i], states[i])) << saved << ", " << loads << ", " << i;
          }
        });
      }
    }
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

// Masters and moments take nothing of the device but three slots, and no step waits for them.
TEST(OffloadToTheHost, HoldsSlotsOfWhatRestsOnTheHost) {
  run_ranks_on_devices(1, [](const World& world) {
    ShardOptions options{.precision = {.param_dtype = at::kBFloat16}};
    options.offload.optimizer_on_host = true;
    auto model = fully_shard(test::make_net(), Mesh::shard(world), options);
    const StreamsEndFirst streams_end_first(world);
    AdamW optimizer(model, {.lr = 1e-2});
    const MemoryLedger& memory = model.memory();
    EXPECT_EQ(memory.bytes(MemoryKind::MasterShard) + memory.bytes(MemoryKind::OptimizerState), 0);
    EXPECT_GE(memory.on_host_bytes(), 12 * 1000);
    EXPECT_GT(memory.bytes(MemoryKind::OffloadSlot), 0);
    EXPECT_EQ(memory.bytes(MemoryKind::OffloadSlot), model.offload_slot_bytes());
    const test::Example example = test::make_example(0);
    const at::Tensor y = example.y.to(world.device());
    const at::Tensor x = example.x.to(world.device());
    static_cast<void>(take_host_waits(0));
    for (int step = 0; step < 3; ++step) {
      test::sum_of_errors(model(x), y).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(take_host_waits(0), std::vector<std::string>{});
    EXPECT_LE(memory.peak_bytes(), model.planned_peak_bytes());
    // Who reads a state waits for the device, and for copies both ways once.
    const auto settled = [] {
      const std::vector<std::string> waits = take_host_waits(0);
      return std::count(waits.begin(), waits.end(), "synchronize a stream");
    };
    static_cast<void>(full_state_dict(model));
    EXPECT_EQ(settled(), 3);
    static_cast<void>(full_optim_state_dict(model, optimizer));
    EXPECT_EQ(settled(), 1);
    test::sum_of_errors(model(x), y).backward();
    optimizer.step();
    EXPECT_EQ(settled(), 0);
    static_cast<void>(full_optim_state_dict(model, optimizer));
    EXPECT_EQ(settled(), 3);
    test::expect_error([&] { static_cast<void>(optim_parameters(model)); }, ExitCode::Usage,
                       {"[optim_parameters]", "is stored on the host",
                        "use sherd::AdamW, or leave optimizer_on_host"});
    test::expect_error([&] { model.publish(); }, ExitCode::Usage,
                       {"[publish] values of unit", "are stored on the host", "is a copy of them"});
    options.precision.full_precision_in_eval = true;
    test::expect_error([&] { fully_shard(test::make_net(), Mesh::shard(world), options); },
                       ExitCode::Usage,
                       {"masters that are stored on the host", "optimizer_on_host"});
    options.precision.full_precision_in_eval = false;
  });
  run_ranks_on_devices(1, [](const World& world) {
    set_pinned_limit(100);
    ShardOptions options{.precision = {.param_dtype = at::kBFloat16}};
    options.offload.optimizer_on_host = true;
    test::expect_error([&] { fully_shard(test::make_net(), Mesh::shard(world), options); },
                       ExitCode::OutOfMemory, {"bytes of the host could not be pinned for"});
    set_pinned_limit(0);
  });
  ShardOptions options{};
  options.offload.activations_on_host = true;
  test::expect_error([&] { fully_shard(test::make_net(), Mesh::shard(World::alone()), options); },
                     ExitCode::Usage, {"activations on the host", "checkpoint_activations"});
  options.offload.optimizer_on_host = true;
  test::expect_error([&] { fully_shard(test::make_net(), Mesh::shard(World::alone()), options); },
                     ExitCode::Usage,
                     {"is for ranks on other devices", "Offload::optimizer_folder"});
}

// The stream of updates: it waits for the one that computes, which steps are launched from.
int step_beside(AdamW& optimizer) {
  lose_wait(0, -1);
  optimizer.step();
  const std::vector<Wait> all = waits(0);
  const auto begins = std::find_if(all.begin(), all.end(), [](const Wait& wait) {
    return wait.stream != 0 && wait.waits_for == 0;
  });
  return begins == all.end() ? -1 : begins->stream;
}

// Units are gathered, and computed with, while others are still updated; nobody waits for the last.
TEST(OffloadToTheHost, ForwardBeginsBeforeAllIsUpdated) {
  set_seed(1);
  for (const int ranks : {1, 2}) {
    run_ranks_on_devices(ranks, [&](const World& world) {
      ShardOptions options{.precision = {.param_dtype = at::kBFloat16}};
      options.offload.optimizer_on_host = true;
      auto model = fully_shard(test::make_net(), Mesh::shard(world), options);
      const StreamsEndFirst streams_end_first(world);
      AdamW optimizer(model, {.lr = 1e-2});
      const at::Tensor x = test::make_example(0).x.to(world.device());
      for (int step = 0; step < 2; ++step) {
        model(x).sum().backward();
        static_cast<void>(clip_grad_norm(model, 1.0));
        if (step == 0 || world.rank() > 0) {
          optimizer.step();
        } else {
          static_cast<void>(take_host_waits(0));
          const int beside = step_beside(optimizer);
          lose_wait(0, -1);
          static_cast<void>(model(x));
          EXPECT_EQ(take_host_waits(0), std::vector<std::string>{});
          const std::vector<Wait> all = waits(0);
          const auto early = std::count_if(all.begin(), all.end(), [&](const Wait& wait) {
            return (wait.stream == 0) == (ranks == 1) && wait.waits_for == beside &&
                   wait.behind > 0;
          });
          EXPECT_EQ(early, 3);  // each of the units but the last
        }
        optimizer.zero_grad();
      }
      if (world.rank() > 0) {
        static_cast<void>(model(x));
      }
    });
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

// Where nothing is gathered from other ranks, what was copied to a slot is the gathered unit.
TEST(OffloadToTheHost, OneRankTrainsTheSame) {
  for (const size_t at : {0U, 1U, 2U, 5U, 6U, 7U}) {
    Scenario scenario = plain(scenarios()[at]);
    scenario.ranks = 1;
    SCOPED_TRACE(scenario.name);
    const Values expected = on_devices(scenario, 0);
    scenario.options.offload = all_on_host();
    for (const uint64_t seed : {0U, 1U, 2U, 3U}) {
      EXPECT_TRUE(are_equal(expected, on_devices(scenario, seed))) << "seed " << seed;
    }
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

// What callers hold, clip or let go of comes after the update.
TEST(OffloadToTheHost, UpdatesEndBeforeWhatTheyUseIsUsedOtherwise) {
  set_seed(1);
  const auto step_and = [](const std::function<void(ShardedModule&, AdamW&)>& before,
                           const std::function<void(ShardedModule&)>& after) {
    run_ranks_on_devices(1, [&](const World& world) {
      ShardOptions options{};  // fp32: values lie on the device, moments on the host
      options.offload.optimizer_on_host = true;
      auto model = fully_shard(test::make_net(), Mesh::shard(world), options);
      const StreamsEndFirst streams_end_first(world);
      AdamW optimizer(model, {.lr = 1e-2});
      model(test::make_example(0).x.to(world.device())).sum().backward();
      before(model, optimizer);
      static_cast<void>(clip_grad_norm(model, 0.1));
      optimizer.step();
      after(model);
    });
    EXPECT_EQ(take_faults(), std::vector<std::string>{});
  };
  std::vector<ParameterShard> held;
  step_and([&](ShardedModule& model, AdamW&) { held = model.parameter_shards(); },
           [&](ShardedModule&) {
             for (const ParameterShard& shard : std::exchange(held, {})) {
               static_cast<void>(shard.value.clone());
               shard.gradient.zero_();
             }
           });
  step_and([](ShardedModule&, AdamW&) {},
           [](ShardedModule& model) { static_cast<void>(clip_grad_norm(model, 0.1)); });
  step_and([](ShardedModule&, AdamW&) {}, [](ShardedModule& model) { model.zero_grad(); });
  step_and([](ShardedModule&, AdamW& optimizer) { optimizer.step(); },
           [](ShardedModule& model) { static_cast<void>(model.parameter_shards()); });
}

struct Held {
  int64_t peak_bytes = 0;
  int64_t on_host_bytes = 0;
};

// In steps of two micro-batches, which nothing of the device waits for after the first.
Held held_with_all_on_host(const World& world) {
  ShardOptions options{.precision = {.param_dtype = at::kBFloat16}};
  options.offload = all_on_host();
  auto model = fully_shard(test::make_net(), Mesh::shard(world), options);
  const StreamsEndFirst streams_end_first(world);
  AdamW optimizer(model, {.lr = 1e-2});
  const MemoryLedger& memory = model.memory();
  EXPECT_EQ(memory.sharded_state_bytes(), 0);
  EXPECT_GE(memory.on_host_bytes(), kBytesOnHost * 1000 / world.size());
  const at::Tensor x = test::make_example(0).x.to(world.device());
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      model(x).sum().backward();
    }
    optimizer.step();
    optimizer.zero_grad();
    if (world.rank() == 0) {
      const std::vector<std::string> waits = take_host_waits(0);
      EXPECT_TRUE(step == 0 || waits.empty()) << waits.front();
    }
  }
  EXPECT_EQ(memory.bytes(MemoryKind::GradientShard), 0);
  EXPECT_LE(memory.peak_bytes(), model.planned_peak_bytes({.count = 2}));
  return {memory.peak_bytes(), memory.on_host_bytes()};
}

// What rests on the host takes nothing of the device but what is gathered and worked with at a
// time, as a plan says without the device.
TEST(OffloadToTheHost, HoldsSlotsOfParametersAndGradients) {
  for (const int ranks : {1, 2}) {
    Held held;
    run_ranks_on_devices(ranks, [&](const World& world) {
      const Held mine = held_with_all_on_host(world);
      held = world.rank() == 0 ? mine : held;
    });
    const Held planned = held_with_all_on_host(
        World::fake({.size = ranks, .local_size = ranks, .device = c10::kCUDA}));
    EXPECT_EQ(held.peak_bytes, planned.peak_bytes);
    EXPECT_EQ(held.on_host_bytes, planned.on_host_bytes);
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

TEST(OffloadToTheHost, OfPartsThatCannotRestThereIsRefused) {
  const auto refused = [](const World& world, const Offload& offload,
                          const std::vector<std::string>& texts) {
    test::expect_error(
        [&] {
          static_cast<void>(
              fully_shard(test::make_net(), Mesh::shard(world), ShardOptions{.offload = offload}));
        },
        ExitCode::Usage, texts);
  };
  const World alone = World::alone();
  refused(alone, {.gradients_on_host = true},
          {"(Offload::gradients_on_host) is for ranks on other devices", "gradient_folder"});
  refused(alone, {.parameters_on_host = true},
          {"(Offload::parameters_on_host) is for ranks on other devices", "parameter_folder"});
  const World sharing = World::fake({.size = 2, .local_size = 2});
  refused(sharing, {.parameters_on_host = true},
          {"parameters cannot be stored on the host (Offload::parameters_on_host) where ranks "
           "exchange by nothing (fake ranks)",
           "give each rank a device of its own"});
  refused(sharing, {.gradient_folder = "/tmp", .gradients_on_host = true},
          {"is stored on the host (Offload::gradients_on_host) or on a disk (gradient_folder)"});
}

struct TwiceImpl : torch::nn::Module {
  explicit TwiceImpl(bool changes)
      : weight(register_module("weight",
                               torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(false)))),
        changes_in_place(changes) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = test::slot_linear(x, weight->weight, slot);
    const at::Tensor square = y * y;  // saves y
    return changes_in_place ? square + y.add_(1) : square + y;
  }
  torch::nn::Linear weight;
  bool changes_in_place;
  std::shared_ptr<void*> slot = std::make_shared<void*>(nullptr);
};
TORCH_MODULE(Twice);

struct TwiceNetImpl : torch::nn::Module {
  explicit TwiceNetImpl(bool changes) {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Unit<Twice>(changes)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) {
      x = block(x);
    }
    return x;
  }
  std::vector<Unit<Twice>> blocks;
};
TORCH_MODULE(TwiceNet);

// Each once, however many operators save it; what is changed in place after autograd has saved it
// is refused, as without offload.
TEST(OffloadToTheHost, MovesWhatUnitsSaveToTheHost) {
  run_ranks_on_devices(1, [](const World& world) {
    constexpr int64_t kRows = int64_t{1} << 15;  // a megabyte of fp32
    ShardOptions options{};
    options.offload.activations_on_host = true;
    TwiceNet net(false);
    auto model = fully_shard(net, Mesh::shard(world), options);
    const StreamsEndFirst streams_end_first(world);
    const at::Tensor x = at::ones({kRows, 8}).to(world.device());
    const at::Tensor loss = model(x).sum();
    EXPECT_EQ(model.memory().on_host_bytes(), 4 * 2 * (int64_t{2} << 20));  // x and y of each
    static_cast<void>(take_host_waits(0));
    loss.backward();
    EXPECT_EQ(take_host_waits(0), std::vector<std::string>{});
    EXPECT_EQ(take_faults(), std::vector<std::string>{});
    EXPECT_NE(*net->blocks[0]->slot, nullptr);  // the weight that was saved is known by it
    // What is small stays on the device.
    for (const int64_t rows : {kRows, int64_t{4}}) {
      auto changing = fully_shard(TwiceNet(true), Mesh::shard(world), options);
      const at::Tensor changed = changing(at::ones({rows, 8}).to(world.device())).sum();
      test::expect_error([&] { changed.backward(); }, ExitCode::Usage,
                         {"was changed in place after it had been used"});
    }
  });
  static_cast<void>(take_faults());  // the change itself
}

// Batches of many sizes: the blocks of all of them are at most twice what one had.
TEST(OffloadToTheHost, PinsAtMostTwiceWhatIsThereAtATime) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  run_ranks_on_devices(1, [](const World& world) {
    const auto ledger = std::make_shared<MemoryLedger>();
    detail::ActivationStore store(world.device(), ledger);
    const auto use = [&](int blocks, int64_t bytes) {
      std::vector<detail::ActivationStore::Block> lent;
      for (int i = 0; i < blocks; ++i) {
        lent.push_back(store.take(bytes));
      }
      for (auto& block : lent) {
        store.give(std::move(block), bytes);
      }
    };
    use(1, 40 * kMiB);
    use(2, 18 * kMiB);
    EXPECT_EQ(ledger->on_host_bytes(), 76 * kMiB);
    use(2, 8 * kMiB);
    EXPECT_EQ(ledger->on_host_bytes(), 52 * kMiB);  // without the largest, the longest unused
    use(2, 17 * kMiB);                              // by those of 18
    EXPECT_EQ(ledger->on_host_bytes(), 52 * kMiB);
    for (int64_t mebibytes = 2; mebibytes <= 40; mebibytes += 2) {
      use(1, mebibytes * kMiB);
      use(static_cast<int>(40 / mebibytes), mebibytes * kMiB);
      EXPECT_LE(ledger->on_host_bytes(), 80 * kMiB);
    }
  });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

Scenario with(const Offload& offload, size_t like, int ranks) {
  Scenario scenario = plain(scenarios()[like]);
  scenario.ranks = ranks;
  scenario.options.offload = offload;
  return scenario;
}

// A wait of one stream for another, taken away, is missed, for each pair of streams that has waits
// which order anything: among them those of the streams that copy. From a third of what `run` does
// on, which ends with what was found.
void expect_missed(const std::string& what, size_t least_pairs, const std::function<bool()>& run) {
  SCOPED_TRACE(what);
  lose_wait(0, -1);
  EXPECT_FALSE(run());
  std::map<std::pair<int, int>, std::vector<int>> by_streams;
  const std::vector<Wait> all = waits(0);
  for (size_t i = all.size() / 3; i < all.size(); ++i) {
    if (all[i].orders) {
      by_streams[{all[i].stream, all[i].waits_for}].push_back(static_cast<int>(i));
    }
  }
  EXPECT_GE(by_streams.size(), least_pairs);
  for (const auto& [streams, numbers] : by_streams) {
    EXPECT_TRUE(std::any_of(numbers.begin(), numbers.end(),
                            [&](int number) {
                              lose_wait(0, number);
                              return run();
                            }))
        << "stream " << streams.first << " need not wait for " << streams.second << ", as after "
        << all[static_cast<size_t>(numbers.front())].after;
  }
  lose_wait(0, -1);
}

TEST(OffloadToTheHost, MissesWaitsThatAreTakenAway) {
  const Offload parameters{.parameters_on_host = true};
  for (const Scenario& scenario :
       {with({.optimizer_on_host = true}, 2, 4), scenarios()[3], with(parameters, 0, 1),
        with(parameters, 0, 2), with({.gradients_on_host = true}, 0, 1)}) {
    const std::string parts = scenario.options.offload.parameters_on_host ? ", parameters" : "";
    expect_missed(scenario.name + parts + ", " + std::to_string(scenario.ranks), 5,
                  [&] { return is_missed(scenario); });
  }
}

// Storages that are written, added to and read in turns. Whether anything is wrong.
bool work_with_storages() {
  const c10::Device device(kDevice, 0);
  const auto ledger = std::make_shared<MemoryLedger>();
  const auto copies = std::make_shared<detail::CopyEngine>(device, ledger);
  copies->whole_slots().set_limit(1 << 20);
  const auto pinned = [&](int64_t numel) {
    return detail::pinned_storage(numel, at::kFloat, MemoryKind::GradientShard, ledger, device);
  };
  detail::HostStorage a(copies, pinned(100), /*has_slot=*/true);
  detail::HostStorage b(copies, pinned(100), /*has_slot=*/true);
  detail::HostStorage other_size(copies, pinned(200), /*has_slot=*/true);
  const auto add = [](detail::Storage& storage, double value, bool is_first = false) {
    storage.hold(is_first ? detail::Access::Overwrite : detail::Access::Write);
    at::Tensor tensor = storage.tensor();
    is_first ? tensor.fill_(value) : tensor.add_(value);
    storage.write_back();
  };
  for (int round = 0; round < 3; ++round) {
    add(a, 1, true);
    add(b, 10, true);
    add(other_size, 100, true);
    add(b, 10);  // where `a` was, which left before it
    add(b, 10);  // before it has left
    add(a, 1, true);
    {
      const auto in_use = b.read();
      b.tensor().mul_(0);  // of which the host hears nothing
    }
    add(a, 1);
    b.prefetch(nullptr, nullptr);  // to where it was
    for (detail::HostStorage* const storage : {&a, &b, &other_size}) {
      storage->drop();
    }
  }
  copies->synchronize();
  const auto all_are = [](detail::Storage& storage, double value) {
    return storage.tensor().eq(value).all().item<bool>();
  };
  EXPECT_LE(ledger->bytes(MemoryKind::OffloadSlot), 4 * (2 * 100 + 200));
  return !(all_are(a, 2) && all_are(b, 30) && all_are(other_size, 100)) || !take_faults().empty();
}

TEST(OffloadToTheHost, PiecesMissWaitsThatAreTakenAway) {
  register_device();
  for (const uint64_t seed : {1U, 2U, 3U}) {
    set_seed(seed);
    EXPECT_FALSE(work_with_storages());
  }
  set_seed(0);
  expect_missed("storages", 5, [] { return work_with_storages() || !take_faults().empty(); });
}

}  // namespace
}  // namespace sherd::fake
