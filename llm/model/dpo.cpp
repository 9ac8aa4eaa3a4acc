#include "llm/model/dpo.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/stack.h>

namespace llm::model {

namespace {

// Shapes: P pairs.

at::Tensor chosen_of(const at::Tensor& all_N) {
  return all_N.slice(0, 0, all_N.size(0), 2);
}

at::Tensor rejected_of(const at::Tensor& all_N) {
  return all_N.slice(0, 1, all_N.size(0), 2);
}

at::Tensor pairs_of(const at::Tensor& chosen_P, const at::Tensor& rejected_P) {
  return at::stack({chosen_P, rejected_P}, 1).flatten();
}

// The loss of each pair, and its derivatives by the log-likelihoods of both answers.
struct PairTerms {
  at::Tensor losses_P;
  at::Tensor by_chosen_P;
  at::Tensor by_rejected_P;
};

PairTerms of_margin(at::Tensor losses_P, const at::Tensor& by_margin_P, double beta) {
  return {std::move(losses_P), by_margin_P * beta, by_margin_P * -beta};
}

PairTerms sigmoid_terms(const at::Tensor& margin_P, const DpoOptions& options) {
  const double smoothing = options.label_smoothing;
  const bool is_robust = options.loss == DpoLoss::Robust;
  const double swapped = is_robust ? -smoothing : smoothing;
  const double scale = is_robust ? 1 / (1 - 2 * smoothing) : 1;
  const at::Tensor losses =
      at::log_sigmoid(margin_P) * (smoothing - 1) - at::log_sigmoid(-margin_P) * swapped;
  const at::Tensor by_margin =
      (-margin_P).sigmoid() * (smoothing - 1) + margin_P.sigmoid() * swapped;
  return of_margin(losses * scale, by_margin * scale, options.beta);
}

PairTerms hinge_terms(const at::Tensor& margin_P, const DpoOptions& options) {
  const at::Tensor distance = 1 - margin_P;
  return of_margin(distance.clamp_min(0), -distance.gt(0).to(margin_P.scalar_type()), options.beta);
}

PairTerms ipo_terms(const at::Tensor& ratios_N, const at::Tensor& tokens_N,
                    const DpoOptions& options) {
  const at::Tensor means_N = ratios_N / tokens_N;
  const at::Tensor distance = chosen_of(means_N) - rejected_of(means_N) - 1 / (2 * options.beta);
  return {distance.square(), 2 * distance / chosen_of(tokens_N),
          -2 * distance / rejected_of(tokens_N)};
}

}  // namespace

std::vector<std::string> Dpo::figure_names() const {
  return {"rewards/chosen",     "rewards/rejected", "rewards/margins",
          "rewards/accuracies", "logps/chosen",     "logps/rejected"};
}

sherd::ObjectiveTerms Dpo::terms(const sherd::Likelihoods& likelihoods) const {
  const at::Tensor& logps_N = likelihoods.logps_N;
  const at::Tensor ratios_N = logps_N - likelihoods.reference_logps_N;
  const at::Tensor rewards_N = ratios_N * options_.beta;
  const at::Tensor chosen_P = chosen_of(rewards_N), rejected_P = rejected_of(rewards_N);
  const at::Tensor margin_P = chosen_P - rejected_P;
  const PairTerms of_pairs = options_.loss == DpoLoss::Ipo
                                 ? ipo_terms(ratios_N, likelihoods.tokens_N, options_)
                             : options_.loss == DpoLoss::Hinge ? hinge_terms(margin_P, options_)
                                                               : sigmoid_terms(margin_P, options_);
  return {of_pairs.losses_P.sum(), pairs_of(of_pairs.by_chosen_P, of_pairs.by_rejected_P),
          at::stack({chosen_P.sum(), rejected_P.sum(), margin_P.sum(),
                     chosen_P.gt(rejected_P).to(margin_P.scalar_type()).sum(),
                     chosen_of(logps_N).sum(), rejected_of(logps_N).sum()})};
}

}  // namespace llm::model
