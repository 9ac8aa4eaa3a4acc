// A steady step asks the system for no block of more than 1 MiB: neither through malloc, whose
// functions this program counts, nor through the program's allocator.

#include <atomic>
#include <cerrno>
#include <cstddef>

#include <gtest/gtest.h>

#include "app/caching_allocator.h"
#include "llm/bench/bench_data.h"
#include "llm/io/hf_config.h"
#include "llm/train/load_model.h"
#include "llm/train/train_step.h"
#include "tests/support/temp_folder.h"

namespace {

std::atomic<int> large_requests = 0;

void* counted(std::size_t bytes, void* memory) {
  large_requests += bytes > (std::size_t{1} << 20) ? 1 : 0;
  return memory;
}

}  // namespace

// In place of the C library's, whose own these call.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) {
  return counted(bytes, __libc_malloc(bytes));
}
void* calloc(std::size_t count, std::size_t each) {
  return counted(count * each, __libc_calloc(count, each));
}
void* realloc(void* old, std::size_t bytes) {
  return counted(bytes, __libc_realloc(old, bytes));
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  return counted(bytes, __libc_memalign(alignment, bytes));
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return counted(bytes, __libc_memalign(alignment, bytes));
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  *memory = counted(bytes, __libc_memalign(alignment, bytes));
  return *memory == nullptr ? ENOMEM : 0;
}
}

namespace app {
namespace {

// Activations, logits and gradients of several MiB.
constexpr const char* kShape = R"({"model_type": "llama", "hidden_size": 512,
  "intermediate_size": 1408, "num_hidden_layers": 3, "num_attention_heads": 8,
  "num_key_value_heads": 8, "vocab_size": 8192, "max_position_embeddings": 512,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": false})";

TEST(SteadyStep, AsksTheSystemForNoLargeBlock) {
  install_caching_allocator();
  const sherd::test::TempFolder folder;
  const auto config = llm::io::read_hf_config(folder.write("config.json", kShape).string());
  for (const auto dtype : {c10::kBFloat16, c10::kFloat}) {
    sherd::ShardOptions options;
    options.precision.param_dtype = dtype;
    auto model =
        llm::train::random_sharded(config, sherd::Mesh::shard(sherd::World::alone()), options, 1);
    sherd::AdamW optimizer(model);
    const auto step = [&](std::int64_t number) {
      const auto batch = llm::bench::bench_batch({"", 8192, 512, 512, 1}, number, 1);
      llm::train::train_step(model, optimizer, nullptr, {batch}, {number + 1, 1.0, false});
    };
    for (std::int64_t number = 0; number < 3; ++number) {
      step(number);
    }
    const auto before = caching_allocator_counts();
    large_requests = 0;
    for (std::int64_t number = 3; number < 6; ++number) {
      step(number);
    }
    EXPECT_EQ(large_requests, 0) << dtype;
    EXPECT_EQ(caching_allocator_counts().growths, before.growths) << dtype;
  }
}

// The count would see one.
TEST(SteadyStep, CountsWhatItLooksFor) {
  large_requests = 0;
  std::free(std::malloc((std::size_t{1} << 20) + 1));
  EXPECT_EQ(large_requests, 1);
}

}  // namespace
}  // namespace app
