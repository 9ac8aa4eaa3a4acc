#include "llm/bench/gpu_calibration.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "llm/families/family.h"
#include "llm/plan/kernels.h"
#include "llm/plan/moved_bytes.h"
#include "llm/plan/step_time.h"
#include "llm/setup/load_model.h"
#include "sherd/error.h"
#include "sherd/optim.h"

namespace llm::bench {

namespace {

namespace ops = sherd::ops;
using plan::Kernel;
using sherd::ops::AttentionKernel;
using Work = std::function<void()>;

constexpr double kNarrow = 2, kWide = 4;  // bytes of bf16 and fp32

double count_of(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

// A product of the largest that a layer has, of random values: zeros would take less power.
struct ProductBefore {
  at::Tensor a, b, out;

  static ProductBefore of(const KernelSizes& sizes, c10::Device device) {
    const at::TensorOptions options = at::TensorOptions(at::kBFloat16).device(device);
    return {at::randn({sizes.tokens, sizes.width}, options),
            at::randn({sizes.width, sizes.inner}, options),
            at::empty({sizes.tokens, sizes.inner}, options)};
  }
  void multiply(const ops::Backend& backend) {
    const c10::InferenceMode as_made;
    backend.mm(out, a, b);
  }
};

class KernelCalibration {
 public:
  KernelCalibration(const ops::Backend& backend, c10::Device device, const plan::GpuRates& shipped,
                    const KernelSizes& sizes)
      : backend_(backend),
        device_(device),
        sizes_(sizes),
        rates_(shipped),
        product_before_(ProductBefore::of(sizes, device)) {}

  [[nodiscard]] plan::GpuRates run(const std::function<void(const std::string&)>& say) {
    say("measuring copies");
    copies();
    say("measuring norms, activations and losses");
    norms(Kernel::RmsNorm, Kernel::RmsNormBackward, false);
    norms(Kernel::LayerNorm, Kernel::LayerNormBackward, true);
    activations();
    rotary();
    losses();
    sums();
    say("measuring matrix products");
    products();
    say("measuring attention");
    for (const AttentionKernel kernel : {AttentionKernel::Flash, AttentionKernel::Cudnn}) {
      if (const std::string why = attention(kernel); !why.empty()) {
        rates_.source += "; " + why;
        say(why);
      }
    }
    say("measuring AdamW");
    adamw();
    return rates_;
  }

 private:
  void copies();
  void link_to_host();
  void norms(Kernel forward, Kernel backward, bool is_layer_norm);
  void activations();
  void rotary();
  void losses();
  void sums();
  void product(Kernel kernel, const at::Tensor& a, const at::Tensor& b);
  void products();
  [[nodiscard]] std::string attention(AttentionKernel kernel);
  void adamw();

  [[nodiscard]] at::Tensor random(at::IntArrayRef shape) const {
    return at::randn(shape, at::TensorOptions(at::kBFloat16).device(device_));
  }
  [[nodiscard]] at::TensorOptions wide() const {
    return at::TensorOptions(at::kFloat).device(device_);
  }
  void synchronize() const {
    if (!device_.is_cpu()) {
      c10::Event reached(device_.type());
      reached.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
      reached.synchronize();
    }
  }
  // The median of several rounds of `calls` in a row.
  [[nodiscard]] double seconds(const Work& work, int calls = 10) const {
    constexpr int kRounds = 5;
    work();
    work();
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      synchronize();
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) {
        work();
      }
      synchronize();
      rounds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls);
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[kRounds / 2];
  }
  // The median of calls with a product before each, as in a step: under products a GPU lowers its
  // clock, and what is in its caches is theirs.
  [[nodiscard]] double seconds_in_a_step(const Work& work) {
    product_before_.multiply(backend_);
    if (device_.is_cpu()) {
      return seconds(work);
    }
    constexpr int kUnderLoad = 60, kCalls = 20;
    constexpr double kMilli = 1e-3;
    work();
    for (int i = 0; i < kUnderLoad; ++i) {
      product_before_.multiply(backend_);
    }
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    std::vector<c10::Event> begins, ends;
    for (int i = 0; i < kCalls; ++i) {
      product_before_.multiply(backend_);
      begins.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT).record(stream);
      work();
      ends.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT).record(stream);
    }
    ends.back().synchronize();
    std::vector<double> calls;
    for (std::size_t i = 0; i < begins.size(); ++i) {
      calls.push_back(begins[i].elapsedTime(ends[i]) * kMilli);
    }
    std::sort(calls.begin(), calls.end());
    return calls[kCalls / 2];
  }
  void share(Kernel kernel, double bytes, const Work& work) {
    rates_.share_of_copy[kernel] = bytes / seconds_in_a_step(work) / rates_.copy_bytes_per_second;
  }

  const ops::Backend& backend_;
  c10::Device device_;
  const KernelSizes& sizes_;
  plan::GpuRates rates_;
  ProductBefore product_before_;
};

void KernelCalibration::copies() {
  constexpr int kLaunches = 1000;
  const at::Tensor from =
      at::zeros({sizes_.copied_bytes}, at::TensorOptions(at::kByte).device(device_));
  at::Tensor to = at::empty_like(from);
  rates_.copy_bytes_per_second = 2 * count_of(from) / seconds([&] { to.copy_(from); });
  at::Tensor one = at::zeros({1}, wide());
  rates_.launch_seconds = seconds([&] { one.add_(1); }, kLaunches);
  if (!device_.is_cpu()) {
    link_to_host();
  }
}

void KernelCalibration::link_to_host() {
  const c10::impl::VirtualGuardImpl impl(device_.type());
  const at::Tensor sent = at::empty({sizes_.copied_bytes}, at::kByte).pin_memory();
  at::Tensor received = at::empty_like(sent).pin_memory();
  at::Tensor to = at::empty(sent.sizes(), at::TensorOptions(at::kByte).device(device_));
  const at::Tensor from = at::zeros_like(to);
  const std::array streams = {impl.getStreamFromGlobalPool(device_),
                              impl.getStreamFromGlobalPool(device_)};
  synchronize();
  const double both = seconds(
      [&] {
        {
          const c10::StreamGuard guard(streams[0]);
          to.copy_(sent, /*non_blocking=*/true);
        }
        {
          const c10::StreamGuard guard(streams[1]);
          received.copy_(from, /*non_blocking=*/true);
        }
        for (const c10::Stream& stream : streams) {
          stream.synchronize();
        }
      },
      1);
  rates_.pinned_bytes_per_second = count_of(sent) / both;
}

void KernelCalibration::norms(Kernel forward, Kernel backward, bool is_layer_norm) {
  const at::Tensor input = random({sizes_.tokens, sizes_.width}), residual = random(input.sizes());
  const at::Tensor weight = random({sizes_.width});
  const ops::NormParameters parameters{weight, is_layer_norm ? weight : at::Tensor(), 1e-5};
  const double bytes = 4 * count_of(input) * kNarrow;
  share(forward, bytes, [&] { static_cast<void>(backend_.norm({input, residual}, parameters)); });
  const ops::NormOutput output = backend_.norm({input, residual}, parameters);
  share(backward, bytes, [&] {
    static_cast<void>(backend_.norm_backward({input, residual}, output.sum, parameters,
                                             output.statistics, {true, is_layer_norm}));
  });
}

void KernelCalibration::activations() {
  const at::Tensor gate = random({sizes_.tokens, sizes_.inner}), up = random(gate.sizes());
  const at::Tensor grad = random(gate.sizes()), bias = random({sizes_.inner});
  const double one = count_of(gate) * kNarrow;
  share(Kernel::SwiGlu, 3 * one, [&] { static_cast<void>(backend_.swiglu(gate, up)); });
  share(Kernel::SwiGluBackward, 5 * one,
        [&] { static_cast<void>(backend_.swiglu_backward(grad, gate, up)); });
  share(Kernel::BiasGelu, 2 * one, [&] { static_cast<void>(backend_.bias_gelu(gate, bias)); });
  share(Kernel::BiasGeluBackward, 3 * one, [&] {
    static_cast<void>(backend_.bias_gelu_backward(grad, gate, bias, /*wants_bias=*/true));
  });
}

void KernelCalibration::rotary() {
  const at::Tensor heads = random({sizes_.tokens, sizes_.heads, 1, sizes_.head});
  const at::Tensor angles = at::randn({sizes_.tokens, 1, 1, sizes_.head / 2}, wide());
  share(Kernel::Rotary, 2 * (count_of(heads) * kNarrow + count_of(angles) * kWide),
        [&] { static_cast<void>(backend_.rotary(heads, angles, angles, 1)); });
}

void KernelCalibration::losses() {
  at::Tensor logits = random({sizes_.logit_rows, sizes_.vocabulary});
  const at::Tensor targets = at::randint(sizes_.vocabulary, {sizes_.logit_rows},
                                         at::TensorOptions(at::kLong).device(device_));
  const double one = count_of(logits) * kNarrow;
  share(Kernel::CrossEntropy, one,
        [&] { static_cast<void>(backend_.cross_entropy(logits, targets)); });
  const at::Tensor log_sums = backend_.cross_entropy(logits, targets).log_sums_R;
  const at::Tensor scale = at::full({}, 1e-3, wide());
  share(Kernel::CrossEntropyBackward, 2 * one,
        [&] { backend_.cross_entropy_backward(logits, targets, log_sums, scale); });
}

void KernelCalibration::sums() {
  const at::Tensor matrix = random({sizes_.tokens, sizes_.width});
  share(Kernel::ColumnSums, count_of(matrix) * kNarrow,
        [&] { static_cast<void>(backend_.column_sums(matrix)); });
  at::Tensor table = at::zeros({sizes_.vocabulary, sizes_.width}, matrix.options());
  const at::Tensor ids =
      at::randint(sizes_.vocabulary, {sizes_.tokens}, at::TensorOptions(at::kLong).device(device_));
  share(Kernel::EmbeddingGradient, 3 * count_of(matrix) * kNarrow,
        [&] { backend_.add_embedding_gradient(table, ids, matrix); });
}

void KernelCalibration::product(Kernel kernel, const at::Tensor& a, const at::Tensor& b) {
  constexpr double kTera = 1e12;
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  plan::ProductFigure figure{static_cast<double>(a.size(0)), static_cast<double>(b.size(1)),
                             static_cast<double>(a.size(1))};
  figure.teraflops = 2 * figure.m * figure.n * figure.k /
                     seconds_in_a_step([&] { backend_.mm(out, a, b); }) / kTera;
  rates_.products[kernel] = figure;
}

void KernelCalibration::products() {
  const at::Tensor hidden = random({sizes_.tokens, sizes_.width});
  const at::Tensor inner = random({sizes_.tokens, sizes_.inner});
  const at::Tensor weight = random({sizes_.inner, sizes_.width});
  product(Kernel::Product, hidden, weight.t());
  product(Kernel::ProductTowardsInput, inner, weight);
  product(Kernel::ProductTowardsWeight, inner.t(), hidden);
  const at::Tensor head = random({sizes_.vocabulary, sizes_.width});
  product(Kernel::Logits, hidden.narrow(0, 0, sizes_.logit_rows), head.t());
}

// As many tokens in documents of three lengths. Returns why there are no figures, else nothing.
std::string KernelCalibration::attention(AttentionKernel kernel) {
  constexpr double kTera = 1e12, kBackward = 2.5;
  const auto heads = [&](std::int64_t count) {
    return random({sizes_.tokens, count, sizes_.head});
  };
  std::vector<plan::AttentionFigure> figures;
  for (const std::int64_t documents : {4, 2, 1}) {
    const std::int64_t length = sizes_.tokens / documents;
    const ops::AttentionInputs inputs{heads(sizes_.heads),
                                      heads(sizes_.key_heads),
                                      heads(sizes_.key_heads),
                                      ops::Documents::of_equal_length(documents, length),
                                      {},
                                      kernel};
    const at::Tensor grad = random({sizes_.tokens, sizes_.heads * sizes_.head});
    const double operations = 2 * count_of(inputs.query) * static_cast<double>(length);
    const double forward =
        seconds_in_a_step([&] { static_cast<void>(backend_.attention(inputs)); });
    const ops::AttentionOutput output = backend_.attention(inputs);
    const double backward = seconds_in_a_step(
        [&] { static_cast<void>(backend_.attention_backward(inputs, output, grad)); });
    // A back end falls back to another kernel, maybe only in backward, and remembers it.
    if (const AttentionKernel used = backend_.attention(inputs).kernel; used != kernel) {
      return fmt::format("attention by {} as shipped: {} computed it here", ops::name_of(kernel),
                         ops::name_of(used));
    }
    figures.push_back({static_cast<double>(length), operations / forward / kTera,
                       kBackward * operations / backward / kTera});
  }
  rates_.attention[kernel] = std::move(figures);
  return "";
}

// Of a model of one layer, with masters and moments in fp32.
void KernelCalibration::adamw() {
  const c10::InferenceMode gradients(false);
  const io::HfConfig config{.family = families::find_family("llama"),
                            .shape = {.hidden_size = sizes_.width,
                                      .feed_forward_size = sizes_.inner,
                                      .layers = 1,
                                      .heads = sizes_.heads,
                                      .key_heads = sizes_.key_heads,
                                      .head_size = sizes_.head,
                                      .vocab_size = sizes_.vocabulary / 4,
                                      .context_length = 512,
                                      .norm_epsilon = 1e-5,
                                      .tied_embedding = true,
                                      .rope = model::RopeConfig{}},
                            .dtype = std::nullopt};
  plan::PlannedRun run{.model = config,
                       .ranks = {},
                       .sharding = {.precision = {.param_dtype = c10::kBFloat16}},
                       .micro_batches = {}};
  auto model = setup::random_sharded(
      config, sherd::Mesh::shard(sherd::World::alone(device_.type())), run.sharding, 0);
  sherd::AdamW optimizer(model, {.lr = 0});
  const auto options = at::TensorOptions(at::kLong).device(device_);
  const ops::Documents documents = ops::Documents::of_equal_length(1, 16);
  const at::Tensor ids = at::zeros({documents.tokens()}, options),
                   labels = at::zeros_like(ids).cpu();
  model
      .run([&](model::CausalLmImpl& lm,
               const at::Tensor& ids_T) { return lm.loss_sum(ids_T, labels, documents); },
           ids)
      .backward();
  share(Kernel::AdamW, plan::elements_of(run) * plan::update_bytes_a_parameter(run),
        [&] { optimizer.step(); });
}

}  // namespace

void check_ranks_of_kernels(const sherd::World& world) {
  if (world.size() > 1) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format("sherd bench --calibrate measures one GPU, and these are {} ranks: run it with "
                    "`-n 1`, on one host of each kind.",
                    world.size()));
  }
}

plan::GpuRates calibrate_kernels(const ops::Backend& backend, c10::Device device,
                                 const plan::GpuRates& shipped, const KernelSizes& sizes,
                                 const std::function<void(const std::string&)>& say) {
  const c10::InferenceMode no_gradients;
  return KernelCalibration(backend, device, shipped, sizes).run(say);
}

}  // namespace llm::bench
