// The engine's memory limits, in bytes.

#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/meshes.h"
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

enum class Accumulation { None, WithoutSync, WithinTheRow, KeepParameters };

struct Case {
  int ranks = 1;
  std::vector<int64_t> blocks;
  int64_t root_width = 3;
  ShardOptions options = {};
  Accumulation accumulation = Accumulation::None;
  [[nodiscard]] bool bfloat16() const { return options.precision.param_dtype.has_value(); }
  [[nodiscard]] int micro_batches() const { return accumulation == Accumulation::None ? 1 : 3; }
  [[nodiscard]] int64_t rows() const { return shard_size_for(ranks, options.strategy); }
  [[nodiscard]] int64_t replicas() const { return ranks / rows(); }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << c.ranks << " ranks, blocks of";
  for (const int64_t block : c.blocks) {
    out << " " << block;
  }
  return out << ", root " << c.root_width << ", depth " << c.options.prefetch_depth
             << ", backward_prefetch " << static_cast<int>(c.options.backward_prefetch) << ", n "
             << c.options.reshard_after_forward_size << (c.bfloat16() ? ", bf16, " : ", fp32, ")
             << name_of(c.options.strategy) << ", accumulation "
             << static_cast<int>(c.accumulation);
}

/// Numbers of elements, padded, from shapes alone.
struct Sizes {
  explicit Sizes(const Case& c) : element(c.bfloat16() ? 2 : 4), rows(c.rows()) {
    const auto unit = [&](const std::vector<int64_t>& numels) {
      return padded(numels, c.replicas());
    };
    root = unit({5 * kWidth, kWidth, kWidth * c.root_width, c.root_width});
    for (const int64_t inner : c.blocks) {
      blocks.push_back(unit({kWidth * inner, inner, kWidth * inner, kWidth}));
    }
    largest = *std::max_element(blocks.begin(), blocks.end());
    all_blocks = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  }
  // Parameters begin at 64 bytes, and so does each replica's part of each rank's piece.
  [[nodiscard]] int64_t padded(const std::vector<int64_t>& numels, int64_t replicas) const {
    const auto round_up = [](int64_t value, int64_t to) { return (value + to - 1) / to * to; };
    const int64_t line = 64 / element;
    int64_t used = 0;
    for (const int64_t numel : numels) {
      used = round_up(used, line) + numel;
    }
    return round_up((used + rows - 1) / rows, line * replicas) * rows;
  }
  [[nodiscard]] int64_t all() const { return all_blocks + root; }
  /// Of each rank's piece of everything.
  [[nodiscard]] int64_t piece() const { return all() / rows; }

  int64_t element;  ///< bytes
  int64_t rows;
  int64_t root = 0;
  std::vector<int64_t> blocks;
  int64_t largest = 0;
  int64_t all_blocks = 0;
};

/// Bytes by kind, once a model has trained: exact, or the most that may be held.
using Bytes = std::map<MemoryKind, int64_t>;

Bytes exact_bytes(const Case& c, const Sizes& s) {
  Bytes bytes;
  bytes[MemoryKind::MasterShard] = c.bfloat16() ? 4 * s.piece() : 0;
  bytes[MemoryKind::TravellingShard] = s.element * s.piece();
  bytes[MemoryKind::OptimizerState] = 8 * s.piece();
  // The sum, and this rank's part of it on its way through the replicas.
  bytes[MemoryKind::GradientShard] =
      4 * s.piece() + (c.replicas() > 1 ? 4 * s.piece() / c.replicas() : 0);
  bytes[MemoryKind::UnshardedGradient] = 0;  // reduced, and freed
  const int n = c.options.reshard_after_forward_size;
  bytes[MemoryKind::PostForwardShard] = n > 1 && n < s.rows ? s.element * s.all_blocks / n : 0;
  return bytes;
}

int64_t most_gathered(const Case& c, const Sizes& s) {
  const Strategy strategy = c.options.strategy;
  const bool zero3 = (strategy == Strategy::FullShard || strategy == Strategy::HybridShard) &&
                     c.options.reshard_after_forward_size != 1;
  if (s.rows == 1) {
    return 0;  // the shard is the whole
  }
  const bool kept = !zero3 || c.accumulation == Accumulation::KeepParameters;
  const int64_t in_use = (c.options.prefetch_depth + 1) * s.largest;
  return s.element * (s.root + (kept ? s.all_blocks : in_use));
}

// Whole units' gradients in the dtype that travels.
int64_t most_unreduced(const Case& c, const Sizes& s) {
  if (s.rows > 1) {
    return s.element * (2 * s.largest + s.root);  // one is written while another travels
  }
  // Nothing travels within the row: gradients are born in their sum, unless they must be widened,
  // or added to one.
  const bool added = c.micro_batches() > 1;
  return c.bfloat16() || added ? s.element * (s.largest + s.root) : 0;
}

// Sums over the row, fp32, before they are summed over the replicas.
int64_t most_partial(const Case& c, const Sizes& s) {
  if (c.replicas() == 1) {
    return 0;
  }
  const bool waits = c.accumulation == Accumulation::WithinTheRow ||
                     (c.accumulation == Accumulation::WithoutSync && s.rows == 1);
  const int64_t in_flight = s.rows > 1 ? 4 : 2;
  const int64_t blocks = static_cast<int64_t>(s.blocks.size());
  return 4 * (s.largest * (waits ? blocks : std::min(in_flight, blocks)) + s.root) / s.rows;
}

int64_t most_received(const Case& c, const Sizes& s) {
  const int64_t in_row = 2 * s.element * s.largest / s.rows * (s.rows - 1);
  const int64_t partial = 4 * s.largest / s.rows;
  return in_row + 2 * partial / c.replicas() * (c.replicas() - 1);
}

enum class Over { Threads, C10d, SharedMemory };

Bytes most_bytes(const Case& c, const Sizes& s, Over over) {
  const bool unsharded = c.accumulation == Accumulation::WithoutSync && s.rows > 1;
  return {{MemoryKind::Gathered, over == Over::SharedMemory ? 0 : most_gathered(c, s)},
          {MemoryKind::UnshardedGradient, unsharded ? 4 * s.all() : 0},
          {MemoryKind::ReduceBuffer, most_unreduced(c, s) + most_partial(c, s)},
          {MemoryKind::ReceiveBuffer, over == Over::C10d ? most_received(c, s) : 0}};
}

void check(bool holds, const Case& c, const std::string& what, int64_t value, int64_t limit) {
  std::ostringstream text;
  text << c << ": " << what << " " << value << ", limit " << limit;
  TORCH_CHECK(holds, text.str());
}

void train_step(Sharded<VariedNet>& model, AdamW& optimizer, const Case& c) {
  for (int micro = 0; micro < c.micro_batches(); ++micro) {
    const bool last = micro == c.micro_batches() - 1;
    model.set_requires_gradient_sync(last || c.accumulation != Accumulation::WithoutSync);
    model.set_requires_all_reduce(last || c.accumulation != Accumulation::WithinTheRow);
    model(at::ones({3, 5})).sum().backward();
  }
  clip_grad_norm(model, 1.0);
  optimizer.step();
  optimizer.zero_grad();
}

void check_forward(Sharded<VariedNet>& model, const Case& c, const Sizes& s, Over over) {
  const MemoryLedger& memory = model.memory();
  Bytes exact = exact_bytes(c, s);
  const int64_t state = exact[MemoryKind::MasterShard] + exact[MemoryKind::TravellingShard] +
                        exact[MemoryKind::OptimizerState];
  check(memory.sharded_state_bytes() == state, c, "state", memory.sharded_state_bytes(), state);
  const int64_t at_rest = state + exact[MemoryKind::PostForwardShard] +
                          exact[MemoryKind::GradientShard] - 4 * s.piece();
  check(memory.total_bytes() == at_rest, c, "at rest", memory.total_bytes(), at_rest);
  model(at::ones({3, 5}));
  const int64_t limit = at_rest + most_bytes(c, s, over)[MemoryKind::Gathered];
  check(memory.peak_bytes() <= limit, c, "forward", memory.peak_bytes(), limit);
}

/// Throws unless the engine's bytes are those of the formulas: before training, after a forward,
/// and in and after each of four steps.
void check_limits(const World& world, const Case& c, Over over) {
  const Sizes sizes(c);
  auto model = fully_shard(seeded(1, [&] { return VariedNet(c.blocks, c.root_width); }),
                           mesh_for(world, c.options.strategy), c.options);
  AdamW optimizer(model);
  check_forward(model, c, sizes, over);
  model.set_reshard_after_backward(c.accumulation != Accumulation::KeepParameters);
  const MemoryLedger& memory = model.memory();
  int64_t limit = 0;
  for (const Bytes& bytes : {exact_bytes(c, sizes), most_bytes(c, sizes, over)}) {
    for (const auto& [kind, value] : bytes) {
      limit += value;
    }
  }
  const int64_t planned = model.planned_peak_bytes(
      {.count = c.micro_batches(),
       .requires_gradient_sync = c.accumulation != Accumulation::WithoutSync,
       .requires_all_reduce = c.accumulation != Accumulation::WithinTheRow});
  check(planned == limit, c, "planned", planned, limit);
  int64_t settled = 0;
  for (int step = 1; step <= 4; ++step) {
    model.reset_peak_memory();
    train_step(model, optimizer, c);
    check(memory.peak_bytes() <= limit, c, "step", memory.peak_bytes(), limit);
    check(step <= 3 || memory.peak_bytes() <= settled, c, "a later step", memory.peak_bytes(),
          settled);
    settled = memory.peak_bytes();
  }
  for (const auto& [kind, value] : exact_bytes(c, sizes)) {
    check(memory.bytes(kind) == value, c, "kind " + std::to_string(static_cast<int>(kind)),
          memory.bytes(kind), value);
  }
  for (const auto& [kind, value] : most_bytes(c, sizes, over)) {
    check(memory.bytes(kind) <= value, c, "kind " + std::to_string(static_cast<int>(kind)),
          memory.bytes(kind), value);
  }
}

const std::vector<std::vector<int64_t>> kShapes = {{7, 7, 50, 50, 200, 200},
                                                   {200, 200, 50, 50, 7, 7},
                                                   {9, 9, 300, 9, 9},
                                                   {31, 29, 37, 30, 33},
                                                   {40}};

Case in_bfloat16(Case c) {
  c.options.precision.param_dtype = at::kBFloat16;
  return c;
}

std::vector<Case> cases(int ranks) {
  std::vector<Case> all;
  for (const auto& blocks : kShapes) {
    for (const Strategy strategy : kStrategies) {
      const bool slots = strategy == Strategy::FullShard || strategy == Strategy::HybridShard;
      for (const int depth : slots ? std::vector<int>{0, 1, 2} : std::vector<int>{1}) {
        const ShardOptions options{.strategy = strategy, .prefetch_depth = depth};
        all.push_back({ranks, blocks, 3, options});
        all.push_back(in_bfloat16({ranks, blocks, 700, options}));
      }
    }
  }
  return all;
}

std::vector<Case> accumulating_cases(int ranks) {
  std::vector<Case> all;
  for (const auto& blocks : {kShapes[1], kShapes[3]}) {
    for (const Strategy strategy : kStrategies) {
      for (const auto accumulation :
           {Accumulation::WithoutSync, Accumulation::WithinTheRow, Accumulation::KeepParameters}) {
        const Case c{ranks, blocks, 700, {.strategy = strategy}, accumulation};
        if (c.replicas() > 1 || accumulation != Accumulation::WithinTheRow) {
          all.push_back(c);
          all.push_back(in_bfloat16({ranks, blocks, 3, {.strategy = strategy}, accumulation}));
        }
      }
    }
  }
  return all;
}

void expect_limits(const std::vector<Case>& all) {
  for (const Case& c : all) {
    try {
      run_ranks(c.ranks, [&](World world) { check_limits(world, c, Over::Threads); });
    } catch (const c10::Error& error) {
      ADD_FAILURE() << error.what_without_backtrace();
    }
  }
}

TEST(Memory, StaysWithinItsLimitsOverThreads) {
  for (const int ranks : {1, 2, 3, 4}) {
    expect_limits(cases(ranks));
  }
}

TEST(Memory, StaysWithinItsLimitsWhereMicroBatchesAccumulate) {
  for (const int ranks : {1, 2, 4}) {
    expect_limits(accumulating_cases(ranks));
  }
}

TEST(Memory, KeepsAPieceOfASmallerGroupFromForwardToBackward) {
  std::vector<Case> all;
  for (const auto& blocks : kShapes) {
    for (const int size : {1, 2, 4}) {
      all.push_back(in_bfloat16({4, blocks, 700, {.reshard_after_forward_size = size}}));
    }
  }
  expect_limits(all);
}

// The slots are those of the forward, which gathers ahead either way.
TEST(Memory, OfPrefetchAfterTheBackwardOfAUnitIsNotMore) {
  std::vector<Case> all;
  for (const auto& blocks : kShapes) {
    for (const int depth : {0, 1, 2}) {
      const ShardOptions options{.prefetch_depth = depth,
                                 .backward_prefetch = BackwardPrefetch::Post};
      all.push_back({3, blocks, 3, options});
    }
  }
  expect_limits(all);
}

void check_limits_of_processes(const World& world, Over over) {
  for (const Case& c : cases(world.size())) {
    if (c.options.prefetch_depth == 1 && c.blocks == kShapes[1]) {
      check_limits(world, c, over);
    }
  }
  for (const Case& c : accumulating_cases(world.size())) {
    if (c.blocks == kShapes[3] && c.bfloat16()) {
      check_limits(world, c, over);
    }
  }
  if (world.size() == 4) {
    check_limits(world, in_bfloat16({4, kShapes[1], 700, {.reshard_after_forward_size = 2}}), over);
  }
}

TEST(Memory, StaysWithinItsLimitsOverProcesses) {
  for (const Transport transport : kTransports) {
    const Over over = transport == Transport::SharedMemory ? Over::SharedMemory : Over::C10d;
    for (const int ranks : {2, 4}) {
      const auto statuses = run_processes_over(
          transport, ranks, [&](World world) { check_limits_of_processes(world, over); });
      EXPECT_EQ(statuses, std::vector<int>(static_cast<size_t>(ranks), 0));
    }
  }
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
