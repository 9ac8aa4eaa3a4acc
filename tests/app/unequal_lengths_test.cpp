// Steps of unequal lengths ask oneDNN for products of new shapes again and again: what they leave
// behind is bounded, and planned.

#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "app/allocator.h"
#include "llm/io/hf_config.h"
#include "llm/plan/memory_plan.h"
#include "llm/plan/tiny_step.h"
#include "llm/setup/load_model.h"
#include "llm/setup/peak_memory.h"
#include "llm/train/train_step.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/products.h"
#include "tests/support/temp_folder.h"

namespace app {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kAllowedBytes = 16 * kMiB;
constexpr int kSteps = 100;
constexpr int kMicroBatches = 4;  // of a step
constexpr std::int64_t kShortest = 8;
constexpr std::int64_t kLongest = 400;
constexpr std::int64_t kVocabulary = 512;

// As stories260k: memory of the model is small beside that of compiled products.
constexpr const char* kShape = R"({"model_type": "llama", "hidden_size": 64,
  "intermediate_size": 172, "num_hidden_layers": 5, "num_attention_heads": 8,
  "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 512,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": true})";

llm::inputs::Batch sample_of(std::int64_t length, std::mt19937_64& random) {
  std::uniform_int_distribution<std::int64_t> ids(0, kVocabulary - 1);
  llm::inputs::Batch batch;
  for (std::int64_t i = 0; i < length; ++i) {
    batch.input_ids.push_back(ids(random));
    batch.labels.push_back(i == 0 ? llm::inputs::kUnsupervised : batch.input_ids.back());
  }
  batch.bounds.push_back(length);
  batch.supervised_tokens = length - 1;
  return batch;
}

double planned_bytes(const llm::io::HfConfig& config, const sherd::ShardOptions& options) {
  const llm::plan::MicroBatch longest{{kLongest}, {kLongest}};
  return static_cast<double>(
      llm::plan::plan_memory({.model = config,
                              .ranks = {.size = 1, .local_size = 1},
                              .sharding = options,
                              .micro_batches = std::vector(kMicroBatches, longest),
                              .pooling = llm::plan::kHostPooling,
                              .libraries_bytes = llm::plan::kHostLibrariesBytes})
          .peak_bytes);
}

void train(const llm::io::HfConfig& config, const sherd::ShardOptions& options) {
  auto model =
      llm::setup::random_sharded(config, sherd::Mesh::shard(sherd::World::alone()), options, 1);
  sherd::AdamW optimizer(model);
  std::mt19937_64 random(1);
  std::uniform_int_distribution<std::int64_t> lengths(kShortest, kLongest);
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<llm::inputs::Batch> batches;
    for (int i = 0; i < kMicroBatches; ++i) {
      batches.push_back(sample_of(lengths(random), random));
    }
    llm::train::train_step(model, optimizer, nullptr, batches, {step, 1.0, false});
  }
}

TEST(UnequalLengths, TakeWhatIsPlannedInBfloat16) {
  using namespace sherd::ops::cpu;
  if (!multiplies(c10::kBFloat16, isa())) {
    GTEST_SKIP() << "SKIPPED: the path \"" << isa_name()
                 << "\" multiplies bf16 in float32: it compiles no products of bf16";
  }
  install_allocator();
  const sherd::test::TempFolder folder;
  const auto config = llm::io::read_hf_config(folder.write("config.json", kShape).string());
  sherd::ShardOptions options;
  options.precision.param_dtype = c10::kBFloat16;
  const double planned = planned_bytes(config, options);
  const auto before = llm::plan::program_memory(config, options, /*local_ranks=*/1).own_bytes;
  train(config, options);
  const auto after = llm::setup::resident_memory(/*local_ranks=*/1).own_bytes;
  EXPECT_NEAR(static_cast<double>(after - before) / kMiB, planned / kMiB, kAllowedBytes / kMiB);
}

}  // namespace
}  // namespace app
