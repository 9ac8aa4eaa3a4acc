// The functions of a device's back end at the sizes of Llama-3-8B: bytes a second beside a copy's,
// and products' operations.
//
//   gpu_kernels --device cuda [--rounds N]
//
// Bytes are the least that a function has to read and write, each tensor once. Prints one line of
// JSON. `--device cpu` takes sizes that show nothing but that the program runs.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "ops/backend.h"
#include "ops/cuda_library.h"
#include "ops/plain/plain_backend.h"
#include "sherd/backend.h"
#include "src/kernels/shard_math.h"

namespace sherd::benchmarks {
namespace {

using detail::shard_math::adamw;
using detail::shard_math::AdamWTensors;

struct Sizes {
  int64_t tokens = 8192;
  int64_t width = 4096;
  int64_t inner = 14336;
  int64_t heads = 32;
  int64_t key_heads = 8;
  int64_t head = 128;
  int64_t vocabulary = 128256;
  int64_t logit_rows = 2048;   // of a chunk
  int64_t copied = 1LL << 30;  // bytes
};
constexpr Sizes kTiny = {.tokens = 64,
                         .width = 64,
                         .inner = 128,
                         .heads = 4,
                         .key_heads = 2,
                         .head = 16,
                         .vocabulary = 512,
                         .logit_rows = 16,
                         .copied = 1 << 20};

constexpr double kBf16 = 2, kFp32 = 4;

class Measured {
 public:
  Measured(c10::Device device, int rounds) : device_(device), rounds_(rounds) {}

  /// Median seconds of one of ten calls in a row, of all rounds.
  double seconds(const std::function<void()>& work) const {
    constexpr int kCalls = 10;
    work();
    work();
    std::vector<double> all;
    for (int round = 0; round < rounds_; ++round) {
      all.push_back((device_.is_cpu() ? on_host(work, kCalls) : on_device(work, kCalls)) / kCalls);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }

  void bytes(const std::string& name, double count, const std::function<void()>& work) {
    const double took = seconds(work);
    kernels_.push_back({{"name", name}, {"seconds", took}, {"bytes", count}});
  }
  void operations(const std::string& name, double count, const std::function<void()>& work) {
    const double took = seconds(work);
    products_.push_back(
        {{"name", name}, {"seconds", took}, {"teraflops_per_second", count / took * 1e-12}});
  }

  [[nodiscard]] nlohmann::ordered_json json(const std::string& backend, double copy_rate) {
    for (auto& kernel : kernels_) {
      const double rate = kernel["bytes"].get<double>() / kernel["seconds"].get<double>();
      kernel["share_of_copy"] = rate / copy_rate;
    }
    return {{"device", device_.str()},
            {"backend", backend},
            {"copy_bytes_per_second", copy_rate},
            {"kernels", kernels_},
            {"products", products_}};
  }

 private:
  static double on_host(const std::function<void()>& work, int calls) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) {
      work();
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  // Between two events of the device's stream.
  [[nodiscard]] double on_device(const std::function<void()>& work, int calls) const {
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    c10::Event start(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    start.record(stream);
    for (int i = 0; i < calls; ++i) {
      work();
    }
    end.record(stream);
    end.synchronize();
    return start.elapsedTime(end) * 1e-3;
  }

  c10::Device device_;
  int rounds_;
  nlohmann::ordered_json kernels_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json products_ = nlohmann::ordered_json::array();
};

/// What is measured, of one back end; tensors in bf16 but where said.
class Kernels {
 public:
  Kernels(const ops::Backend& backend, const Sizes& sizes, c10::Device device, Measured& measured)
      : backend_(backend), sizes_(sizes), device_(device), measured_(measured) {}

  [[nodiscard]] double copy_rate() const {
    const at::Tensor from =
        at::zeros({sizes_.copied}, at::TensorOptions(at::kByte).device(device_));
    const at::Tensor to = at::empty_like(from);
    return 2.0 * static_cast<double>(sizes_.copied) / measured_.seconds([&] { to.copy_(from); });
  }
  void norms(const char* name, bool is_layer_norm);
  void activations();
  void rotary();
  void losses();
  void sums();
  void optimizer();
  void products();
  void attention();

 private:
  [[nodiscard]] at::Tensor random(at::IntArrayRef shape) const {
    return at::randn(shape, at::TensorOptions(at::kBFloat16).device(device_));
  }
  [[nodiscard]] at::TensorOptions fp32() const {
    return at::TensorOptions(at::kFloat).device(device_);
  }
  void product(const std::string& name, const at::Tensor& a, const at::Tensor& b,
               c10::ScalarType out_dtype);

  const ops::Backend& backend_;
  const Sizes& sizes_;
  c10::Device device_;
  Measured& measured_;
};

void Kernels::norms(const char* name, bool is_layer_norm) {
  const at::Tensor input = random({sizes_.tokens, sizes_.width}), residual = random(input.sizes());
  const at::Tensor weight = random({sizes_.width});
  const ops::NormParameters parameters{weight, is_layer_norm ? weight : at::Tensor(), 1e-5};
  const auto one = static_cast<double>(input.numel()) * kBf16;
  measured_.bytes(std::string("add and ") + name, 4 * one, [&] {
    static_cast<void>(backend_.norm({input, residual}, parameters));
  });
  const ops::NormOutput output = backend_.norm({input, residual}, parameters);
  measured_.bytes(std::string("add and ") + name + ", back", 4 * one, [&] {
    static_cast<void>(backend_.norm_backward({input, residual}, output.sum, parameters,
                                             output.statistics, {true, is_layer_norm}));
  });
}

void Kernels::activations() {
  const at::Tensor gate = random({sizes_.tokens, sizes_.inner}), up = random(gate.sizes());
  const at::Tensor grad = random(gate.sizes()), bias = random({sizes_.inner});
  const auto one = static_cast<double>(gate.numel()) * kBf16;
  measured_.bytes("SwiGLU", 3 * one, [&] { static_cast<void>(backend_.swiglu(gate, up)); });
  measured_.bytes("SwiGLU, back", 5 * one,
                  [&] { static_cast<void>(backend_.swiglu_backward(grad, gate, up)); });
  measured_.bytes("bias and GELU", 2 * one,
                  [&] { static_cast<void>(backend_.bias_gelu(gate, bias)); });
  measured_.bytes("bias and GELU, back", 3 * one, [&] {
    static_cast<void>(backend_.bias_gelu_backward(grad, gate, bias, /*wants_bias=*/true));
  });
}

void Kernels::rotary() {
  const at::Tensor heads = random({sizes_.tokens, sizes_.heads, 1, sizes_.head});
  const at::Tensor angles = at::randn({sizes_.tokens, 1, 1, sizes_.head / 2}, fp32());
  const double bytes = 2 * static_cast<double>(heads.numel()) * kBf16 +
                       2 * static_cast<double>(angles.numel()) * kFp32;
  measured_.bytes("rotary", bytes,
                  [&] { static_cast<void>(backend_.rotary(heads, angles, angles, 1)); });
}

void Kernels::losses() {
  at::Tensor logits = random({sizes_.logit_rows, sizes_.vocabulary});
  const at::Tensor targets = at::randint(sizes_.vocabulary, {sizes_.logit_rows},
                                         at::TensorOptions(at::kLong).device(device_));
  const auto one = static_cast<double>(logits.numel()) * kBf16;
  measured_.bytes("cross-entropy", one,
                  [&] { static_cast<void>(backend_.cross_entropy(logits, targets)); });
  const at::Tensor log_sums = backend_.cross_entropy(logits, targets).log_sums_R;
  const at::Tensor scale = at::full({}, 1e-3, fp32());
  measured_.bytes("cross-entropy, back", 2 * one,
                  [&] { backend_.cross_entropy_backward(logits, targets, log_sums, scale); });
}

void Kernels::sums() {
  const at::Tensor matrix = random({sizes_.tokens, sizes_.width});
  const auto numel = static_cast<double>(matrix.numel());
  measured_.bytes("sums over rows", numel * kBf16,
                  [&] { static_cast<void>(backend_.column_sums(matrix)); });
  at::Tensor table = at::zeros({sizes_.vocabulary, sizes_.width}, fp32());
  const at::Tensor ids =
      at::randperm(sizes_.vocabulary, at::kLong).narrow(0, 0, sizes_.tokens).to(device_);
  measured_.bytes("gradient of an embedding", numel * (kBf16 + 2 * kFp32),
                  [&] { backend_.add_embedding_gradient(table, ids, matrix); });
}

// State as after some steps of training: the bytes of one update per element.
void Kernels::optimizer() {
  const int64_t numel = sizes_.copied / 4;
  const at::Tensor travelling = random({numel}), gradient = random({numel}).mul_(1e-3);
  const auto moments = [&](c10::ScalarType dtype) {
    const at::Tensor first = random({numel}).mul_(1e-4).to(dtype);
    return std::pair(first, first.square().add_(1e-8));
  };
  const kernels::AdamWStep step{.keep = 0.9999F,
                                .step_size = 1e-4F,
                                .one_minus_beta1 = 0.1F,
                                .beta2 = 0.999F,
                                .one_minus_beta2 = 0.001F,
                                .bias_correction2_sqrt = 0.5F,
                                .eps = 1e-8F,
                                .number = 100};
  const auto measure = [&](const char* name, double bytes, const AdamWTensors& tensors) {
    measured_.bytes(name, static_cast<double>(numel) * bytes, [&] { adamw(tensors, step); });
  };
  {
    const auto [m, v] = moments(at::kBFloat16);
    measure("AdamW, all in bf16", 14,
            {.master = {},
             .exp_avg = m,
             .exp_avg_sq = v,
             .gradient = gradient,
             .travelling = travelling});
  }
  const auto [m, v] = moments(at::kFloat);
  measure("AdamW, masters and moments in fp32", 28,
          {.master = travelling.to(at::kFloat),
           .exp_avg = m,
           .exp_avg_sq = v,
           .gradient = gradient,
           .travelling = travelling});
}

void Kernels::product(const std::string& name, const at::Tensor& a, const at::Tensor& b,
                      c10::ScalarType out_dtype) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options().dtype(out_dtype));
  const double operations = 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(1));
  measured_.operations(name, operations, [&] { backend_.mm(out, a, b); });
}

void Kernels::products() {
  const at::Tensor square = random({sizes_.tokens, sizes_.tokens});
  product("tokens x tokens x tokens", square, square, at::kBFloat16);
  const at::Tensor hidden = random({sizes_.tokens, sizes_.width});
  const at::Tensor inner = random({sizes_.tokens, sizes_.inner});
  const at::Tensor weight = random({sizes_.inner, sizes_.width});
  product("gate", hidden, weight.t(), at::kBFloat16);
  product("gate, towards the input", inner, weight, at::kBFloat16);
  product("gate, towards the weight in bf16", inner.t(), hidden, at::kBFloat16);
  product("gate, towards the weight in fp32", inner.t(), hidden, at::kFloat);
  const at::Tensor head = random({sizes_.vocabulary, sizes_.width});
  product("logits of a chunk", hidden.narrow(0, 0, sizes_.logit_rows), head.t(), at::kBFloat16);
}

// Causal, one document: half of the scores count.
void Kernels::attention() {
  const auto heads = [&](int64_t count) { return random({sizes_.tokens, count, sizes_.head}); };
  const ops::AttentionInputs inputs{heads(sizes_.heads),
                                    heads(sizes_.key_heads),
                                    heads(sizes_.key_heads),
                                    ops::Documents::of_equal_length(1, sizes_.tokens),
                                    {}};
  const at::Tensor grad = random({sizes_.tokens, sizes_.heads * sizes_.head});
  const double operations =
      2.0 * static_cast<double>(inputs.query.numel()) * static_cast<double>(sizes_.tokens);
  measured_.operations("attention", operations,
                       [&] { static_cast<void>(backend_.attention(inputs)); });
  const ops::AttentionOutput output = backend_.attention(inputs);
  measured_.operations("attention, back", 2.5 * operations, [&] {
    static_cast<void>(backend_.attention_backward(inputs, output, grad));
  });
}

void run(c10::Device device, int rounds) {
  static_cast<void>(gpus());  // registers the library's kernels
  // The library brings LibTorch's part for GPUs: before any tensor is made on one.
  const ops::Backend backend = device.is_cpu()
                                   ? ops::backend_of(at::empty({0}, at::kBFloat16))
                                   : ops::backend_of_cuda_library(ops::plain::plain_backend());
  const c10::InferenceMode no_gradients;
  const Sizes sizes = device.is_cpu() ? kTiny : Sizes{};
  Measured measured(device, rounds);
  Kernels kernels(backend, sizes, device, measured);
  const double copy_rate = kernels.copy_rate();
  kernels.norms("RMSNorm", false);
  kernels.norms("LayerNorm", true);
  kernels.activations();
  kernels.rotary();
  kernels.losses();
  kernels.sums();
  kernels.optimizer();
  kernels.products();
  kernels.attention();
  std::printf("%s\n", measured.json(backend.name, copy_rate).dump().c_str());
}

}  // namespace
}  // namespace sherd::benchmarks

int main(int argc, char** argv) {
  std::string device;
  int rounds = 5;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    device = flag == "--device" ? argv[i + 1] : device;
    rounds = flag == "--rounds" ? std::atoi(argv[i + 1]) : rounds;
  }
  if (argc % 2 == 0 || (device != "cpu" && device != "cuda") || rounds < 1) {
    std::fprintf(stderr, "usage: gpu_kernels --device cpu|cuda [--rounds N]\n");
    return 64;
  }
  try {
    sherd::benchmarks::run(c10::Device(device == "cpu" ? "cpu" : "cuda:0"), rounds);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "gpu_kernels: %s\n", error.what_without_backtrace());
    return 1;
  }
  return 0;
}
