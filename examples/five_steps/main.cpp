// Shards a model, trains it with a loss and an optimizer of one's own, saves it, and adapts it.
//
//   cmake -B build -DCMAKE_PREFIX_PATH=<prefix Sherd was installed to> && cmake --build build
//   build/five_steps                                            # one process
//   torchrun --no-python --nproc-per-node 2 build/five_steps    # two; or mpirun -n 2, srun -n 2
//
// Each run continues the checkpoint mlp/ in the current folder by 40 steps, with any number of
// ranks that divides 64. You see the loss fall from run to run, and how small adapters are.

#include <filesystem>
#include <iostream>
#include <string>

#include "lion.h"
#include "mlp.h"

namespace {

constexpr int64_t kWidth = 64;
constexpr int64_t kRows = 64;  // of a step's batch, all ranks together
constexpr int kSteps = 40;
const std::string kFolder = "mlp";

// The quantile of the targets, not their mean, is what the model learns to predict.
at::Tensor pinball(const at::Tensor& predicted, const at::Tensor& target, double quantile) {
  const at::Tensor error = target - predicted;
  return at::where(error > 0, quantile * error, (quantile - 1) * error).mean();
}

// This rank's rows of a batch that is the same for any number of ranks.
at::Tensor rows_of(const sherd::World& world, int64_t step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
  return at::randn({kRows, kWidth}, generator).chunk(world.size())[world.rank()];
}

template <class Optimizer>
void train(sherd::Sharded<Mlp>& model, Optimizer& optimizer, int64_t first, double factor) {
  sherd::World& world = model.world();
  for (int64_t step = first; step < first + kSteps; ++step) {
    const at::Tensor x = rows_of(world, step);
    const at::Tensor y = factor * x.square().mean(1, /*keepdim=*/true);
    const at::Tensor loss = pinball(model(x), y, 0.9);
    loss.backward();  // gradients are averaged over the ranks
    optimizer.step();
    model.zero_grad();
    double sum = loss.item<double>();
    world.all_reduce({&sum, 1});  // a collective: every rank calls it, one prints
    if (world.rank() == 0 && (step == first || step == first + kSteps - 1)) {
      std::cout << "  step " << step << " | loss " << sum / world.size() << std::endl;
    }
  }
}

sherd::Sharded<Mlp> train_all(sherd::World& world) {
  torch::manual_seed(0);  // the same values on every rank, of which each keeps its shard
  auto model = sherd::fully_shard(Mlp(4, kWidth), sherd::Mesh::shard(world));
  Lion optimizer(model, 3e-4);
  if (std::filesystem::exists(kFolder)) {
    const auto manifest = sherd::load_checkpoint(model, optimizer, kFolder);
    if (world.rank() == 0) {
      std::cout << "continuing a checkpoint of " << manifest.world_size << " rank(s)\n";
    }
  }
  train(model, optimizer, optimizer.steps_done(), /*factor=*/1);
  sherd::save_checkpoint(model, optimizer, kFolder, /*note=*/"");
  return model;
}

void adapt(sherd::World& world, sherd::Sharded<Mlp>& base) {
  const auto values = sherd::full_state_dict(base, {.rank0_only = false});
  Mlp net(4, kWidth);
  sherd::lora(*net, {.shape = {.rank = 4, .alpha = 8}});  // freezes the rest
  auto model = sherd::fully_shard(net, sherd::Mesh::shard(world));
  sherd::initialize(model, /*seed=*/0, [&](sherd::ParameterInit& parameter) {
    if (!sherd::initialize_lora(parameter)) {
      parameter.fill_from(values[parameter.name()]);
    }
  });
  if (world.rank() == 0) {
    std::cout << "adapters\n";
  }
  sherd::AdamW optimizer(model, {.lr = 1e-2});
  train(model, optimizer, 0, /*factor=*/2);
  sherd::save_checkpoint(model, optimizer, kFolder + "-adapters", "", {.base = kFolder});
}

}  // namespace

int main() {
  try {
    sherd::World world = sherd::World::from_environment();
    auto model = train_all(world);
    adapt(world, model);
  } catch (const sherd::Error& error) {
    std::cerr << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}
