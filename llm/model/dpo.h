#pragma once
// Direct preference optimization.

#include <string>
#include <vector>

#include "sherd/custom.h"

namespace llm::model {

enum class DpoLoss { Sigmoid, Ipo, Hinge, Robust };

struct DpoOptions {
  DpoLoss loss = DpoLoss::Sigmoid;
  double beta = 0.1;           ///< > 0
  double label_smoothing = 0;  ///< share of pairs whose answers are swapped, in [0, 0.5)
};

/// The loss of a pair, where ρ = ℓ − ℓ_ref, Δ = ρ_chosen − ρ_rejected, n the predicted tokens of an
/// answer and ε the label smoothing:
/// - Sigmoid: −(1 − ε) log σ(βΔ) − ε log σ(−βΔ) (with ε > 0: cDPO)
/// - Ipo: (ρ_chosen ÷ n_chosen − ρ_rejected ÷ n_rejected − 1 ÷ 2β)², as TRL has it
/// - Hinge: max(0, 1 − βΔ)
/// - Robust: (−(1 − ε) log σ(βΔ) + ε log σ(−βΔ)) ÷ (1 − 2ε)
/// Figures: rewards βρ, their margin, the share of pairs whose chosen reward is the larger, and ℓ.
/// Papers: DPO arXiv:2305.18290, IPO 2310.12036, SLiC (hinge) 2305.10425, robust DPO 2403.00409.
class Dpo final : public sherd::Objective {
 public:
  explicit Dpo(const DpoOptions& options) : options_(options) {}

  [[nodiscard]] int64_t examples_per_sample() const override { return 2; }
  [[nodiscard]] bool needs_reference() const override { return true; }
  [[nodiscard]] std::vector<std::string> figure_names() const override;
  [[nodiscard]] sherd::ObjectiveTerms terms(const sherd::Likelihoods& likelihoods) const override;

 private:
  DpoOptions options_;
};

}  // namespace llm::model
