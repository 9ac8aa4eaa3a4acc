#pragma once
// Modules that families are built from. Each holds a parameter `weight`, some a `bias`, named as in
// Hugging Face checkpoints, and computes with an operator of ops/.

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "ops/low_rank.h"
#include "ops/normalised_sum.h"
#include "ops/q8_0.h"
#include "ops/rms_gain.h"
#include "sherd/lora.h"

namespace llm::model {

/// The product that an adapter adds to a linear map, for the map's operator; empty without an
/// adapter that is enabled. `dropout_keys`: as Context::dropout_keys_T.
[[nodiscard]] sherd::ops::LowRank low_rank_of(const sherd::LoraModule& module,
                                              const at::Tensor& dropout_keys);

/// A linear map, which may have a LoRA adapter. Weight [O, I], drawn from N(0, std); with
/// `has_bias` a bias [O], zeros. `dropout_keys`: as Context::dropout_keys_T.
class ProjectionImpl : public torch::nn::Module, public sherd::LoraModule {
 public:
  ProjectionImpl(int64_t inputs, int64_t outputs, double std, bool has_bias = false);
  /// [..., I] -> [..., O]
  [[nodiscard]] at::Tensor forward(const at::Tensor& input,
                                   const at::Tensor& dropout_keys = {}) const;
  /// The same of a norm's output, which is not kept for backward. Both belong to one unit.
  [[nodiscard]] at::Tensor after_norm(const at::Tensor& normalised,
                                      const at::Tensor& dropout_keys = {}) const;

  [[nodiscard]] int64_t in_features() const override {
    return sherd::ops::q8_0::columns_of(weight);
  }
  [[nodiscard]] int64_t out_features() const override { return weight.size(0); }

  at::Tensor weight;
  at::Tensor bias;  ///< undefined where there is none
};
TORCH_MODULE(Projection);

/// Projection::after_norm() of several, all with a bias or none, an output each. Where their
/// weights lie side by side they are one product: see sherd::ops::linears_after_norm().
[[nodiscard]] std::vector<at::Tensor> after_norm(const std::vector<Projection>& projections,
                                                 const at::Tensor& normalised,
                                                 const at::Tensor& dropout_keys);

/// A table of token vectors. Weight [V, D], drawn from N(0, std).
class TokenEmbeddingImpl : public torch::nn::Module {
 public:
  TokenEmbeddingImpl(int64_t vocabulary, int64_t width, double std);
  /// ids int64 [...] -> [..., D]
  [[nodiscard]] at::Tensor forward(const at::Tensor& ids) const;

  at::Tensor weight;
};
TORCH_MODULE(TokenEmbedding);

/// A norm over the last dimension.
class NormImpl : public torch::nn::Module {
 public:
  /// [..., D] -> [..., D]
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& input) const = 0;
  /// input + residual, and the norm of that.
  [[nodiscard]] virtual sherd::ops::NormalisedSum forward(const at::Tensor& input,
                                                          const at::Tensor& residual) const = 0;
  /// The value of each element of `weight` with which the norm only normalises.
  [[nodiscard]] virtual double neutral_weight() const { return 1; }
};

/// RMSNorm. Weight [D], neutral.
class RmsNormImpl : public NormImpl {
 public:
  RmsNormImpl(int64_t width, double epsilon,
              sherd::ops::RmsGain gain = sherd::ops::RmsGain::Rounded);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const override;
  [[nodiscard]] sherd::ops::NormalisedSum forward(const at::Tensor& input,
                                                  const at::Tensor& residual) const override;
  [[nodiscard]] double neutral_weight() const override;

  at::Tensor weight;

 private:
  double epsilon_;
  sherd::ops::RmsGain gain_;
};

/// LayerNorm. Weight [D], ones; bias [D], zeros.
class LayerNormImpl : public NormImpl {
 public:
  LayerNormImpl(int64_t width, double epsilon);
  [[nodiscard]] at::Tensor forward(const at::Tensor& input) const override;
  [[nodiscard]] sherd::ops::NormalisedSum forward(const at::Tensor& input,
                                                  const at::Tensor& residual) const override;

  at::Tensor weight;
  at::Tensor bias;

 private:
  double epsilon_;
};

}  // namespace llm::model
