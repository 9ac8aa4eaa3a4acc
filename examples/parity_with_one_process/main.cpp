// Trains a model twice, side by side: in plain LibTorch on the whole batch, and sharded, each rank
// on its rows. Both must come out equal.
//
//   cmake -B build -DCMAKE_PREFIX_PATH=<prefix Sherd was installed to> && cmake --build build
//   build/parity_with_one_process          # one process: the ranks are four threads of it
//   torchrun --no-python --nproc-per-node 2 build/parity_with_one_process    # or mpirun, srun
//
// You see both losses of each step and how far the parameters are apart: a few roundings, since a
// sum over ranks has another order. Exit code 1 if it is more than 1e-5. W must divide 24.

#include <algorithm>
#include <functional>
#include <iostream>
#include <thread>
#include <vector>

#include <sherd/sherd.h>
#include <torch/optim/adamw.h>

namespace {

constexpr int64_t kRows = 24;  // of a batch, over all ranks

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", sherd::Unit<torch::nn::Linear>(5, 13))),
        second(register_module("second", sherd::Unit<torch::nn::Linear>(13, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return second(at::tanh(first(x))); }
  sherd::Unit<torch::nn::Linear> first;
  sherd::Unit<torch::nn::Linear> second;
};
TORCH_MODULE(Net);

Net make_net() {
  torch::manual_seed(0);
  return Net();
}

/// How far this rank's part of the sharded model is from the plain one.
double largest_difference(const sherd::ShardedModule& model, Net& plain) {
  const auto wholes = plain->named_parameters();
  double largest = 0.0;
  for (const sherd::ParameterShard& shard : model.parameter_shards()) {
    const at::Tensor whole = wholes[shard.name].detach().flatten();
    const at::Tensor part = whole.narrow(0, shard.begin, shard.end - shard.begin);
    if (part.numel() > 0) {
      largest = std::max(largest, (part - shard.value).abs().max().item<double>());
    }
  }
  return largest;
}

void train_both(sherd::World world, Net plain, const Net& net, double& difference) {
  torch::optim::AdamW plain_optimizer(plain->parameters(), torch::optim::AdamWOptions(1e-3));
  auto model = sherd::fully_shard(net, sherd::Mesh::shard(world));
  sherd::AdamW optimizer(model, {.lr = 1e-3});
  const int64_t rows = kRows / world.size();
  for (int step = 0; step < 10; ++step) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
    const at::Tensor x = at::randn({kRows, 5}, generator);
    const at::Tensor y = at::randn({kRows, 3}, generator);

    plain_optimizer.zero_grad();
    const at::Tensor plain_loss = at::mse_loss(plain(x), y);
    plain_loss.backward();
    plain_optimizer.step();

    const int64_t begin = world.rank() * rows;
    const at::Tensor loss = at::mse_loss(model(x.narrow(0, begin, rows)), y.narrow(0, begin, rows));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();

    double mean = loss.item<double>() / world.size();
    world.all_reduce({&mean, 1});
    difference = largest_difference(model, plain);
    world.all_reduce({&difference, 1}, sherd::ReduceOp::Max);
    if (world.rank() == 0) {
      std::cout << "step " << step << " | plain loss " << plain_loss.item<double>() << " | on "
                << world.size() << " ranks " << mean << " | parameters differ by " << difference
                << std::endl;
    }
  }
}

}  // namespace

int main() {
  std::vector<sherd::World> worlds{sherd::World::from_environment()};
  if (worlds[0].size() == 1) {
    worlds = sherd::World::in_process(4);
  }
  std::vector<double> differences(worlds.size(), 1.0);
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < worlds.size(); ++i) {
    // Made here: LibTorch has one generator for all threads.
    ranks.emplace_back(train_both, worlds[i], make_net(), make_net(), std::ref(differences[i]));
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  std::cout << (differences[0] <= 1e-5 ? "equal\n" : "NOT equal\n");
  return differences[0] <= 1e-5 ? 0 : 1;
}
