// What a step costs in collectives and in bytes, exactly: each strategy, way of accumulating,
// world and option.

#include <sstream>

#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "src/step/step.h"
#include "tests/support/meshes.h"
#include "tests/support/odd_nets.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

using Counts = Communicator::Counts;

constexpr int kBlocks = 3;

enum class WayToAccumulate { ReduceEachTime, WithoutSync, WithinTheRow, KeepParameters };

struct Step {
  WayToAccumulate accumulation = WayToAccumulate::ReduceEachTime;
  int micro_batches = 1;
  ShardOptions options = {};
};

std::ostream& operator<<(std::ostream& out, const Step& step) {
  const ShardOptions& o = step.options;
  return out << name_of(o.strategy) << ", accumulation " << static_cast<int>(step.accumulation)
             << ", " << step.micro_batches << " micro-batches, depth " << o.prefetch_depth
             << ", backward_prefetch " << static_cast<int>(o.backward_prefetch) << ", n "
             << o.reshard_after_forward_size << (o.precision.param_dtype ? ", bf16" : "");
}

std::ostream& operator<<(std::ostream& out, const Counts& c) {
  return out << c.gathers << " gathers, " << c.reductions << " reductions, " << c.replications
             << " replications, " << c.all_reduces << " all-reduces, " << c.bytes_sent << " bytes";
}

Counts difference(const Counts& a, const Counts& b) {
  return {a.gathers - b.gathers, a.reductions - b.reductions, a.replications - b.replications,
          a.all_reduces - b.all_reduces, a.bytes_sent - b.bytes_sent};
}

void check_equal(const Counts& expected, const Counts& actual, const std::string& what) {
  std::ostringstream text;
  text << what << ": expected " << expected << "; got " << actual;
  const Counts off = difference(expected, actual);
  TORCH_CHECK(off.gathers == 0 && off.reductions == 0 && off.replications == 0 &&
                  off.all_reduces == 0 && off.bytes_sent == 0,
              text.str());
}

/// Whether a unit is freed between forward and backward. The root never is.
bool reshards_after_forward(const detail::UnitState& unit, const ShardOptions& options) {
  const bool zero3 =
      options.strategy == Strategy::FullShard || options.strategy == Strategy::HybridShard;
  return zero3 && !unit.is_root() && options.reshard_after_forward_size != 1;
}

/// The collectives of one segment in a step, and their bytes, from its layout. `rows` ranks share
/// it; `replicas` ranks hold the same piece.
struct SegmentCost {
  const detail::SegmentLayout& layout;
  const Step& step;
  bool gathered_twice;
  int64_t replicas;
  bool in_place;

  [[nodiscard]] int64_t rows() const { return layout.world_size; }
  [[nodiscard]] int64_t element() const {
    return static_cast<int64_t>(c10::elementSize(layout.dtype));
  }
  [[nodiscard]] bool is(WayToAccumulate kind) const { return step.accumulation == kind; }

  // Each forward, and each backward unless it was kept. KeepParameters saves the forward of every
  // micro-batch but the first.
  [[nodiscard]] int64_t gathers() const {
    const int64_t m = step.micro_batches;
    const int64_t in_forward = is(WayToAccumulate::KeepParameters) ? 1 : m;
    return rows() == 1 ? 0 : in_forward + (gathered_twice ? m : 0);
  }
  // All but the first may come from a smaller group.
  [[nodiscard]] int64_t gathered_bytes() const {
    if (in_place) {
      return 0;
    }
    const int64_t n = step.options.reshard_after_forward_size;
    const int64_t whole = layout.numel() * element();
    const bool smaller = gathered_twice && n > 1 && n < rows();
    const int64_t in_small_group = smaller ? gathers() - 1 : 0;
    const int64_t in_rows = gathers() - in_small_group;
    return in_rows * (whole / rows() * (rows() - 1)) +
           (smaller ? in_small_group * (whole / n * (n - 1)) : 0);
  }
  [[nodiscard]] int64_t reductions() const {
    const int64_t each = is(WayToAccumulate::WithoutSync) ? 1 : step.micro_batches;
    return rows() == 1 || !layout.trainable ? 0 : each;
  }
  // In the dtype of the gradients; the fp32 sum of several micro-batches stays fp32.
  [[nodiscard]] int64_t reduced_bytes() const {
    const bool summed = is(WayToAccumulate::WithoutSync) && step.micro_batches > 1;
    return reductions() * layout.shard_numel * (summed ? 4 : element()) * (rows() - 1);
  }
  [[nodiscard]] int64_t replications() const {
    const bool each = is(WayToAccumulate::ReduceEachTime) || is(WayToAccumulate::KeepParameters);
    return replicas == 1 || !layout.trainable ? 0 : each ? step.micro_batches : 1;
  }
  // A part of the sum comes from each replica, and goes to each unless it is there already.
  [[nodiscard]] int64_t replicated_bytes() const {
    return replications() * (in_place ? 1 : 2) * (layout.shard_numel / replicas) * 4 *
           (replicas - 1);
  }
};

Counts expected_counts(const detail::Model& sharded, const Step& step, int64_t rows,
                       int64_t replicas, bool in_place = false) {
  Counts counts;
  counts.all_reduces = rows > 1 ? 1 : 0;  // of the gradient norm
  for (const auto& unit : sharded.units) {
    for (const auto& segment : unit->segments()) {
      const SegmentCost cost{segment->layout(), step, reshards_after_forward(*unit, step.options),
                             replicas, in_place};
      counts.gathers += cost.gathers();
      counts.reductions += cost.reductions();
      counts.replications += cost.replications();
      counts.bytes_sent += cost.gathered_bytes() + cost.reduced_bytes() + cost.replicated_bytes();
    }
  }
  return counts;
}

/// Throws unless each of two steps costs exactly what the formulas say.
void check_steps(const World& world, const Step& step, bool in_place = false) {
  const int rows = shard_size_for(world.size(), step.options.strategy);
  auto model = fully_shard(make_net(kBlocks), mesh_for(world, step.options.strategy), step.options);
  model.set_reshard_after_backward(step.accumulation != WayToAccumulate::KeepParameters);
  AdamW optimizer(model);
  const Counts expected =
      expected_counts(detail::engine_of(model).model, step, rows, world.size() / rows, in_place);
  for (int number = 0; number < 2; ++number) {  // a first one, and one whose order is known
    const Counts before = model.counts();
    for (int micro = 0; micro < step.micro_batches; ++micro) {
      const bool last = micro == step.micro_batches - 1;
      model.set_requires_gradient_sync(last || step.accumulation != WayToAccumulate::WithoutSync);
      model.set_requires_all_reduce(last || step.accumulation != WayToAccumulate::WithinTheRow);
      model(make_example(micro).x).sum().backward();
    }
    clip_grad_norm(model, 1.0);
    optimizer.step();
    optimizer.zero_grad();
    std::ostringstream what;
    what << world.size() << " ranks, " << step << ", step " << number;
    check_equal(expected, difference(model.counts(), before), what.str());
    check_equal(world.size() == 1 ? Counts{} : expected, expected, "a world of one sends nothing");
  }
}

std::vector<Step> steps() {
  std::vector<Step> all;
  for (const Strategy strategy : kStrategies) {
    for (const auto accumulation :
         {WayToAccumulate::ReduceEachTime, WayToAccumulate::WithoutSync,
          WayToAccumulate::WithinTheRow, WayToAccumulate::KeepParameters}) {
      all.push_back({accumulation, 1, {.strategy = strategy}});
      all.push_back(
          {accumulation, 3, {.strategy = strategy, .precision = {.param_dtype = at::kBFloat16}}});
    }
  }
  return all;
}

TEST(Collectives, OfEachStrategyAndWayOfAccumulating) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Step& step : steps()) {
      EXPECT_NO_THROW(run_ranks(ranks, [&](World world) { check_steps(world, step); }));
    }
  }
}

TEST(Collectives, AreTheSameOverProcesses) {
  for (const Transport transport : kTransports) {
    const bool in_place = transport == Transport::SharedMemory;
    for (const int ranks : {2, 4}) {
      const auto statuses = run_processes_over(transport, ranks, [&](World world) {
        for (const Step& step : steps()) {
          if (step.micro_batches == 3) {
            check_steps(world, step, in_place);
          }
        }
        if (ranks == 4) {
          check_steps(world, {.options = {.reshard_after_forward_size = 2}}, in_place);
        }
      });
      EXPECT_EQ(statuses, std::vector<int>(static_cast<size_t>(ranks), 0));
    }
  }
}

TEST(Collectives, OfASmallerGroupAfterForward) {
  for (const int size : {1, 2, 4}) {
    for (const int micro_batches : {1, 3}) {
      const Step step{.micro_batches = micro_batches,
                      .options = {.reshard_after_forward_size = size}};
      EXPECT_NO_THROW(run_ranks(4, [&](World world) { check_steps(world, step); }));
    }
  }
}

TEST(Collectives, DoNotDependOnPrefetching) {
  for (const auto prefetch : {BackwardPrefetch::Pre, BackwardPrefetch::Post}) {
    for (const int depth : {0, 2, 8}) {
      for (const Strategy strategy : {Strategy::FullShard, Strategy::HybridShardGradOp}) {
        const Step step{
            .micro_batches = 3,
            .options = {
                .strategy = strategy, .prefetch_depth = depth, .backward_prefetch = prefetch}};
        EXPECT_NO_THROW(run_ranks(4, [&](World world) { check_steps(world, step); }));
      }
    }
  }
}

TEST(Collectives, OfCheckpointedActivationsAreThoseWithout) {
  for (const Strategy strategy : kStrategies) {
    for (const int micro_batches : {1, 3}) {
      const Step step{
          .micro_batches = micro_batches,
          .options = {.strategy = strategy,
                      .units = unit_policy::every_unit({.checkpoint_activations = true})}};
      EXPECT_NO_THROW(run_ranks(4, [&](World world) { check_steps(world, step); }));
    }
  }
}

// What each unit of its own says stands above the strategy.
TEST(Collectives, OfUnitsThatReshardOnTheirOwnTerms) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp}) {
    run_ranks(2, [&](World world) {
      const UnitPolicy policy = [](const ModuleInfo& info) -> std::optional<UnitOptions> {
        if (!info.is_unit) {
          return std::nullopt;
        }
        return UnitOptions{.reshard_after_forward = info.name == "block1"};
      };
      auto model =
          fully_shard(make_net(), Mesh::shard(world), {.strategy = strategy, .units = policy});
      for (int step = 0; step < 3; ++step) {
        const Counts before = model.counts();
        model(make_example(step).x).sum().backward();
        EXPECT_EQ(model.counts().gathers - before.gathers, 1 + 1 + 2 + 1);
        EXPECT_EQ(model.counts().reductions - before.reductions, 1 + 3);
      }
    });
  }
}

// Only what is trained is reduced: the biases, in a segment of their own.
TEST(Collectives, OfFrozenSegmentsAreGathersAlone) {
  for (const int ranks : {2, 3, 4}) {
    for (const Strategy strategy : kStrategies) {
      EXPECT_NO_THROW(run_ranks(ranks, [&](World world) {
        const int rows = shard_size_for(ranks, strategy);
        const Step step{.options = {.strategy = strategy}};
        auto net = make_net();
        for (const auto& item : net->named_parameters()) {
          item.value().requires_grad_(item.key().ends_with("bias"));
        }
        auto model = fully_shard(net, mesh_for(world, strategy), step.options);
        const Counts before = model.counts();
        model(make_example(1).x).sum().backward();
        Counts expected = expected_counts(detail::engine_of(model).model, step, rows, ranks / rows);
        expected.all_reduces = 0;
        check_equal(expected, difference(model.counts(), before), name_of(strategy));
        TORCH_CHECK(expected.reductions == (rows > 1 ? 4 : 0), "four units, one segment each");
      }));
    }
  }
}

TEST(Collectives, ForwardAloneGathersEachUnitOnce) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      auto model = fully_shard(make_net(), mesh_for(world, strategy), {.strategy = strategy});
      const Counts before = model.counts();
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 3; ++i) {
        model(make_example(i).x);
      }
      const bool gathers = shard_size_for(4, strategy) > 1;
      EXPECT_EQ(model.counts().gathers - before.gathers, gathers ? 3 * 4 : 0);
      EXPECT_EQ(model.counts().reductions + model.counts().replications, 0);
    });
  }
}

// A unit that runs several times in a forward is gathered for each, but only once for all of its
// backwards, and reduced once.
TEST(Collectives, OfAUnitThatRunsTwice) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(StackNet(), Mesh::shard(world));
    for (int step = 0; step < 3; ++step) {
      const Counts before = model.counts();
      model(odd_input(1), std::vector<size_t>{0, 1, 0, 2}).sum().backward();
      EXPECT_EQ(model.counts().gathers - before.gathers, 4 + 3);
      EXPECT_EQ(model.counts().reductions - before.reductions, 3);
    }
  });
}

}  // namespace
}  // namespace sherd::test
