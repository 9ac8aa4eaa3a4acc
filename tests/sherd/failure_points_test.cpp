// Each public call fails at each of its collectives and each allocation of buffers and tensors in
// turn, on all ranks at once and on one alone. What is thrown is an Error, unless a module of the
// caller's threw it. Afterwards the state is as it was, or everything but a load says that it is
// torn; once loaded, training has the bits of a fresh model. Whoever waits for a rank that has
// failed is told its name.

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include <ATen/ops/equal.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/safetensors.h"
#include "sherd/state_dict.h"
#include "tests/support/meshes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/temp_folder.h"

namespace {

// Of this thread: how many more buffers, or tensors, are allocated until one is refused; 0 where
// none is.
thread_local int refuses_mapping_in = 0;
thread_local int refuses_tensor_in = 0;

}  // namespace

// The engine's buffers are anonymous mappings; LibTorch and the C library have other ways.
// NOLINTNEXTLINE: the name and the parameters are the C library's
extern "C" void* mmap(void* address, size_t length, int protection, int flags, int file,
                      off_t offset) noexcept {
  if (file == -1 && flags == (MAP_PRIVATE | MAP_ANONYMOUS) && refuses_mapping_in > 0 &&
      --refuses_mapping_in == 0) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  // NOLINTNEXTLINE: what the system call returns is an address
  return reinterpret_cast<void*>(
      ::syscall(SYS_mmap, address, length, protection, flags, file, offset));
}

namespace sherd::test {
namespace {

/// LibTorch's allocator, which says what it would say.
class RefusingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(refuses_tensor_in == 0 || --refuses_tensor_in > 0,
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes,
                " bytes. Error code 12 (Cannot allocate memory)");
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override {
    return c10::GetDefaultCPUAllocator()->raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

constexpr int kRanks = 2;
constexpr std::chrono::seconds kTimeout{20};
constexpr std::chrono::seconds kTimeoutOfOne{2};  // where one rank fails, some are told by it
constexpr int kMostPoints = 400;

/// Where a call fails.
enum class At { Collective, Wait, Buffer, Tensor };

/// Fails the n-th collective from now, before it begins or where its result is waited for.
class Faults final : public CollectiveObserver {
 public:
  void arm(At at, int number) {
    at_ = at;
    countdown() = number;
  }
  /// Whether it has failed.
  bool disarm() { return std::exchange(countdown(), 0) == 0; }
  void started(const Collective& collective) override { fail(At::Collective, collective); }
  void waiting(const Collective& collective) override { fail(At::Wait, collective); }

 private:
  void fail(At at, const Collective& collective) {
    if (at == at_ && countdown_ > 0 && --countdown_ == 0) {
      throw Error(ExitCode::OutOfMemory, std::string("a fault in ") +
                                             name_of(collective.operation) + " of '" +
                                             collective.unit + "'");
    }
  }
  [[nodiscard]] int& countdown() {
    return at_ == At::Buffer   ? refuses_mapping_in
           : at_ == At::Tensor ? refuses_tensor_in
                               : countdown_;
  }
  At at_ = At::Collective;
  int countdown_ = 0;
};

struct Setting {
  Strategy strategy = Strategy::FullShard;
  bool bfloat16 = false;
  bool in_backward = false;  ///< the optimizer
  [[nodiscard]] ShardOptions options() const {
    ShardOptions options{.strategy = strategy};
    if (bfloat16) {
      options.precision.param_dtype = at::kBFloat16;
    }
    return options;
  }
};

/// What one rank works with.
struct Session {
  Session(World of_rank, const Setting& how, std::string at)
      : world(std::move(of_rank)), setting(how), folder(std::move(at)) {
    world.set_observer(faults);
  }
  void build() {
    net = make_net();
    model.emplace(fully_shard(net, mesh_for(world, setting.strategy), setting.options()));
    optimizer.emplace(*model, AdamWOptions{.lr = 1e-2}, std::vector<ParamGroup>{},
                      AdamWMode{.in_backward = setting.in_backward});
  }
  [[nodiscard]] at::Tensor loss(int number) {
    const Example example = make_example(number * kRanks + world.rank());
    return sum_of_errors((*model)(example.x), example.y);
  }
  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      loss(step).backward();
      if (!setting.in_backward) {
        clip_grad_norm(*model, 1.0);
      }
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  /// Values and moments that this rank holds.
  [[nodiscard]] std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> tensors;
    for (const ParameterShard& shard : model->parameter_shards()) {
      tensors.push_back(shard.value.clone());
    }
    for (const MomentShard& moment : optimizer->moments()) {
      tensors.push_back(moment.exp_avg.clone());
      tensors.push_back(moment.exp_avg_sq.clone());
    }
    return tensors;
  }

  World world;
  Setting setting;
  std::string folder;
  std::shared_ptr<Faults> faults = std::make_shared<Faults>();
  Net net{nullptr};
  std::optional<Sharded<Net>> model = {};
  std::optional<AdamW> optimizer = {};
  at::Tensor kept = {};
  StateDict dict{};
  OptimStateDict optim_dict{};
};

/// A public call, and what comes before it.
struct Call {
  const char* name;
  std::function<void(Session&)> prepare;
  std::function<void(Session&)> call;
  bool runs_modules = false;         ///< of the caller's, which throw what they like
  bool ranks_allocate_alike = true;  ///< else no tensor is refused on all of them at once
};

void check_same(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& actual,
                const std::string& what) {
  TORCH_CHECK(expected.size() == actual.size(), what, ": another number of tensors");
  for (size_t i = 0; i < expected.size(); ++i) {
    TORCH_CHECK(at::equal(expected[i], actual[i]), what, ": tensor ", i, " differs");
  }
}

/// What `call` says where it throws; else nothing. `is_own`: whether it is the library's to say.
template <class Fn>
std::optional<std::string> error_of(const Fn& call, bool is_own = false) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    TORCH_CHECK(!is_own, "another exception than Error: ", error.what());
    return error.what();
  }
  return std::nullopt;
}

// Says how much memory was refused, for what, and where in the step.
void check_tells_of_memory(const Call& call, const std::string& error) {
  EXPECT_THAT(error, testing::ContainsRegex("[1-9][0-9]* bytes of [a-z]")) << call.name;
  EXPECT_THAT(error, testing::HasSubstr(" of unit '")) << call.name;
  EXPECT_THAT(error, testing::ContainsRegex("on rank [01] of 2")) << call.name;
}

// The state is as it was, or every use of it is refused with the same words.
void check_whole_or_torn(Session& session, const std::vector<at::Tensor>& before,
                         const std::string& what) {
  const auto refused = error_of([&] {
    const at::NoGradGuard no_grad;
    static_cast<void>(session.loss(0));
  });
  if (!refused) {
    return check_same(before, session.state(), what + ", state");
  }
  TORCH_CHECK(refused->find(" torn: ") != std::string::npos, what, ", forward: ", *refused);
  const std::string why = refused->substr(refused->find(" torn: "));
  const std::vector<std::function<void()>> uses = {
      [&] { session.loss(0).backward(); },
      [&] { session.optimizer->step(); },
      [&] { static_cast<void>(full_state_dict(*session.model)); },
      [&] { static_cast<void>(full_optim_state_dict(*session.model, *session.optimizer)); },
      [&] { save_checkpoint(*session.model, *session.optimizer, session.folder + "/torn", ""); },
      [&] { with_full_parameters(*session.model, "", [] {}); },
      [&] { static_cast<void>(optim_parameters(*session.model)); }};
  for (size_t i = 0; i < uses.size(); ++i) {
    const auto said = error_of(uses[i]);
    TORCH_CHECK(said && said->find(why) != std::string::npos, what, ", use ", i, ": ",
                said.value_or("no error"));
  }
}

using Outcome = std::vector<std::vector<at::Tensor>>;  // by rank

// As a Hugging Face folder has it.
void write_weights(const std::string& folder, const StateDict& state) {
  std::filesystem::create_directories(folder);
  std::vector<SafetensorsSpec> specs;
  for (const auto& item : state) {
    specs.push_back({item.key(), item.value().scalar_type(), item.value().sizes().vec()});
  }
  SafetensorsWriter writer(folder + "/model.safetensors", specs);
  for (const auto& item : state) {
    const at::Tensor& values = item.value();
    writer.write(item.key(), values.const_data_ptr(), static_cast<size_t>(values.nbytes()));
  }
  writer.finish();
}

// A checkpoint after one step, and what two more steps from there lead to.
Outcome save_and_go_on(const Setting& setting, const std::string& folder) {
  Outcome outcome(kRanks);
  run_ranks(kRanks, [&](World world) {
    Session session(std::move(world), setting, folder);
    session.build();
    session.train(1);
    save_checkpoint(*session.model, *session.optimizer, folder + "/saved", "");
    if (const StateDict state = full_state_dict(*session.model); session.world.rank() == 0) {
      write_weights(folder + "/weights", state);
    }
    session.world.barrier();
    Session fresh(session.world, setting, folder);
    fresh.build();
    load_checkpoint(*fresh.model, *fresh.optimizer, folder + "/saved");
    fresh.train(2);
    outcome[static_cast<size_t>(fresh.world.rank())] = fresh.state();
  });
  return outcome;
}

void start(Session& session) {
  session.build();
  load_checkpoint(*session.model, *session.optimizer, session.folder + "/saved");
}

void check_goes_on(Session& session, const Outcome& expected, const std::string& what) {
  load_checkpoint(*session.model, *session.optimizer, session.folder + "/saved");
  session.train(2);
  check_same(expected[static_cast<size_t>(session.world.rank())], session.state(),
             what + ", after a load");
}

// Returns whether the call has so many points.
bool fail_on_all(const Call& call, const Setting& setting, At at, int number,
                 const std::string& folder, const Outcome& expected) {
  bool reached = false;
  run_ranks(
      kRanks,
      [&](World world) {
        const std::string what = std::string(call.name) + " fails on all ranks at point " +
                                 std::to_string(number) + " of kind " +
                                 std::to_string(static_cast<int>(at));
        Session session(std::move(world), setting, folder);
        start(session);
        call.prepare(session);
        const std::vector<at::Tensor> before = session.state();
        session.faults->arm(at, number);
        const auto error = error_of([&] { call.call(session); },
                                    /*is_own=*/at != At::Tensor || !call.runs_modules);
        const bool failed = session.faults->disarm();
        if (session.world.rank() == 0) {
          reached = failed;
        }
        if (failed && at == At::Buffer) {
          check_tells_of_memory(call, error.value_or(""));
        }
        if (!failed) {
          TORCH_CHECK(!error, what, ": ", *error);
          return;
        }
        session.kept = at::Tensor();
        check_whole_or_torn(session, before, what);
        check_goes_on(session, expected, what);
      },
      kTimeout);
  return reached;
}

// The second rank fails and leaves, as a process that ends by the exception would.
bool fail_on_one(const Call& call, const Setting& setting, At at, int number,
                 const std::string& folder) {
  bool reached = false;
  std::optional<std::string> told;
  const auto begin = std::chrono::steady_clock::now();
  run_ranks(
      kRanks,
      [&](World world) {
        const bool fails = world.rank() == 1;
        Session session(std::move(world), setting, folder);
        start(session);
        call.prepare(session);
        if (fails) {
          session.faults->arm(at, number);
        }
        const auto error = error_of([&] { call.call(session); },
                                    /*is_own=*/at != At::Tensor || !call.runs_modules);
        if (fails) {
          reached = session.faults->disarm();
        } else {
          told = error ? error : error_of([&] { session.world.barrier(); });
        }
      },
      kTimeoutOfOne);
  const std::string what =
      std::string(call.name) + " fails on rank 1 alone at point " + std::to_string(number);
  if (reached) {
    EXPECT_TRUE(told) << what << ": nobody was told";
    EXPECT_THAT(told.value_or(""),
                testing::AnyOf(testing::HasSubstr("rank 1"), testing::HasSubstr("1 (has left)")))
        << what;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kTimeout) << what;
  return reached;
}

void nothing(Session& /*session*/) {}

void backward_before(Session& session) {
  session.loss(3).backward();
}

// So that what is loaded is not what is there.
void train_before(Session& session) {
  session.train(1);
}

std::vector<Call> calls_with_an_optimizer_in_backward() {
  return {
      {"backward", [](Session& s) { s.kept = s.loss(5); }, [](Session& s) { s.kept.backward(); },
       /*runs_modules=*/true},
      {"AdamW::step", backward_before, [](Session& s) { s.optimizer->step(); }}};
}

std::vector<Call> calls() {
  return {
      {"forward", nothing, [](Session& s) { s.kept = s.loss(5); }, /*runs_modules=*/true},
      {"evaluation", nothing,
       [](Session& s) {
         const at::NoGradGuard no_grad;
         static_cast<void>(s.loss(5));
       },
       /*runs_modules=*/true},
      {"backward", [](Session& s) { s.kept = s.loss(5); }, [](Session& s) { s.kept.backward(); },
       /*runs_modules=*/true},
      {"accumulation",
       [](Session& s) {
         s.model->set_requires_gradient_sync(false);
         s.loss(4).backward();
         s.model->set_requires_gradient_sync(true);
         s.kept = s.loss(5);
       },
       [](Session& s) { s.kept.backward(); }, /*runs_modules=*/true},
      {"clip_grad_norm", backward_before, [](Session& s) { clip_grad_norm(*s.model, 0.1); }},
      {"AdamW::step", backward_before, [](Session& s) { s.optimizer->step(); }},
      {"zero_grad", backward_before, [](Session& s) { s.optimizer->zero_grad(); }},
      {"GradScaler::step", backward_before,
       [](Session& s) { GradScaler(*s.model, {.init_scale = 1}).step(*s.optimizer); }},
      {"publish", nothing, [](Session& s) { s.model->publish(); }},
      {"unshard", nothing, [](Session& s) { s.model->unshard(); }},
      {"optim_parameters", backward_before,
       [](Session& s) { static_cast<void>(optim_parameters(*s.model)); }},
      {"full_state_dict", nothing, [](Session& s) { static_cast<void>(full_state_dict(*s.model)); },
       /*runs_modules=*/false, /*ranks_allocate_alike=*/false},
      {"full_optim_state_dict", nothing,
       [](Session& s) { static_cast<void>(full_optim_state_dict(*s.model, *s.optimizer)); },
       /*runs_modules=*/false, /*ranks_allocate_alike=*/false},
      {"with_full_parameters", nothing,
       [](Session& s) { with_full_parameters(*s.model, "", [] {}); }},
      {"with_full_parameters, written back", nothing,
       [](Session& s) { with_full_parameters(*s.model, "", [] {}, {.writeback = true}); }},
      {"save_checkpoint", nothing,
       [](Session& s) { save_checkpoint(*s.model, *s.optimizer, s.folder + "/other", ""); }},
      {"load_checkpoint", train_before,
       [](Session& s) { load_checkpoint(*s.model, *s.optimizer, s.folder + "/saved"); }},
      {"load_full_state_dict",
       [](Session& s) {
         s.dict = full_state_dict(*s.model);
         train_before(s);
       },
       [](Session& s) { load_full_state_dict(*s.model, s.dict); }, /*runs_modules=*/false,
       /*ranks_allocate_alike=*/false},
      {"load_full_optim_state_dict",
       [](Session& s) {
         s.optim_dict = full_optim_state_dict(*s.model, *s.optimizer);
         train_before(s);
       },
       [](Session& s) { load_full_optim_state_dict(*s.model, *s.optimizer, s.optim_dict); },
       /*runs_modules=*/false, /*ranks_allocate_alike=*/false},
      {"load_sharded_state_dict", nothing,
       [](Session& s) { load_sharded_state_dict(*s.model, s.model->parameter_shards()); }},
      {"load_safetensors", train_before,
       [](Session& s) { load_safetensors(*s.model, s.folder + "/weights"); }},
      {"load_from_rank0",
       [](Session& s) {
         s.dict = full_state_dict(*s.model);
         train_before(s);
       },
       [](Session& s) {
         load_from_rank0(*s.model, [&](const std::string& name) { return s.dict[name]; });
       },
       /*runs_modules=*/false, /*ranks_allocate_alike=*/false},
      {"initialize", nothing,
       [](Session& s) {
         initialize(*s.model, 3, [](ParameterInit& init) { init.fill_normal(0, 1); });
       }},
      {"fully_shard", nothing,
       [](Session& s) {
         auto other =
             fully_shard(make_net(), mesh_for(s.world, s.setting.strategy), s.setting.options());
         AdamW optimizer(other);
       },
       /*runs_modules=*/true},
      {"sync_module_states", nothing,
       [](Session& s) {
         Net net = make_net();
         sync_module_states(*net, s.world);
       },
       /*runs_modules=*/true, /*ranks_allocate_alike=*/false},
  };
}

// What differs from the calls above in one thing, and not by the setting.
std::vector<Call> variants() {
  return {
      {"World::subset", nothing,
       [](Session& s) {
         World pair = s.world.subset({.first = 0, .stride = 1, .size = kRanks});
         AdamW optimizer(fully_shard(make_net(), Mesh::shard(pair)));
       },
       /*runs_modules=*/true},
      {"backward with an all-reduce hook",
       [](Session& s) {
         s.model->set_all_reduce_hook([](const std::string& /*unit*/, const at::Tensor& shard) {
           at::Tensor gradient = shard;
           gradient.mul_(1);
         });
         s.kept = s.loss(5);
       },
       [](Session& s) {
         s.kept.backward();
         s.model->set_all_reduce_hook({});
       },
       /*runs_modules=*/true},
      {"for_each_full_parameter", nothing,
       [](Session& s) {
         for_each_full_parameter(*s.model, [](const FullParameter& /*parameter*/) {});
       },
       /*runs_modules=*/false, /*ranks_allocate_alike=*/false},
      {"for_each_full_optim_state", nothing,
       [](Session& s) {
         for_each_full_optim_state(*s.model, *s.optimizer,
                                   [](const std::string& /*name*/, const OptimState& /*state*/) {});
       },
       /*runs_modules=*/false, /*ranks_allocate_alike=*/false},
      {"save_checkpoint without an optimizer", nothing,
       [](Session& s) { save_checkpoint(*s.model, s.folder + "/alone", ""); }},
      {"load_checkpoint without an optimizer", train_before,
       [](Session& s) { load_checkpoint(*s.model, s.folder + "/saved"); }},
  };
}

void fail_everywhere(const Setting& setting, const std::vector<Call>& all = calls()) {
  static RefusingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
  const TempFolder temp;
  const std::string folder = temp.path().string();
  const Outcome expected = save_and_go_on(setting, folder);
  std::vector<At> kinds = {At::Collective, At::Wait, At::Buffer};
  if (setting.bfloat16) {  // tensors of the engine's own: casts, besides those of every setting
    kinds.push_back(At::Tensor);
  }
  for (const Call& call : all) {
    int points = 0;
    for (const At at : kinds) {
      for (int number = 1; number < kMostPoints; ++number, ++points) {
        const bool alone_only = at == At::Tensor && !call.ranks_allocate_alike;
        bool reached = alone_only;
        if (!alone_only) {
          EXPECT_NO_THROW(reached = fail_on_all(call, setting, at, number, folder, expected));
        }
        const bool alone = reached && fail_on_one(call, setting, at, number, folder);
        EXPECT_TRUE(alone == reached || alone_only) << call.name;
        if (!alone) {
          break;
        }
      }
    }
    std::printf("%-36s %d points\n", call.name, points);
  }
}

TEST(FailurePoints, OfAShardedModel) {
  fail_everywhere({});
}

TEST(FailurePoints, OfAShardedModelInBf16) {
  fail_everywhere({.bfloat16 = true});
}

TEST(FailurePoints, OfVariants) {
  fail_everywhere({}, variants());
}

TEST(FailurePoints, OfAReplicatedModel) {
  fail_everywhere({.strategy = Strategy::NoShard});
}

TEST(FailurePoints, OfAnOptimizerInBackward) {
  fail_everywhere({.in_backward = true}, calls_with_an_optimizer_in_backward());
}

}  // namespace
}  // namespace sherd::test
