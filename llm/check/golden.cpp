#include "llm/check/golden.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "llm/adapters/peft_config.h"
#include "llm/adapters/peft_weights.h"
#include "llm/io/import.h"
#include "llm/model/causal_lm.h"
#include "llm/setup/batch_tensors.h"
#include "llm/setup/load_model.h"
#include "llm/setup/run_module.h"
#include "sherd/error.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/safetensors.h"

namespace llm::check {

namespace {

using model::CausalLm;
using model::CausalLmImpl;
using sherd::Sharded;

// The step that the goldens were made with.
constexpr double kGoldenClip = 1.0;
const sherd::AdamWOptions kGoldenAdamW = {
    .lr = 1e-3, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1};
// Gradients are measured against max(their own norm, this share of the global norm).
constexpr double kNormFloor = 1e-4;

struct GoldenBatch {
  at::Tensor ids, labels, mask;  // int64 [B, T]

  // The rows of one rank; none where there are more ranks than rows.
  [[nodiscard]] GoldenBatch of_rank(const sherd::World& world) const {
    const auto rows = [&](const at::Tensor& all) {
      return all.slice(0, std::min<int64_t>(world.rank(), all.size(0)), all.size(0), world.size());
    };
    return {rows(ids), rows(labels), rows(mask)};
  }
};

struct Golden {
  GoldenBatch batch;
  at::Tensor logits;  // [B, T, V]; undefined: an adapter's golden without them
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  // flattened, fp64, by parameter
  double gradient_norm = 0;
  std::vector<double> losses, gradient_norms;  // by step
};

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) : file_(path) {}

  [[nodiscard]] at::Tensor tensor(const std::string& name) const {
    const auto* entry = file_.find(name);
    if (entry == nullptr) {
      fail(name, "is missing");
    }
    return file_.read(*entry);
  }
  [[nodiscard]] bool contains(const std::string& name) const { return file_.contains(name); }
  [[nodiscard]] at::Tensor tensor(const std::string& name, at::IntArrayRef shape) const {
    at::Tensor found = tensor(name);
    if (found.sizes() != shape) {
      fail(name, "has another shape than `input_ids` or the model ask for");
    }
    return found;
  }
  [[nodiscard]] std::vector<double> numbers(const std::string& name) const {
    const at::Tensor values = tensor(name).to(at::kDouble).flatten();
    return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
  }
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw sherd::Error(sherd::ExitCode::BadData, file_.path() + ": tensor `" + name + "` " + what);
  }

 private:
  sherd::SafetensorsFile file_;
};

void check_ids(const GoldenFile& file, const GoldenBatch& batch, int64_t vocab_rows) {
  const auto outside = [&](const at::Tensor& ids) {
    return ((ids < 0) | (ids >= vocab_rows)).any().item<bool>();
  };
  if (outside(batch.ids)) {
    file.fail("input_ids", "has ids outside the model's vocabulary");
  }
  if (outside(batch.labels.masked_select(batch.labels != model::kIgnoredLabel))) {
    file.fail("labels", "has labels outside the model's vocabulary that are not -100");
  }
}

Golden read_golden(const std::string& path, const CausalLmImpl& model, bool is_of_adapter) {
  const GoldenFile file(path);
  Golden golden;
  golden.batch.ids = file.tensor("input_ids");
  if (golden.batch.ids.dim() != 2 || golden.batch.ids.scalar_type() != at::kLong) {
    file.fail("input_ids", "is not [batch, tokens] of int64");
  }
  const auto shape = golden.batch.ids.sizes();
  golden.batch.labels = file.tensor("labels", shape).to(at::kLong);
  golden.batch.mask = file.tensor("attention_mask", shape).to(at::kLong);
  check_ids(file, golden.batch, model.vocab_rows());
  if (!is_of_adapter || file.contains("logits")) {
    golden.logits = file.tensor("logits", {shape[0], shape[1], model.vocab_rows()});
  }
  golden.loss = file.numbers("loss").at(0);
  golden.losses = file.numbers("losses");
  golden.gradient_norms = file.numbers("grad_norms");
  if (golden.losses.size() != golden.gradient_norms.size()) {
    file.fail("losses", "and `grad_norms` differ in length");
  }
  double square = 0;
  for (const auto& parameter : model.named_parameters()) {
    if (!parameter.value().requires_grad()) {
      continue;
    }
    const std::string name =
        "grad." + (is_of_adapter ? adapters::peft_name(parameter.key()) : parameter.key());
    const at::Tensor gradient =
        file.tensor(name, parameter.value().sizes()).to(at::kDouble).flatten();
    square += gradient.square().sum().item<double>();
    golden.gradients[parameter.key()] = gradient;
  }
  golden.gradient_norm = std::sqrt(square);
  return golden;
}

double relative(double found, double expected) {
  return std::abs(found - expected) / std::abs(expected);
}

// One rank's part of the comparison. Every method is collective.
class GoldenCheck {
 public:
  GoldenCheck(Sharded<CausalLm> model, const Golden& golden)
      : model_(std::move(model)),
        golden_(golden),
        batch_(golden.batch.of_rank(model_.world())),
        tokens_(model::without_padding(batch_.ids, batch_.labels, batch_.mask)),
        supervised_(golden.batch.labels.slice(1, 1).ne(model::kIgnoredLabel).sum().item<double>()) {
    model_.set_gradient_divide_factor(1);
    // As the reference chooses longrope's factors: by the padded length of the batch.
    model_.module()->set_longest_text(golden.batch.ids.size(1));
  }

  GoldenDifferences run() {
    GoldenDifferences found;
    found.logits = golden_.logits.defined() ? logits_difference() : 0;
    sherd::AdamW optimizer(model_, kGoldenAdamW);
    for (size_t step = 0; step < golden_.losses.size(); ++step) {
      optimizer.zero_grad();
      const at::Tensor part = loss_part();
      part.backward();
      if (step == 0) {
        found.loss = relative(sum_over_ranks(part.item<double>()), golden_.loss);
        compare_gradients(found);
      }
      const auto norm = sherd::clip_grad_norm(model_, kGoldenClip).item<double>();
      optimizer.step();
      found.gradient_norms =
          std::max(found.gradient_norms, relative(norm, golden_.gradient_norms[step]));
      const c10::AutoGradMode no_gradient(false);
      const double after = sum_over_ranks(loss_part().item<double>());
      found.losses = std::max(found.losses, relative(after, golden_.losses[step]));
    }
    return found;
  }

 private:
  double sum_over_ranks(double value) {
    model_.world().all_reduce({&value, 1});
    return value;
  }

  // This rank's part of the mean over all supervised tokens.
  at::Tensor loss_part() { return setup::loss_sum(model_, tokens_) / supervised_; }

  // Largest difference where the mask is 1 ÷ largest logit there.
  double logits_difference() {
    const c10::AutoGradMode no_gradient(false);
    const auto compute = [](CausalLmImpl& lm, const at::Tensor& ids,
                            const sherd::ops::Documents& documents) {
      return lm.logits(ids, documents);
    };
    const at::Tensor logits = model_.run(compute, tokens_.ids_T, tokens_.documents).cpu();
    const at::Tensor expected = GoldenBatch{golden_.logits, golden_.logits, golden_.logits}
                                    .of_rank(model_.world())
                                    .ids.flatten(0, 1)
                                    .index_select(0, batch_.mask.flatten().nonzero().squeeze(1));
    const auto largest = [&](const at::Tensor& values) {
      return values.numel() == 0 ? 0 : values.abs().max().item<double>();
    };
    double most[] = {largest(logits - expected), largest(expected)};
    model_.world().all_reduce(most, sherd::ReduceOp::Max);
    return most[0] / most[1];
  }

  void compare_gradients(GoldenDifferences& found) {
    auto shards = model_.parameter_shards();
    std::erase_if(shards, [](const auto& shard) { return !shard.trainable; });
    std::vector<double> squares;  // of the difference, by parameter
    for (const auto& shard : shards) {
      const at::Tensor expected = golden_.gradients.at(shard.name).slice(0, shard.begin, shard.end);
      const at::Tensor difference =
          shard.gradient.defined() ? shard.gradient.cpu() - expected : expected;
      squares.push_back(difference.square().sum().item<double>());
    }
    model_.world().all_reduce(squares);
    for (size_t i = 0; i < shards.size(); ++i) {
      const double norm = golden_.gradients.at(shards[i].name).norm().item<double>();
      const double share =
          std::sqrt(squares[i]) / std::max(norm, kNormFloor * golden_.gradient_norm);
      if (found.worst_gradient.empty() || share > found.gradient) {
        found.gradient = share;
        found.worst_gradient = shards[i].name;
      }
    }
  }

  Sharded<CausalLm> model_;
  const Golden& golden_;
  GoldenBatch batch_;
  model::TokenBatch tokens_;  // of it
  double supervised_;
};

}  // namespace

GoldenDifferences compare_with_golden(const std::string& model_folder,
                                      const std::string& golden_path, int ranks,
                                      const std::vector<std::string>& ignored_fields,
                                      c10::DeviceType device, bool checkpoints,
                                      const std::string& adapter) {
  const io::IgnoredFields ignored{ignored_fields, families::IgnoreBy::Flag};
  config::RunConfig run;
  if (!adapter.empty()) {
    run.adapter = adapters::read_peft_config(adapter).adapter;
  }
  const setup::PrepareModule prepare = setup::preparation_of(run);
  const setup::ModelShape shape = setup::model_shape(model_folder, ignored, prepare);
  // Errors are reported before any rank starts.
  (void)io::match_weights(*shape.shapes, sherd::SafetensorsFolder(model_folder));
  if (!adapter.empty()) {
    adapters::require_peft_tensors(*shape.shapes, run.adapter);
  }
  const Golden golden = read_golden(golden_path, *shape.shapes, !adapter.empty());
  sherd::ShardOptions options;
  if (checkpoints) {
    options.units = sherd::unit_policy::every_unit({.checkpoint_activations = true});
  }

  std::vector<sherd::World> worlds = device == c10::DeviceType::CPU
                                         ? sherd::World::in_process(ranks)
                                         : std::vector{sherd::World::alone(device)};
  std::vector<GoldenDifferences> found(worlds.size());
  std::vector<std::exception_ptr> failures(worlds.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([&, rank, world = std::move(worlds[rank])]() mutable {
      try {
        at::set_num_threads(1);
        auto model = setup::load_sharded(model_folder, sherd::Mesh::shard(std::move(world)),
                                         options, ignored, prepare);
        if (!adapter.empty()) {
          setup::load_peft_adapter(model, run.adapter);
        }
        found[rank] = GoldenCheck(std::move(model), golden).run();
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
  return found.front();
}

}  // namespace llm::check
