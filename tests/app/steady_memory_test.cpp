// A steady step asks the system for no memory: what the one before used is used again.

#include <cstddef>

#include <gperftools/malloc_extension.h>
#include <gtest/gtest.h>

#include "app/allocator.h"
#include "llm/bench/bench_data.h"
#include "llm/io/hf_config.h"
#include "llm/setup/load_model.h"
#include "llm/train/train_step.h"
#include "tests/support/temp_folder.h"

namespace app {
namespace {

// Activations, logits and gradients of several MiB.
constexpr const char* kShape = R"({"model_type": "llama", "hidden_size": 512,
  "intermediate_size": 1408, "num_hidden_layers": 3, "num_attention_heads": 8,
  "num_key_value_heads": 8, "vocab_size": 8192, "max_position_embeddings": 512,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": false})";

std::size_t held_from_system_bytes() {
  std::size_t bytes = 0;
  EXPECT_TRUE(MallocExtension::instance()->GetNumericProperty("generic.heap_size", &bytes));
  return bytes + large_blocks_bytes();
}

TEST(SteadyStep, AsksTheSystemForNothing) {
  install_allocator();
  const sherd::test::TempFolder folder;
  const auto config = llm::io::read_hf_config(folder.write("config.json", kShape).string());
  for (const auto dtype : {c10::kBFloat16, c10::kFloat}) {
    sherd::ShardOptions options;
    options.precision.param_dtype = dtype;
    auto model =
        llm::setup::random_sharded(config, sherd::Mesh::shard(sherd::World::alone()), options, 1);
    sherd::AdamW optimizer(model);
    const auto step = [&](std::int64_t number) {
      const auto batch = llm::bench::bench_batch({"", 8192, 512, 512, 1}, number, 1);
      llm::train::train_step(model, optimizer, nullptr, {batch}, {number + 1, 1.0, false});
    };
    for (std::int64_t number = 0; number < 3; ++number) {
      step(number);
    }
    const std::size_t before = held_from_system_bytes();
    for (std::int64_t number = 3; number < 9; ++number) {
      step(number);
    }
    EXPECT_EQ(held_from_system_bytes(), before) << dtype;
  }
}

}  // namespace
}  // namespace app
