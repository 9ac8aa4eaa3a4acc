#pragma once
// SimPO (arXiv:2405.14734), a loss of preference pairs that needs no reference model.

#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/stack.h>
#include <sherd/custom.h>

namespace own_objective {

/// Of a pair: −log σ(β (ℓ_chosen ÷ n_chosen − ℓ_rejected ÷ n_rejected) − γ), with n predicted
/// tokens.
class SimPo final : public sherd::Objective {
 public:
  explicit SimPo(double beta = 2, double gamma = 1) : beta_(beta), gamma_(gamma) {}

  int64_t examples_per_sample() const override { return 2; }
  bool needs_reference() const override { return false; }
  std::vector<std::string> figure_names() const override { return {"rewards/accuracies"}; }

  sherd::ObjectiveTerms terms(const sherd::Likelihoods& of) const override {
    const at::Tensor means_P2 = (of.logps_N / of.tokens_N).view({-1, 2});
    const at::Tensor margin_P = beta_ * (means_P2.select(1, 0) - means_P2.select(1, 1)) - gamma_;
    const at::Tensor by_margin_P = margin_P.sigmoid() - 1;  // ∂loss/∂margin
    const at::Tensor by_means_N = at::stack({by_margin_P, -by_margin_P}, 1).flatten() * beta_;
    const at::Tensor wins_P = means_P2.select(1, 0).gt(means_P2.select(1, 1));
    return {-at::log_sigmoid(margin_P).sum(), by_means_N / of.tokens_N,
            wins_P.to(margin_P.scalar_type()).sum().unsqueeze(0)};
  }

 private:
  double beta_;
  double gamma_;
};

}  // namespace own_objective
