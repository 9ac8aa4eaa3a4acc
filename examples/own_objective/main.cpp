// Trains on preference pairs by a loss of one's own, in the form in which Sherd's trainer takes it.
//
//   cmake -B build -DCMAKE_PREFIX_PATH=<prefix Sherd was installed to> && cmake --build build
//   build/own_objective                                           # one process
//   torchrun --no-python --nproc-per-node 2 build/own_objective   # two; or mpirun -n 2, srun -n 2
//
// You see that the loss falls, and that the model comes to prefer each chosen sequence.

#include <algorithm>
#include <iostream>

#include <sherd/sherd.h>

#include "simpo.h"

namespace {

constexpr int64_t kSymbols = 32;
constexpr int64_t kPairs = 8;   // a step, all ranks together
constexpr int64_t kTokens = 6;  // of a sequence

// Predicts the next symbol by the one before.
struct BigramImpl : torch::nn::Module {
  explicit BigramImpl(int64_t width)
      : embedding(register_module("embedding", torch::nn::Embedding(kSymbols, width))),
        head(register_module("head", torch::nn::Linear(width, kSymbols))) {}
  // ids [N, T] -> sum of log p of the symbols after the first [N]
  at::Tensor forward(const at::Tensor& ids_NT) {
    const at::Tensor logps = at::log_softmax(head(embedding(ids_NT.slice(1, 0, -1))), -1);
    return logps.gather(2, ids_NT.slice(1, 1).unsqueeze(2)).squeeze(2).sum(1);
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear head;
};
TORCH_MODULE(Bigram);

// Pairs of sequences that begin alike: chosen ones go up by 1, rejected ones by 2.
at::Tensor pairs_of(const sherd::World& world) {
  const at::Tensor first =
      at::arange(std::min<int64_t>(world.rank(), kPairs), kPairs, world.size()).unsqueeze(1);
  const at::Tensor steps = at::arange(kTokens).unsqueeze(0);
  return at::stack({first + steps, first + 2 * steps}, 1).flatten(0, 1) % kSymbols;
}

void train(sherd::World& world) {
  torch::manual_seed(0);
  auto model = sherd::fully_shard(Bigram(16), sherd::Mesh::shard(world));
  model.set_gradient_divide_factor(1);  // the loss is divided by the pairs of all ranks
  sherd::AdamW optimizer(model, {.lr = 1e-2});
  const own_objective::SimPo objective;
  const at::Tensor ids_NT = pairs_of(world);
  for (int step = 0; step <= 60; ++step) {
    const at::Tensor logps_N = model(ids_NT);
    const at::Tensor values_N = logps_N.detach().to(at::kDouble);
    const sherd::ObjectiveTerms terms =
        objective.terms({values_N, at::full_like(values_N, kTokens - 1), {}});
    logps_N.backward((terms.coefficients_N / kPairs).to(at::kFloat));
    double sums[] = {terms.loss_sum.item<double>(), terms.figures_F[0].item<double>()};
    world.all_reduce(sums);
    if (world.rank() == 0 && step % 20 == 0) {
      std::cout << "step " << step << " | loss " << sums[0] / kPairs << " | accuracy "
                << sums[1] / kPairs << std::endl;
    }
    optimizer.step();
    optimizer.zero_grad();
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
