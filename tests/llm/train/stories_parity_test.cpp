// Ten steps of real pretrained weights on real questions, sharded and cut in several ways, against
// the same model unsharded in plain LibTorch.

#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "llm/inputs/batch.h"
#include "llm/inputs/prepare.h"
#include "llm/io/hf_config.h"
#include "llm/io/import.h"
#include "llm/setup/batch_tensors.h"
#include "llm/setup/load_model.h"
#include "sherd/optim.h"
#include "tests/support/meshes.h"
#include "tests/support/ranks.h"

namespace llm::train {
namespace {

constexpr int kSteps = 10;
constexpr int64_t kQuestions = 8;
constexpr double kLr = 1e-4;
const std::string kModel = SHERD_TEST_SOURCE_DIR "/tests/data/stories260k-hf";

struct Step {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  // flattened
};

// The data of one micro-batch: `rows` samples from `first` on.
struct Questions {
  inputs::Samples samples;
  double supervised = 0;  // tokens of all kQuestions

  Questions() {
    const text::PromptEncoder encoder(text::Tokenizer::from_folder(kModel), {512, 32});
    const std::string file = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-32.json";
    const auto prepared =
        inputs::prepare(inputs::open_source(file, {}, {}), encoder, {.limit = {kQuestions}});
    samples = inputs::Samples(prepared.store);
    supervised = static_cast<double>(prepared.report.supervised_tokens);
  }
  [[nodiscard]] model::TokenBatch micro_batch(int64_t first, int64_t rows) const {
    std::vector<int64_t> indices(static_cast<size_t>(rows));
    std::iota(indices.begin(), indices.end(), first);
    return setup::to_tensors(inputs::collate(samples, indices));
  }
};

std::vector<Step> train_plain(const Questions& questions, int64_t rows) {
  auto model = io::build_model(io::read_model_folder_config(kModel));
  io::load_weights(*model, sherd::SafetensorsFolder(kModel));
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(kLr).weight_decay(0.01));
  std::vector<Step> steps(kSteps);
  for (Step& step : steps) {
    optimizer.zero_grad();
    for (int64_t first = 0; first < kQuestions; first += rows) {
      const auto batch = questions.micro_batch(first, rows);
      const at::Tensor loss =
          model->loss_sum(batch.ids_T, batch.labels_T, batch.documents) / questions.supervised;
      loss.backward();
      step.loss += loss.item<double>();
    }
    for (const auto& parameter : model->named_parameters()) {
      step.gradients[parameter.key()] = parameter.value().grad().flatten().clone();
    }
    optimizer.step();
  }
  return steps;
}

std::vector<Step> train_sharded(const Questions& questions, int ranks, int64_t rows,
                                sherd::Strategy strategy) {
  std::vector<Step> steps(kSteps);
  std::mutex mutex;
  sherd::test::run_ranks(ranks, [&](sherd::World world) {
    auto model =
        setup::load_sharded(kModel, sherd::test::mesh_for(world, strategy), {.strategy = strategy});
    sherd::AdamW optimizer(model, {.lr = kLr, .weight_decay = 0.01});
    for (Step& step : steps) {
      optimizer.zero_grad();
      double part = 0;
      for (int64_t first = world.rank() * rows; first < kQuestions; first += world.size() * rows) {
        const auto batch = questions.micro_batch(first, rows);
        const at::Tensor loss =
            model.run(
                [](model::CausalLmImpl& lm, const at::Tensor& ids, const at::Tensor& labels,
                   const sherd::ops::Documents& documents) {
                  return lm.loss_sum(ids, labels, documents);
                },
                batch.ids_T, batch.labels_T, batch.documents) /
            questions.supervised;
        loss.backward();
        part += loss.item<double>();
      }
      world.all_reduce({&part, 1});
      {
        const std::lock_guard lock(mutex);
        step.loss = part;
        for (const auto& shard : model.parameter_shards()) {
          at::Tensor& whole = step.gradients[shard.name];
          if (!whole.defined()) {
            whole = at::zeros({c10::multiply_integers(shard.shape)});
          }
          whole.narrow(0, shard.begin, shard.end - shard.begin).copy_(shard.gradient);
        }
      }
      optimizer.step();
    }
  });
  return steps;
}

struct Differences {
  double loss = 0;            // relative, worst of all steps
  double first_gradient = 0;  // ‖Δg‖ ÷ max(‖g‖, 1e-4 × global norm), worst parameter
  double gradient = 0;        // the same over all steps
};

Differences compare(const std::vector<Step>& expected, const std::vector<Step>& found) {
  Differences worst;
  for (size_t i = 0; i < expected.size(); ++i) {
    worst.loss = std::max(worst.loss,
                          std::abs(found[i].loss - expected[i].loss) / std::abs(expected[i].loss));
    double squares = 0;
    for (const auto& [name, gradient] : expected[i].gradients) {
      squares += std::pow(gradient.norm().item<double>(), 2);
    }
    for (const auto& [name, gradient] : expected[i].gradients) {
      const double difference = (found[i].gradients.at(name) - gradient).norm().item<double>();
      const double floor = 1e-4 * std::sqrt(squares);
      const double share = difference / std::max(gradient.norm().item<double>(), floor);
      worst.gradient = std::max(worst.gradient, share);
      worst.first_gradient = i == 0 ? std::max(worst.first_gradient, share) : worst.first_gradient;
    }
  }
  return worst;
}

void print(const std::string& what, const Differences& d) {
  std::printf("%-44s loss %.1e, gradients at the first step %.1e, over ten %.1e\n", what.c_str(),
              d.loss, d.first_gradient, d.gradient);
}

TEST(StoriesParity, ShardedEqualsPlainHoweverTheBatchIsCut) {
  const Questions questions;
  const auto plain = train_plain(questions, kQuestions);
  print("two plain runs, cut in one and in four:", compare(plain, train_plain(questions, 2)));
  struct Cut {
    int ranks;
    int64_t rows;
    sherd::Strategy strategy;
  };
  for (const Cut& cut :
       {Cut{1, 8, sherd::Strategy::FullShard}, Cut{2, 4, sherd::Strategy::FullShard},
        Cut{2, 2, sherd::Strategy::ShardGradOp}, Cut{4, 1, sherd::Strategy::FullShard},
        Cut{2, 2, sherd::Strategy::NoShard}, Cut{4, 1, sherd::Strategy::HybridShard}}) {
    const Differences d =
        compare(plain, train_sharded(questions, cut.ranks, cut.rows, cut.strategy));
    print(std::to_string(cut.ranks) + " ranks × micro-batches of " + std::to_string(cut.rows) + ":",
          d);
    EXPECT_LE(d.loss, 1e-6);
    EXPECT_LE(d.first_gradient, 2e-5);
    EXPECT_LE(d.gradient, 1e-4);
  }
}

}  // namespace
}  // namespace llm::train
