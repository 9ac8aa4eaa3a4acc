// An exchange that passes everything through the host computes the bits of the host's own: what
// several ranks on one GPU run through.

#include <gtest/gtest.h>

#include "src/comm/communicators.h"
#include "tests/support/decorated_world.h"
#include "tests/support/parity.h"

namespace sherd::test {
namespace {

World staged_world(const World& world) {
  return decorated_world(world, [](std::unique_ptr<Communicator> host) {
    return detail::make_staged_communicator(std::move(host));
  });
}

void expect_equal_bits(const Setting& setting) {
  for (const Cut cut : {Cut{2, 3}, Cut{3, 2}, Cut{4, 1}}) {
    const Trace direct = train_sharded(cut, setting);
    const Difference d = difference(direct, train_sharded(cut, setting, staged_world));
    EXPECT_EQ(std::max({d.loss, d.norm, d.gradient, d.parameter}), 0)
        << name_of(setting.strategy) << ", " << cut.ranks << " ranks: " << d;
  }
}

TEST(Staged, HasTheBitsOfTheHostsExchange) {
  for (const Strategy strategy : kStrategies) {
    expect_equal_bits({.max_norm = 0.1, .strategy = strategy});
    expect_equal_bits({.bfloat16 = true, .strategy = strategy});
  }
}

TEST(Staged, HasThemWhereGradientsAccumulate) {
  for (const Strategy strategy : kStrategies) {
    expect_equal_bits({.strategy = strategy, .sync_last_only = true});
    expect_equal_bits({.strategy = strategy, .all_reduce_last_only = true});
  }
}

TEST(Staged, GoesOnAfterAnExceptionInBackward) {
  EXPECT_NO_THROW(run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(staged_world(world)));
    const Example example = make_example(world.rank());
    const auto step = [&](bool fails) {
      const at::Tensor loss = sum_of_errors(model(example.x), example.y);
      if (fails) {
        loss.register_hook(
            [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("out of luck"); });
      }
      loss.backward();
      return loss.item<double>();
    };
    const double first = step(false);
    model.zero_grad();
    EXPECT_THROW(step(true), std::runtime_error);
    model.zero_grad();
    EXPECT_EQ(step(false), first);
  }));
}

}  // namespace
}  // namespace sherd::test
