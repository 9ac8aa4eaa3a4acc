// What the host launches on a GPU for a layer: kernels of ops/cuda, which are played here,
// LibTorch's products and attention, and LibTorch's other operators, by the operators that a
// sharded model calls.

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "ops/with_backend.h"
#include "sherd/fully_shard.h"
#include "tests/emulator/emulator.h"
#include "tests/llm/model/small_bloom.h"
#include "tests/llm/model/small_llama.h"
#include "tests/ops/cuda/tested.h"
#include "tests/support/ranks.h"

namespace llm::model {
namespace {

using sherd::ops::Backend;

// Names memory, or only calls others.
constexpr std::array<std::string_view, 27> kLaunchNothing = {"alias",
                                                             "as_strided",
                                                             "clone",
                                                             "contiguous",
                                                             "detach",
                                                             "empty",
                                                             "empty_like",
                                                             "empty_strided",
                                                             "expand",
                                                             "narrow",
                                                             "permute",
                                                             "reshape",
                                                             "select",
                                                             "slice",
                                                             "split",
                                                             "squeeze",
                                                             "stack",
                                                             "t",
                                                             "to",
                                                             "_to_copy",
                                                             "transpose",
                                                             "unbind",
                                                             "unsafe_split_with_sizes",
                                                             "unsqueeze",
                                                             "view",
                                                             "_unsafe_view",
                                                             "view_as"};

struct Launches {
  std::int64_t kernels = 0;                            // of ops/cuda
  std::int64_t products = 0;                           // LibTorch's
  std::map<std::string, std::int64_t> operators = {};  // its others, by name

  [[nodiscard]] std::int64_t others() const {
    std::int64_t sum = 0;
    for (const auto& [name, count] : operators) {
      sum += count;
    }
    return sum;
  }
  [[nodiscard]] std::int64_t all() const { return kernels + products + others(); }
};

// Of this thread.
thread_local Launches* counted = nullptr;
thread_local int inside = 0;  // of what is one launch on a GPU

class AsOne {
 public:
  AsOne() { ++inside; }
  ~AsOne() { --inside; }
  AsOne(const AsOne&) = delete;
  AsOne& operator=(const AsOne&) = delete;
};

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction& function) {
  std::string_view name = function.name();
  if (counted == nullptr || !name.starts_with("aten::")) {
    return nullptr;
  }
  name.remove_prefix(std::string_view("aten::").size());
  const bool launches =
      std::find(kLaunchNothing.begin(), kLaunchNothing.end(), name) == kLaunchNothing.end();
  counted->operators[std::string(name)] += inside == 0 && launches ? 1 : 0;
  inside += launches ? 1 : 0;
  return nullptr;
}
void end_operator(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  std::string_view name = function.name();
  if (counted == nullptr || !name.starts_with("aten::")) {
    return;
  }
  name.remove_prefix(std::string_view("aten::").size());
  if (std::find(kLaunchNothing.begin(), kLaunchNothing.end(), name) == kLaunchNothing.end()) {
    --inside;
  }
}

const Backend& played() {
  return sherd::ops::cuda::test::tested_backend();
}

template <class Fn>
void one_product(const Fn& compute) {
  counted->products += inside == 0 ? 1 : 0;
  const AsOne one;
  compute();
}
void mm_of_a_layer(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  one_product([&] { played().mm(out, a, b); });
}
void addmm_of_a_layer(at::Tensor& out, const at::Tensor& bias, const at::Tensor& a,
                      const at::Tensor& b) {
  one_product([&] { played().addmm(out, bias, a, b); });
}

const Backend& counting_gpu() {
  static const Backend backend = [] {
    Backend counting = played();
    counting.mm = &mm_of_a_layer;
    counting.addmm = &addmm_of_a_layer;
    return counting;
  }();
  return backend;
}

Launches launches_in(const std::function<void()>& work) {
  Launches found;
  const auto before = static_cast<std::int64_t>(sherd::emulator::next_seed());
  counted = &found;
  work();
  counted = nullptr;
  found.kernels = static_cast<std::int64_t>(sherd::emulator::next_seed()) - before - 1;
  return found;
}

struct Both {
  Launches forward;
  Launches backward;
};

// Of a model of a unit a layer, in bf16.
template <class Make>
Both launches_of_model(DecoderConfig config, std::int64_t layers, const Make& make) {
  config.layers = layers;
  const auto batch = make_batch({17, 5, 11}, config.vocab_size);
  Both found;
  sherd::test::run_ranks(1, [&](sherd::World world) {
    const sherd::ops::WithBackend on_this_thread(counting_gpu());
    sherd::ShardOptions options;
    options.precision.param_dtype = c10::kBFloat16;
    auto model = sherd::fully_shard(make(config), sherd::Mesh::shard(std::move(world)), options);
    const auto handle =
        at::addThreadLocalCallback(at::RecordFunctionCallback(&begin_operator, &end_operator)
                                       .scopes({at::RecordScope::FUNCTION}));
    at::Tensor loss;
    const auto loss_of = [](CausalLmImpl& lm, const at::Tensor& ids, const at::Tensor& labels,
                            const sherd::ops::Documents& documents) {
      return lm.loss_sum(ids, labels, documents);
    };
    found.forward = launches_in(
        [&] { loss = model.run(loss_of, batch.ids_T, batch.labels_T, batch.documents); });
    found.backward = launches_in([&] { loss.backward(); });
    at::removeCallback(handle);
  });
  return found;
}

Launches difference(Launches more, const Launches& less) {
  more.kernels -= less.kernels;
  more.products -= less.products;
  for (const auto& [name, count] : less.operators) {
    more.operators[name] -= count;
  }
  return more;
}

void print(const char* of, const Launches& launches) {
  std::printf("| %s | %lld | %lld | %lld", of, static_cast<long long>(launches.kernels),
              static_cast<long long>(launches.products), static_cast<long long>(launches.others()));
  const char* before = ": ";
  for (const auto& [name, count] : launches.operators) {
    if (count != 0) {
      std::printf("%s%s %lld", before, name.c_str(), static_cast<long long>(count));
      before = ", ";
    }
  }
  std::printf(" | %lld |\n", static_cast<long long>(launches.all()));
}

// Rows that kernels read in whole packs, weights without a gap.
DecoderConfig packed(DecoderConfig config) {
  config.hidden_size = 64;
  config.feed_forward_size = config.rope ? 96 : 256;
  config.heads = 4;
  config.key_heads = config.rope ? 2 : 4;
  config.head_size = 16;
  config.vocab_size = 96;
  return config;
}

template <class Make>
Both launches_of_layer(const char* family, const DecoderConfig& config, const Make& make) {
  const Both more = launches_of_model(packed(config), 3, make);
  const Both less = launches_of_model(packed(config), 2, make);
  const Both layer{difference(more.forward, less.forward),
                   difference(more.backward, less.backward)};
  print((std::string(family) + ", forward").c_str(), layer.forward);
  print((std::string(family) + ", backward").c_str(), layer.backward);
  return layer;
}

TEST(Launches, OfALayerOfLlama) {
  const Both layer = launches_of_layer("Llama", small_llama_config(), make_llama);
  EXPECT_EQ(layer.forward.all(), 12);
  EXPECT_EQ(layer.backward.all(), 22);
}

TEST(Launches, OfALayerOfBloom) {
  const Both layer = launches_of_layer("BLOOM", small_bloom_config(), make_bloom);
  EXPECT_EQ(layer.forward.all(), 13);
  EXPECT_EQ(layer.backward.all(), 37);
}

TEST(AttentionKernel, OfTheModelComputesItsAttention) {
  using sherd::ops::AttentionKernel;
  const sherd::ops::WithBackend on_this_thread(played());
  const DecoderConfig config = packed(small_llama_config());
  CausalLm model = make_llama(config);
  model->to(at::kBFloat16);
  const auto batch = make_batch({8, 8}, config.vocab_size);
  for (const AttentionKernel kernel :
       {AttentionKernel::Cudnn, AttentionKernel::Flash, AttentionKernel::Plain}) {
    model->set_attention_kernel(kernel);
    static_cast<void>(model->loss_sum(batch.ids_T, batch.labels_T, batch.documents));
    const sherd::ops::AttentionChoice choice = played().attention_choices().back();
    EXPECT_EQ(choice.kernel, kernel) << sherd::ops::text_of(choice);
  }
}

}  // namespace
}  // namespace llm::model
