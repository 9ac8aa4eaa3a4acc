#include "llm/plan/gpu_rates.h"

#include <algorithm>
#include <array>
#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ops/fused_attention.h"

namespace llm::plan {

namespace {

using sherd::ops::AttentionKernel;

constexpr double kTera = 1e12;
constexpr const char* kMeasured = "an H200, 2026-11-26";

// Each with the size of the product that was measured: gate of Llama-3-8B over 8192 tokens, and
// logits of 2048 rows.
std::map<Kernel, ProductFigure> h200_products() {
  constexpr double kTokens = 8192, kWidth = 4096, kInner = 14'336;
  return {{Kernel::Product, {kTokens, kInner, kWidth, 691}},
          {Kernel::ProductTowardsInput, {kTokens, kWidth, kInner, 695}},
          {Kernel::ProductTowardsWeight, {kInner, kWidth, kTokens, 689}},
          {Kernel::Logits, {2048, 128'256, kWidth, 671}}};
}

// cuDNN 9.19, bfloat16, heads of 128: NVIDIA/cudnn-frontend,
// benchmark/sdpa_benchmark_training/results/h200_919_only_cudnn.
std::map<AttentionKernel, std::vector<AttentionFigure>> h200_attention() {
  return {{AttentionKernel::Flash, {{8192, 287, 286}}},
          {AttentionKernel::Cudnn, {{2048, 484, 370}, {4096, 591, 474}, {8192, 644, 541}}}};
}

bool is_among(const std::vector<StepConstant>& constants, StepConstant one) {
  return std::find(constants.begin(), constants.end(), one) != constants.end();
}

// Beside the measured product's own bytes.
double operations_per_second(const ProductFigure& of, double copy_bytes_per_second) {
  constexpr double kElement = 2;
  const double operations = 2 * of.m * of.n * of.k;
  const double bytes = kElement * (of.m * of.k + of.k * of.n + of.m * of.n);
  return operations / (operations / (of.teraflops * kTera) - bytes / copy_bytes_per_second);
}

GpuRates scaled(GpuRates rates, double products, double bytes) {
  rates.copy_bytes_per_second *= bytes;
  for (auto& [kernel, figure] : rates.products) {
    figure.teraflops *= products;
  }
  for (auto& [kernel, figures] : rates.attention) {
    for (AttentionFigure& figure : figures) {
      figure.forward *= products;
      figure.backward *= products;
    }
  }
  return rates;
}

}  // namespace

GpuRates h200_rates(const std::vector<StepConstant>& left_out) {
  GpuRates rates{.source = fmt::format("measured on {}", kMeasured),
                 .copy_bytes_per_second = 4.25e12,
                 .share_of_copy = {{Kernel::RmsNorm, 0.92},
                                   {Kernel::RmsNormBackward, 0.57},
                                   {Kernel::LayerNorm, 0.87},
                                   {Kernel::LayerNormBackward, 0.53},
                                   {Kernel::SwiGlu, 0.97},
                                   {Kernel::SwiGluBackward, 0.95},
                                   {Kernel::BiasGelu, 0.83},
                                   {Kernel::BiasGeluBackward, 0.76},
                                   {Kernel::Rotary, 0.88},
                                   {Kernel::CrossEntropy, 0.88},
                                   {Kernel::CrossEntropyBackward, 0.87},
                                   {Kernel::ColumnSums, 0.69},
                                   {Kernel::EmbeddingGradient, 0.10}},
                 .products = h200_products(),
                 .attention = h200_attention(),
                 .pinned_bytes_per_second = 50e9};
  if (!is_among(left_out, StepConstant::AdamWShare)) {
    constexpr double kParameters = 8.03e9, kBytes = 14, kSeconds = 0.037;
    rates.share_of_copy[Kernel::AdamW] =
        kParameters * kBytes / kSeconds / rates.copy_bytes_per_second;
  }
  if (!is_among(left_out, StepConstant::LaunchCost)) {
    // The loss's gradient was rounded by as many launches, each of 256 rows of 250,880.
    constexpr double kWithout = 0.0939, kWith = 0.0896, kLaunches = 980;
    rates.launch_seconds = (kWithout - kWith) / kLaunches;
  }
  if (!is_among(left_out, StepConstant::LinkToHost)) {
    constexpr double kParameters = 8.03e9, kBytes = 12, kSeconds = 2.01;
    rates.pinned_bytes_per_second = kParameters * kBytes / kSeconds;
  }
  return rates;
}

GpuRates shipped_rates_of(const Device& device) {
  const Device& h200 = device_of_name("h200-141g");
  GpuRates rates = h200_rates();
  if (device.name == h200.name) {
    return rates;
  }
  const double products = device.operations_per_second / h200.operations_per_second;
  const double bytes = device.bytes_per_second / h200.bytes_per_second;
  rates = scaled(std::move(rates), products, bytes);
  rates.pinned_bytes_per_second = device.pinned_bytes_per_second;
  rates.source = fmt::format("scaled from {}: products by {:.2g}, memory by {:.2g}", kMeasured,
                             products, bytes);
  return rates;
}

double GpuRates::attention_rate(AttentionKernel kernel, double document_tokens,
                                bool is_backward) const {
  constexpr double kTile = 128;
  const std::vector<AttentionFigure>& figures = attention.at(kernel);
  const auto rate = [&](const AttentionFigure& figure) {
    return kTera * (is_backward ? figure.backward : figure.forward);
  };
  const auto above = std::find_if(figures.begin(), figures.end(), [&](const AttentionFigure& at) {
    return at.tokens >= document_tokens;
  });
  if (above == figures.end()) {
    return rate(figures.back());
  }
  if (above == figures.begin()) {
    return rate(*above) * (1 + kTile / above->tokens) /
           (1 + kTile / std::max(1.0, document_tokens));
  }
  const AttentionFigure &a = *(above - 1), &b = *above;
  return rate(a) + (document_tokens - a.tokens) / (b.tokens - a.tokens) * (rate(b) - rate(a));
}

double GpuRates::seconds(const OperatorCall& call) const {
  double all = 0;
  for (const KernelCall& kernel : call.kernels) {
    const bool is_backward = kernel.kernel == Kernel::AttentionBackward;
    const double one =
        is_backward || kernel.kernel == Kernel::Attention
            ? kernel.operations / attention_rate(call.attention, call.document_tokens, is_backward)
            : seconds(kernel);
    all += kernel.times * std::max(one, launch_seconds);
  }
  return all;
}

double GpuRates::seconds(const KernelCall& call) const {
  const auto product = products.find(call.kernel);
  const auto share = share_of_copy.find(call.kernel);
  const double bytes_per_second =
      copy_bytes_per_second * (share == share_of_copy.end() ? 1 : share->second);
  const double multiplying =
      product == products.end()
          ? 0
          : call.operations / operations_per_second(product->second, copy_bytes_per_second);
  return multiplying + call.bytes / bytes_per_second;
}

AttentionKernel attention_on(const Device& device, AttentionKernel asked,
                             const model::DecoderConfig& shape, c10::ScalarType dtype,
                             const MicroBatch& batch, bool deterministic) {
  const std::vector<std::int64_t>& lengths = batch.sample_tokens;
  const bool has_alibi = !shape.rope.has_value();
  const bool serves_lengths =
      !has_alibi || std::all_of(lengths.begin(), lengths.end(), [](std::int64_t length) {
        return length <= sherd::ops::kLongestAlibiDocument;
      });
  const bool is_fused = c10::elementSize(dtype) == 2 && serves_lengths && shape.score_cap == 0 &&
                        sherd::ops::has_fused_attention(device.compute_capability) &&
                        sherd::ops::serves_flash_heads(shape.head_size, has_alibi);
  if (!is_fused || asked == AttentionKernel::Plain) {
    return AttentionKernel::Plain;
  }
  const bool have_one_length =
      std::adjacent_find(lengths.begin(), lengths.end(), std::not_equal_to<>()) == lengths.end();
  const bool serves_cudnn = !deterministic && !has_alibi && have_one_length &&
                            sherd::ops::serves_cudnn_heads(shape.head_size);
  const bool wants_cudnn =
      asked == AttentionKernel::Cudnn || (asked == AttentionKernel::Auto && device.prefers_cudnn());
  return wants_cudnn && serves_cudnn ? AttentionKernel::Cudnn : AttentionKernel::Flash;
}

namespace {

constexpr std::array kProducts = {Kernel::Product, Kernel::ProductTowardsInput,
                                  Kernel::ProductTowardsWeight, Kernel::Logits};
constexpr std::pair<AttentionKernel, const char*> kAttentionNames[] = {
    {AttentionKernel::Cudnn, "cudnn"}, {AttentionKernel::Flash, "flash"}};

std::string name_of_kernel(Kernel kernel) {
  return std::string(kKernelNames[static_cast<std::size_t>(kernel)].name);
}

}  // namespace

nlohmann::ordered_json json_of(const GpuRates& rates) {
  nlohmann::ordered_json shares, products, attention;
  for (const auto& [kernel, share] : rates.share_of_copy) {
    shares[name_of_kernel(kernel)] = share;
  }
  for (const auto& [kernel, of] : rates.products) {
    products[name_of_kernel(kernel)] = {of.m, of.n, of.k, of.teraflops};
  }
  for (const auto& [kernel, name] : kAttentionNames) {
    if (const auto found = rates.attention.find(kernel); found != rates.attention.end()) {
      for (const AttentionFigure& of : found->second) {
        attention[name].push_back({of.tokens, of.forward, of.backward});
      }
    }
  }
  return {{"source", rates.source},
          {"copy_bytes_per_second", rates.copy_bytes_per_second},
          {"share_of_copy", shares},
          {"products_m_n_k_teraflops", products},
          {"attention_tokens_forward_backward_teraflops", attention},
          {"launch_seconds", rates.launch_seconds},
          {"pinned_bytes_per_second", rates.pinned_bytes_per_second}};
}

GpuRates gpu_rates_of_json(const nlohmann::json& file) {
  GpuRates rates{.source = file.at("source"),
                 .copy_bytes_per_second = file.at("copy_bytes_per_second"),
                 .launch_seconds = file.at("launch_seconds"),
                 .pinned_bytes_per_second = file.at("pinned_bytes_per_second")};
  for (const auto& [kernel, name] : kKernelNames) {
    const auto& shares = file.at("share_of_copy");
    if (const std::string key(name); shares.contains(key)) {
      rates.share_of_copy[kernel] = shares.at(key);
    }
  }
  for (const Kernel kernel : kProducts) {
    const auto& of = file.at("products_m_n_k_teraflops").at(name_of_kernel(kernel));
    rates.products[kernel] = {of.at(0), of.at(1), of.at(2), of.at(3)};
  }
  for (const auto& [kernel, name] : kAttentionNames) {
    const auto& figures = file.at("attention_tokens_forward_backward_teraflops").at(name);
    for (std::size_t i = 0; i < std::max<std::size_t>(1, figures.size()); ++i) {
      const auto& of = figures.at(i);
      rates.attention[kernel].push_back({of.at(0), of.at(1), of.at(2)});
    }
  }
  return rates;
}

}  // namespace llm::plan
