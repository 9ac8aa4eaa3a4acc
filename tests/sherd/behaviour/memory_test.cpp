// The engine's memory limits, in bytes, and what a step costs in collectives.

#include <numeric>

#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/slot_linear.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

constexpr int64_t kWidth = 8;

struct MiddleImpl : torch::nn::Module {
  explicit MiddleImpl(int64_t inner)
      : up(register_module("up", torch::nn::Linear(kWidth, inner))),
        down(register_module("down", torch::nn::Linear(inner, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(at::tanh(up(x))); }
  torch::nn::Linear up;
  torch::nn::Linear down;
};
TORCH_MODULE(Middle);

struct VariedNetImpl : torch::nn::Module {
  VariedNetImpl(const std::vector<int64_t>& inner, int64_t root_width)
      : input(register_module("input", torch::nn::Linear(5, kWidth))),
        head(register_module("head", torch::nn::Linear(kWidth, root_width))) {
    for (size_t i = 0; i < inner.size(); ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Unit<Middle>(inner[i])));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = input(x);
    for (auto& block : blocks) {
      hidden = block(hidden);
    }
    return head(hidden);
  }
  torch::nn::Linear input;
  std::vector<Unit<Middle>> blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(VariedNet);

struct Case {
  int ranks = 1;
  std::vector<int64_t> blocks;
  int64_t root_width = 3;
  ShardOptions options = {};
  [[nodiscard]] bool bfloat16() const { return options.precision.param_dtype.has_value(); }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << c.ranks << " ranks, blocks of";
  for (const int64_t block : c.blocks) {
    out << " " << block;
  }
  return out << ", root " << c.root_width << ", depth " << c.options.prefetch_depth
             << (c.bfloat16() ? ", bf16" : ", fp32")
             << (c.options.strategy == Strategy::FullShard ? "" : ", SHARD_GRAD_OP");
}

/// The quantities that the limits are made of, from shapes alone.
struct Sizes {
  explicit Sizes(const Case& c) : element(c.bfloat16() ? 2 : 4), ranks(c.ranks) {
    std::vector<int64_t> units{gathered({5 * kWidth, kWidth, kWidth * c.root_width, c.root_width})};
    for (const int64_t inner : c.blocks) {
      units.push_back(gathered({kWidth * inner, inner, kWidth * inner, kWidth}));
    }
    root = units.front();
    largest = *std::max_element(units.begin() + 1, units.end());
    all = std::accumulate(units.begin(), units.end(), int64_t{0});
    const int64_t piece_numel = all / ranks / element;
    state = piece_numel * (c.bfloat16() ? 4 + 2 + 8 : 4 + 8);
    gradients = piece_numel * 4;
  }
  // Padded: parameters begin at 64 bytes, and so does each rank's piece.
  [[nodiscard]] int64_t gathered(const std::vector<int64_t>& numels) const {
    const auto round_up = [](int64_t value, int64_t to) { return (value + to - 1) / to * to; };
    int64_t bytes = 0;
    for (const int64_t numel : numels) {
      bytes = round_up(bytes, 64) + numel * element;
    }
    return round_up((bytes + ranks - 1) / ranks, 64) * ranks;
  }

  int64_t element;
  int64_t ranks;
  int64_t root = 0;       ///< N and G_root
  int64_t largest = 0;    ///< B and G
  int64_t all = 0;        ///< the whole model, gathered
  int64_t state = 0;      ///< S, on a rank
  int64_t gradients = 0;  ///< S_g, on a rank
};

struct Limits {
  int64_t forward;
  int64_t backward;
};

Limits limits(const Case& c, const Sizes& s, bool over_c10d) {
  if (c.ranks == 1) {
    // Nothing is gathered; gradients are born in their shard unless they must be widened.
    return {s.state, s.state + s.gradients + (c.bfloat16() ? s.largest + s.root : 0)};
  }
  const int64_t gathered = c.options.strategy == Strategy::ShardGradOp
                               ? s.all
                               : (c.options.prefetch_depth + 1) * s.largest + s.root;
  const int64_t received = over_c10d ? 2 * s.largest : 0;
  return {s.state + gathered, s.state + s.gradients + gathered + 2 * s.largest + s.root + received};
}

void check(bool holds, const Case& c, const char* what, int64_t value, int64_t limit) {
  std::ostringstream text;
  text << c << ": " << what << " " << value << ", limit " << limit;
  TORCH_CHECK(holds, text.str());
}

void check_limits(World world, const Case& c, bool over_c10d) {
  const Sizes sizes(c);
  const Limits limit = limits(c, sizes, over_c10d);
  VariedNet net(c.blocks, c.root_width);
  auto model = fully_shard(net, Mesh::shard(world), c.options);
  AdamW optimizer(model);
  const MemoryLedger& memory = model.memory();
  check(memory.sharded_state_bytes() == sizes.state, c, "state", memory.sharded_state_bytes(),
        sizes.state);
  check(memory.total_bytes() == sizes.state, c, "at rest", memory.total_bytes(), sizes.state);
  int64_t settled = 0;
  for (int step = 1; step <= 5; ++step) {
    model.reset_peak_memory();
    const at::Tensor loss = model(at::randn({3, 5})).sum();
    if (step == 1) {
      check(memory.peak_bytes() <= limit.forward, c, "forward", memory.peak_bytes(), limit.forward);
    }
    loss.backward();
    clip_grad_norm(model, 1.0);
    optimizer.step();
    optimizer.zero_grad();
    check(memory.peak_bytes() <= limit.backward, c, "step", memory.peak_bytes(), limit.backward);
    check(step <= 3 || memory.peak_bytes() <= settled, c, "a later step", memory.peak_bytes(),
          settled);
    settled = memory.peak_bytes();
  }
}

std::vector<Case> cases(int ranks) {
  const std::vector<std::vector<int64_t>> shapes = {
      {32, 32, 32, 32},  {7, 7, 50, 50, 200, 200}, {200, 200, 50, 50, 7, 7},
      {9, 9, 300, 9, 9}, {31, 29, 37, 30, 33},     {40}};
  std::vector<Case> all;
  for (const auto& blocks : shapes) {
    for (const int64_t root_width : {3, 700}) {
      for (const int depth : {0, 1, 2}) {
        for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp}) {
          all.push_back({ranks, blocks, root_width, {strategy, {}, depth}});
          all.push_back(
              {ranks, blocks, root_width, {strategy, {.param_dtype = at::kBFloat16}, depth}});
        }
      }
    }
  }
  return all;
}

TEST(Memory, StaysWithinItsLimitsOverThreads) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Case& c : cases(ranks)) {
      EXPECT_NO_THROW(run_ranks(ranks, [&](World world) { check_limits(world, c, false); }));
    }
  }
}

TEST(Memory, StaysWithinItsLimitsOverProcesses) {
  for (const int ranks : {2, 3}) {
    const auto statuses = run_processes(ranks, [&](World world) {
      for (const Case& c : cases(ranks)) {
        if (c.options.prefetch_depth == 1 && c.options.strategy == Strategy::FullShard) {
          check_limits(world, c, true);
        }
      }
    });
    EXPECT_EQ(statuses, std::vector<int>(static_cast<size_t>(ranks), 0));
  }
}

// A root and three blocks: what a micro-batch costs.
TEST(Collectives, AreCountedPerStep) {
  constexpr int64_t kBlocks = 3;
  for (const int ranks : {1, 2, 3}) {
    for (const int micro_batches : {1, 3}) {
      for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp}) {
        for (const int depth : {0, 1, 2}) {
          run_ranks(ranks, [&](World world) {
            auto model = fully_shard(make_net(kBlocks), Mesh::shard(world), {strategy, {}, depth});
            AdamW optimizer(model);
            auto before = model.counts();
            for (int step = 0; step < 3; ++step) {
              for (int micro = 0; micro < micro_batches; ++micro) {
                model(make_example(micro).x).sum().backward();
              }
              clip_grad_norm(model, 1.0);
              optimizer.step();
              const auto now = model.counts();
              const bool alone = ranks == 1;
              const int64_t gathers =
                  strategy == Strategy::FullShard ? 2 * kBlocks + 1 : kBlocks + 1;
              EXPECT_EQ(now.gathers - before.gathers, alone ? 0 : micro_batches * gathers);
              EXPECT_EQ(now.reductions - before.reductions,
                        alone ? 0 : micro_batches * (kBlocks + 1));
              EXPECT_EQ(now.all_reduces - before.all_reduces, alone ? 0 : 1);
              EXPECT_EQ(now.bytes_sent == before.bytes_sent, alone);
              before = now;
            }
          });
        }
      }
    }
  }
}

TEST(Collectives, ForwardAloneGathersEachUnitOnce) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    const int64_t before = model.counts().gathers;
    const at::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) {
      model(make_example(i).x);
    }
    EXPECT_EQ(model.counts().gathers - before, 3 * 4);
    EXPECT_EQ(model.counts().reductions, 0);
  });
}

struct SlotNetImpl : torch::nn::Module {
  SlotNetImpl() : linear(register_module("linear", torch::nn::Linear(6, 5))) {}
  at::Tensor forward(const at::Tensor& x) {
    parameter = linear->weight.data_ptr();
    return slot_linear(x, linear->weight, slot) + linear->bias;
  }
  torch::nn::Linear linear;
  void* parameter = nullptr;
  std::shared_ptr<void*> slot = std::make_shared<void*>();
};
TORCH_MODULE(SlotNet);

TEST(WorldOfOne, CopiesNeitherParametersNorGradients) {
  SlotNet net;
  auto model = fully_shard(net, Mesh::shard(World::alone()));
  model(at::ones({2, 6})).sum().backward();
  const auto shards = model.parameter_shards();
  ASSERT_EQ(shards[0].name, "linear.weight");
  EXPECT_EQ(net->parameter, shards[0].value.data_ptr());
  EXPECT_EQ(*net->slot, shards[0].gradient.data_ptr());
  EXPECT_EQ(model.memory().bytes(MemoryKind::ReduceBuffer), 0);
  EXPECT_EQ(model.memory().bytes(MemoryKind::Gathered), 0);
  EXPECT_EQ(model.memory().bytes(MemoryKind::MasterShard), 0);
}

}  // namespace
}  // namespace sherd::test
