// Saves a checkpoint with W ranks, loads it with W + 1, and goes on: the same bits as without a
// break.
//
//   cmake -B build -DCMAKE_PREFIX_PATH=<prefix Sherd was installed to> && cmake --build build
//   build/checkpoint_for_another_world_size          # from one rank to two
//   torchrun --no-python --nproc-per-node 2 build/checkpoint_for_another_world_size   # two to
//   three
//
// The first W ranks are processes, the W + 1 threads of rank 0. W is at most 3: twelve
// micro-batches of a step are dealt out evenly. Writes to checkpoint_example/ in the current
// folder. You see that the two runs end in equal checkpoints. Exit code 1 if they differ.

#include <algorithm>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <sherd/sherd.h>

namespace {

constexpr int kMicroBatches = 12;  // of a step, over all ranks
const std::string kFolder = "checkpoint_example/";

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", sherd::Unit<torch::nn::Linear>(5, 13))),
        second(register_module("second", sherd::Unit<torch::nn::Linear>(13, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return second(at::tanh(first(x))); }
  sherd::Unit<torch::nn::Linear> first;
  sherd::Unit<torch::nn::Linear> second;
};
TORCH_MODULE(Net);

/// A model under training by one rank.
struct Run {
  explicit Run(sherd::World world)
      : model(sherd::fully_shard(Net(), sherd::Mesh::shard(world))), optimizer(model) {
    model.set_gradient_divide_factor(kMicroBatches);  // a mean, however the batch is cut
  }

  void train(int first_step, int end_step) {
    const int ranks = model.world().size();
    for (int step = first_step; step < end_step; ++step) {
      for (int micro = model.world().rank(); micro < kMicroBatches; micro += ranks) {
        auto generator =
            at::detail::createCPUGenerator(static_cast<uint64_t>(step * kMicroBatches + micro));
        const at::Tensor x = at::randn({4, 5}, generator);
        at::mse_loss(model(x), at::randn({4, 3}, generator)).backward();
      }
      optimizer.step();
      optimizer.zero_grad();
    }
  }

  sherd::Sharded<Net> model;
  sherd::AdamW optimizer;
};

void resume(sherd::World world) {
  Run run(world);  // its initial values are replaced
  sherd::load_checkpoint(run.model, run.optimizer, kFolder + "step-5");
  run.train(5, 10);
  sherd::save_checkpoint(run.model, run.optimizer, kFolder + "step-10-resumed", "");
}

std::vector<float> values_of(const std::string& folder) {
  std::vector<float> all;
  const auto manifest = sherd::CheckpointManifest::read(folder);
  for (const auto& [name, parameter] : manifest.parameters) {
    sherd::read_checkpoint_values(folder, manifest, name, [&](const float* values, int64_t numel) {
      all.insert(all.end(), values, values + numel);
    });
  }
  return all;
}

}  // namespace

int main() {
  sherd::World world = sherd::World::from_environment();
  torch::manual_seed(0);  // the same initial values on every rank
  Run run(world);
  run.train(0, 5);
  sherd::save_checkpoint(run.model, run.optimizer, kFolder + "step-5", "");
  run.train(5, 10);
  sherd::save_checkpoint(run.model, run.optimizer, kFolder + "step-10", "");
  if (world.rank() != 0) {
    return 0;
  }
  std::vector<std::thread> ranks;  // a world of its own: nothing here concerns the other processes
  for (const sherd::World& other : sherd::World::in_process(world.size() + 1)) {
    ranks.emplace_back(resume, other);
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  const bool equal = values_of(kFolder + "step-10") == values_of(kFolder + "step-10-resumed");
  std::cout << "10 steps on " << world.size() << " rank(s), and 5 on " << world.size()
            << " followed by 5 on " << world.size() + 1 << ": "
            << (equal ? "equal bit for bit" : "DIFFERENT") << std::endl;
  return equal ? 0 : 1;
}
