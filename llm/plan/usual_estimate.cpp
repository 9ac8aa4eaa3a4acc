#include "llm/plan/usual_estimate.h"

#include <algorithm>

#include <fmt/format.h>

#include "llm/plan/memory_table.h"

namespace llm::plan {

namespace {

std::string gb(double bytes) {
  return fmt::format("{:.1f}", bytes / 1e9);
}

std::string gb(std::int64_t bytes) {
  return gb(static_cast<double>(bytes));
}

std::string percent_of(double part, double whole) {
  return fmt::format("{:.1f} %", 100 * part / whole);
}

// The most that any phase of a step holds at its worst moment.
std::int64_t most_of(const EstimatedStep& step, Held held) {
  std::int64_t most = 0;
  for (const PhasePlan& phase : step.memory.phases) {
    most = std::max(most, bytes_of(phase, held));
  }
  return most;
}

std::int64_t of_a_gpu(const EstimatedStep& step) {
  return step.before_bytes + step.memory.peak_bytes;
}

double computing_seconds(const StepTime& time) {
  return time.step_seconds - time.exposed_communication_seconds;
}

// What is kept for each parameter, of all GPUs.
std::vector<EstimateRow> rows_of_parameters(const UsualEstimate& usual,
                                            const PlansBesideEstimate& plans) {
  const auto of_all = [&](const EstimatedStep& step, Held held) {
    return gb(plans.ranks * most_of(step, held));
  };
  return {
      {"parameters, bfloat16", usual.parameters, of_all(plans.checkpointed, Held::Parameters), ""},
      {"float32 masters", "", of_all(plans.checkpointed, Held::Masters),
       "without them small updates round to nothing"},
      {"gradients", usual.gradients, of_all(plans.checkpointed, Held::Gradients),
       "summed in float32: sums in bfloat16 lose small ones"},
      {"AdamW's moments, float32", usual.moments, of_all(plans.checkpointed, Held::Moments), ""},
      {"AdamW's moments, bfloat16", usual.narrow_moments, of_all(plans.narrow, Held::Moments),
       "precision.moments"},
      {"total", usual.all, gb(plans.ranks * of_a_gpu(plans.checkpointed)),
       usual.all.empty() ? "" : "the estimate's own parts add up to 840"}};
}

// Bytes per GPU in addition to its share of that, and in total.
std::vector<EstimateRow> rows_of_a_gpu(const UsualEstimate& usual,
                                       const model::DecoderConfig& shape,
                                       const PlansBesideEstimate& plans) {
  const EstimatedStep& step = plans.checkpointed;
  const auto tokens = static_cast<double>(plans.tokens);
  const double inputs = 2 * tokens * static_cast<double>(shape.layers * shape.hidden_size);
  const double logits = 2 * tokens * static_cast<double>(shape.vocab_size);
  return {
      {"per GPU: gathered units", "", gb(most_of(step, Held::GatheredUnits)),
       "the one that computes and the next one"},
      {"per GPU: gradients to exchange", "", gb(most_of(step, Held::ExchangedGradients)),
       "before and after the exchange, of as many units"},
      {"per GPU: checkpointed activations", usual.activations, gb(most_of(step, Held::Activations)),
       fmt::format("layers' inputs {}, logits {} (and {} in float32)", gb(inputs), gb(logits),
                   gb(2 * logits))},
      {fmt::format("per GPU: total, on {} GPUs", plans.ranks), usual.a_gpu, gb(of_a_gpu(step)),
       "masters, gradients, units, logits, the driver"},
      {"... with moments of 16 bits", usual.a_gpu_narrow, gb(of_a_gpu(plans.narrow)), "the same"}};
}

std::vector<EstimateRow> rows_of_time(const UsualEstimate& usual,
                                      const PlansBesideEstimate& plans) {
  const StepTime& time = plans.checkpointed.time;
  const double activations_ratio =
      static_cast<double>(most_of(plans.kept, Held::Activations)) /
      static_cast<double>(most_of(plans.checkpointed, Held::Activations));
  const double more = computing_seconds(time) / computing_seconds(plans.kept.time) - 1;
  const auto exposed = [](const StepTime& of) {
    return percent_of(of.exposed_communication_seconds, computing_seconds(of));
  };
  std::vector<EstimateRow> rows = {
      {"checkpointing: activations", "/ 2", fmt::format("/ {:.1f}", activations_ratio),
       "each layer keeps only its input"},
      {"checkpointing: computing", "+ 33 %", fmt::format("+ {}", percent_of(more, 1)),
       "forward again, without the head"},
      {"FSDP costs, within a host", "15-25 %", exposed(time),
       "waiting for links; all-gathers overlap with computation"},
      {"FSDP costs, two hosts", "up to 50 %", exposed(plans.across_hosts),
       "over the assumed link, or that of --link"},
      {"tokens that are not padding, packed", "near 100 %", "100.0 %",
       "nothing is padded, packed or not"},
      {"compiled by torch.compile", "15-30 % faster", "none",
       "no compiler here: Sherd's operators are already fused"}};
  if (!usual.tokens_per_second.empty()) {
    rows.push_back({fmt::format("tokens/s of {} x {}", plans.ranks, plans.device),
                    usual.tokens_per_second, fmt::format("{:.0f}", plans.tokens_per_second),
                    "the rate of one GPU: 4 to 7 % of the peak of eight"});
  }
  return rows;
}

}  // namespace

std::optional<UsualEstimate> usual_estimate_of(const model::DecoderConfig& shape) {
  constexpr std::int64_t kVocabulary = 128'256;
  if (shape.vocab_size == kVocabulary && shape.hidden_size == 4096 && shape.layers == 32) {
    return UsualEstimate{.model = "Llama 3 8B",
                         .parameters = "16",
                         .gradients = "16",
                         .moments = "64",
                         .narrow_moments = "",
                         .all = "",
                         .a_gpu = "12 + activations",
                         .a_gpu_narrow = "",
                         .activations = "1-2",
                         .tokens_per_second = "2000-4000"};
  }
  if (shape.vocab_size == kVocabulary && shape.hidden_size == 8192 && shape.layers == 80) {
    return UsualEstimate{.model = "Llama 3 70B",
                         .parameters = "140",
                         .gradients = "140",
                         .moments = "560",
                         .narrow_moments = "280",
                         .all = "420-560",
                         .a_gpu = "105",
                         .a_gpu_narrow = "70",
                         .activations = "",
                         .tokens_per_second = ""};
  }
  return std::nullopt;
}

std::vector<EstimateRow> beside_estimate(const UsualEstimate& estimate,
                                         const model::DecoderConfig& shape,
                                         const PlansBesideEstimate& plans) {
  std::vector<EstimateRow> rows = rows_of_parameters(estimate, plans);
  for (auto& more : {rows_of_a_gpu(estimate, shape, plans), rows_of_time(estimate, plans)}) {
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

}  // namespace llm::plan
