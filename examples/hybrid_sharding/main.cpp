// Hybrid sharding: the ranks of a row (here two, in practice those of one host) share one copy of
// the model, and rows hold copies. Parameters are gathered within a row; only sums of gradients go
// from row to row.
//
//   cmake -B build -DCMAKE_PREFIX_PATH=<prefix Sherd was installed to> && cmake --build build
//   build/hybrid_sharding          # one process: the ranks are four threads of it, two rows
//   torchrun --no-python --nproc-per-node 4 build/hybrid_sharding    # or mpirun, srun
//
// W must be even. You see which piece each rank holds, the loss, and that all rows hold equal
// copies in the end. Exit code 1 if they do not.

#include <atomic>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <sherd/sherd.h>

namespace {

constexpr int64_t kWidth = 32;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", sherd::Unit<torch::nn::Linear>(kWidth, 4 * kWidth))),
        second(register_module("second", sherd::Unit<torch::nn::Linear>(4 * kWidth, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return second(at::gelu(first(x))); }
  sherd::Unit<torch::nn::Linear> first;
  sherd::Unit<torch::nn::Linear> second;
};
TORCH_MODULE(Net);

Net make_net() {
  torch::manual_seed(0);
  return Net();
}

/// This rank's piece of the model, as text.
std::string values_of(const sherd::ShardedModule& model) {
  std::ostringstream text;
  for (const sherd::ParameterShard& shard : model.parameter_shards()) {
    text.write(static_cast<const char*>(shard.value.const_data_ptr()),
               static_cast<std::streamsize>(shard.value.nbytes()));
  }
  return text.str();
}

void train(sherd::World world, const Net& net, std::atomic<bool>& equal) {
  sherd::Mesh mesh = sherd::Mesh::hybrid(world, /*shard_size=*/2);
  auto model = sherd::fully_shard(net, mesh, {.strategy = sherd::Strategy::HybridShard});
  sherd::AdamW optimizer(model, {.lr = 1e-2});
  const std::string place = "row " + std::to_string(mesh.replicate_rank()) + ", piece " +
                            std::to_string(mesh.shard_rank()) + " of " +
                            std::to_string(mesh.shard_size());
  const std::vector<std::string> places = world.all_gather(place);
  for (size_t rank = 0; world.rank() == 0 && rank < places.size(); ++rank) {
    std::cout << "rank " << rank << ": " << places[rank] << '\n';
  }
  for (int step = 0; step < 40; ++step) {
    const int batch = step * world.size() + world.rank();  // each rank has one of its own
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(batch));
    const at::Tensor x = at::randn({32, kWidth}, generator);
    const at::Tensor loss = at::mse_loss(model(x), x.square().mean(1, /*keepdim=*/true));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    double sum = loss.item<double>();
    world.all_reduce({&sum, 1});
    if (world.rank() == 0 && step % 13 == 0) {
      std::cout << "step " << step << " | loss " << sum / world.size() << std::endl;
    }
  }
  const std::vector<std::string> pieces = world.all_gather(values_of(model));
  for (size_t rank = 2; rank < pieces.size(); ++rank) {
    equal = equal && pieces[rank] == pieces[rank - 2];
  }
}

}  // namespace

int main() {
  std::vector<sherd::World> worlds{sherd::World::from_environment()};
  if (worlds[0].size() == 1) {
    worlds = sherd::World::in_process(4);
  }
  std::atomic<bool> equal = true;
  std::vector<std::thread> ranks;
  for (const sherd::World& world : worlds) {
    // The net is made here: LibTorch has one generator for all threads.
    ranks.emplace_back(train, world, make_net(), std::ref(equal));
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  std::cout << (equal ? "all rows hold equal copies\n" : "the rows DIFFER\n");
  return equal ? 0 : 1;
}
