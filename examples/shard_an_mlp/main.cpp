// Trains a small MLP under FULL_SHARD: each rank keeps 1/W of parameters, gradients and moments.
//
//   cmake -B build -DCMAKE_PREFIX_PATH=<prefix Sherd was installed to> && cmake --build build
//   build/shard_an_mlp                                            # one process
//   torchrun --no-python --nproc-per-node 2 build/shard_an_mlp    # two; or mpirun -n 2, srun -n 2
//
// You see which units there are, that the loss falls, and that W ranks hold 1/W each.

#include <iostream>
#include <string>
#include <vector>

#include <sherd/sherd.h>

namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(x))); }
  torch::nn::Linear up;
  torch::nn::Linear down;
};
TORCH_MODULE(Block);

struct MlpImpl : torch::nn::Module {
  MlpImpl(int layers, int64_t width) : head(register_module("head", torch::nn::Linear(width, 1))) {
    for (int i = 0; i < layers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), sherd::Unit<Block>(width)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) {
      x = block(x);
    }
    return head(x);
  }
  std::vector<sherd::Unit<Block>> blocks;  // each is gathered as a whole while it runs
  torch::nn::Linear head;                  // in no Unit: it belongs to the root, the model itself
};
TORCH_MODULE(Mlp);

void train(sherd::World& world) {
  constexpr int64_t kWidth = 64;
  constexpr int kSteps = 100;
  torch::manual_seed(0);  // the same values on every rank, of which each keeps its part
  auto model = sherd::fully_shard(Mlp(4, kWidth), sherd::Mesh::shard(world),
                                  {.strategy = sherd::Strategy::FullShard});
  sherd::AdamW optimizer(model, {.lr = 1e-3});
  if (world.rank() == 0) {
    std::cout << world.size() << " rank(s)\n" << model.plan();
  }
  for (int step = 0; step <= kSteps; ++step) {
    // Each rank has a batch of its own.
    auto generator =
        at::detail::createCPUGenerator(static_cast<uint64_t>(step * world.size() + world.rank()));
    const at::Tensor x = at::randn({32, kWidth}, generator);
    const at::Tensor loss = at::mse_loss(model(x), x.square().mean(1, /*keepdim=*/true));
    loss.backward();  // gradients are averaged over the ranks
    sherd::clip_grad_norm(model, 1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (step % 20 == 0) {
      double sum = loss.item<double>();
      world.all_reduce({&sum, 1});  // a collective: every rank calls it, one prints
      if (world.rank() == 0) {
        std::cout << "step " << step << " | loss " << sum / world.size() << std::endl;
      }
    }
  }
  const std::string bytes = std::to_string(model.memory().sharded_state_bytes());
  const std::vector<std::string> everybody = world.all_gather(bytes);
  for (size_t rank = 0; world.rank() == 0 && rank < everybody.size(); ++rank) {
    std::cout << "rank " << rank << " holds " << everybody[rank]
              << " bytes of parameters and moments\n";
  }
}

}  // namespace

int main() {
  try {
    sherd::World world = sherd::World::from_environment();
    train(world);
  } catch (const sherd::Error& error) {
    std::cerr << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}
