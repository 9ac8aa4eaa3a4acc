// Callbacks that throw on one rank, before a collective: every rank ends at once, with the reason
// and the rank, and the ranks can go on together.

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "sherd/error.h"
#include "sherd/fully_shard.h"
#include "sherd/state_dict.h"
#include "tests/support/buffered_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

constexpr std::chrono::seconds kTimeout(5);  // ranks that wait for the one that has thrown

// `call` fails on rank 1 alone, which lives on.
void expect_failure_of_rank_1(ExitCode code, const std::string& reason,
                              const std::function<void(World&)>& call) {
  const auto body = [&](World world) {
    expect_error([&] { call(world); }, code, {"rank 1: " + reason});
    world.barrier();
  };
  EXPECT_NO_THROW(run_ranks(3, body, kTimeout)) << reason;
}

void throw_on_rank_1(const World& world) {
  if (world.rank() == 1) {
    throw Error(ExitCode::InputMissing, "no table of names");
  }
}

void throw_other_on_rank_1(const World& world) {
  if (world.rank() == 1) {
    throw std::runtime_error("no memory of names");
  }
}

void expect_sharding_fails(ExitCode code, const std::string& reason,
                           const std::function<void(ShardOptions&, const World&)>& spoil) {
  expect_failure_of_rank_1(code, reason, [&](World& world) {
    ShardOptions options;
    spoil(options, world);
    static_cast<void>(fully_shard(make_net(), Mesh::shard(world), options));
  });
}

TEST(CallbackFailures, OfAPolicyEndFullyShardOnAllRanks) {
  expect_sharding_fails(ExitCode::InputMissing, "no table of names",
                        [](ShardOptions& options, const World& world) {
                          options.units = [&](const ModuleInfo&) -> std::optional<UnitOptions> {
                            throw_on_rank_1(world);
                            return std::nullopt;
                          };
                        });
  expect_sharding_fails(ExitCode::Internal, "no memory of names",
                        [](ShardOptions& options, const World& world) {
                          options.ignored = [&](const std::string&) {
                            throw_other_on_rank_1(world);
                            return false;
                          };
                        });
  expect_sharding_fails(ExitCode::InputMissing, "no table of names",
                        [](ShardOptions& options, const World& world) {
                          options.precision.param_dtype = at::kBFloat16;
                          options.precision.keeps_own_dtype = [&](const std::string&) {
                            throw_on_rank_1(world);
                            return false;
                          };
                        });
}

TEST(CallbackFailures, OfOptionsEndFullyShardOnAllRanks) {
  expect_sharding_fails(ExitCode::Usage, "[fully_shard] prefetch_depth is 0 to 8, got 9.",
                        [](ShardOptions& options, const World& world) {
                          options.prefetch_depth = world.rank() == 1 ? 9 : 1;
                        });
  expect_sharding_fails(ExitCode::Usage, "[fully_shard] forward_order names 'nobody'",
                        [](ShardOptions& options, const World& world) {
                          if (world.rank() == 1) {
                            options.forward_order = {"nobody"};
                          }
                        });
}

TEST(CallbackFailures, OfAStateWithoutValuesEndSyncModuleStatesOnAllRanks) {
  expect_failure_of_rank_1(
      ExitCode::Usage, "[sync_module_states] parameter 'input.weight' is on the meta device",
      [](World& world) {
        Net net = world.rank() == 1 ? on_meta([] { return make_net(); }) : make_net();
        sync_module_states(*net, world);
      });
}

TEST(CallbackFailures, OfAnInitFunctionEndInitializeOnAllRanks) {
  const auto fill = [](ParameterInit& init) { init.fill_constant(0.5); };
  const auto initialize_or_fail = [&](World& world, bool buffers) {
    auto model = fully_shard(make_buffered(3), Mesh::shard(world));
    const ParamInitFn failing = [&](ParameterInit& init) {
      throw_on_rank_1(world);
      init.fill_constant(0.5);
    };
    const auto again = [&] {
      buffers ? initialize(model, 1, fill, failing) : initialize(model, 1, failing, fill);
    };
    EXPECT_THROW(again(), Error);
    initialize(model, 1, fill, fill);  // all ranks wait for each other at the same place
    again();
  };
  for (const bool buffers : {false, true}) {
    expect_failure_of_rank_1(ExitCode::InputMissing, "no table of names",
                             [&](World& world) { initialize_or_fail(world, buffers); });
  }
}

}  // namespace
}  // namespace sherd::test
