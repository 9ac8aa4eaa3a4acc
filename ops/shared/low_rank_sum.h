#pragma once
// The low-rank updates of maps that share an input, as tensor functions outside autograd.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/low_rank.h"

namespace sherd::ops {

/// What an autograd function keeps of updates besides their matrices. One product with the stacked
/// A's serves all of them; with dropout, where each update has its own mask of the input, each has
/// its own product.
/// Shapes: input [rows, I], outputs [rows, O_i], A_i [r_i, I], B_i [O_i, r_i], hidden [rows, Σr].
class LowRankSum : public torch::CustomClassHolder {
 public:
  /// `updates`: one per output, empty for an output without one.
  explicit LowRankSum(const std::vector<LowRank>& updates);

  /// The matrices of the updates that are there, in their order.
  [[nodiscard]] static std::vector<at::Tensor> as_of(const std::vector<LowRank>& updates);
  [[nodiscard]] static std::vector<at::Tensor> bs_of(const std::vector<LowRank>& updates);

  /// Adds each update to its output. Returns the hidden values, scaled, which backward needs.
  at::Tensor add(const Backend& backend, std::vector<at::Tensor>& outputs, const at::Tensor& input,
                 at::TensorList as, at::TensorList bs) const;

  /// The gradient of input · Aᵀ, scaled, from those of the outputs.
  [[nodiscard]] at::Tensor hidden_gradient(const Backend& backend,
                                           const std::vector<at::Tensor>& grad_outputs,
                                           at::TensorList bs) const;
  /// Adds what comes back through the updates.
  void add_input_gradient(const Backend& backend, at::Tensor& grad_input,
                          const at::Tensor& grad_hidden, at::TensorList as) const;
  /// Delivers (see deliver_gradient()) the gradients of those that require one; returns what
  /// backward returns for each.
  [[nodiscard]] std::vector<at::Tensor> deliver_as(const Backend& backend,
                                                   const at::Tensor& grad_hidden,
                                                   const at::Tensor& input,
                                                   at::TensorList as) const;
  [[nodiscard]] std::vector<at::Tensor> deliver_bs(const Backend& backend,
                                                   const std::vector<at::Tensor>& grad_outputs,
                                                   const at::Tensor& hidden,
                                                   at::TensorList bs) const;

 private:
  struct Term {
    size_t output;
    int64_t begin;  // of its columns in the hidden values
    int64_t rank;
    double scale;
    Dropout dropout;
  };
  [[nodiscard]] static at::Tensor columns(const at::Tensor& hidden, const Term& term);
  [[nodiscard]] at::Tensor empty_hidden(int64_t rows, const at::Tensor& like) const;
  void scale(const at::Tensor& hidden) const;

  std::vector<Term> terms_;
  int64_t rank_ = 0;  // of all
  bool drops_ = false;
};

}  // namespace sherd::ops
