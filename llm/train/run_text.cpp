#include "llm/train/run_text.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "llm/config/words.h"
#include "llm/text/printable.h"
#include "llm/track/shell_word.h"
#include "llm/track/step_record.h"

namespace llm::train {

namespace {

std::string with_changes(const std::string& line, const Candidate& start) {
  const std::string changes = setup::changes_line(start.step, start.changes);
  return changes.empty() ? line : line + "\n" + changes;
}

// Of a run that may have become shorter than it is.
std::string rest_text(std::int64_t done, std::int64_t total) {
  return done < total    ? ""
         : done == total ? ": no step is left to do"
                         : ": it has already made more steps, and no step is left to do";
}

}  // namespace

std::string resumed_lines(const Candidate& start, std::int64_t total_steps) {
  return with_changes(fmt::format("resumed from {}, step {} of {}{}", start.folder, start.step,
                                  total_steps, rest_text(start.step, total_steps)),
                      start);
}

std::string goes_on_lines(const Candidate& start) {
  return with_changes("resumes from " + start.folder, start);
}

std::string model_line(const config::RunConfig& config, const setup::ModelShape& shape) {
  const bool random = config.model.init == config::Init::Random;
  const std::string trained =
      shape.trained == shape.parameters
          ? ""
          : fmt::format(" ({} trained)", track::short_count(static_cast<double>(shape.trained)));
  return fmt::format("model: {}: {}, {} parameters{}{}, computed in {}, context {} tokens, {}",
                     config.model.path, shape.shapes->family(),
                     track::short_count(static_cast<double>(shape.parameters)),
                     random ? " (random)" : "", trained,
                     config::word_of(config.precision.param_dtype, config::param_dtype_words()),
                     shape.shapes->context_length(),
                     config::word_of(config.parallel.strategy, config::strategy_words()));
}

std::string steps_line(const inputs::RunLength& length, const inputs::BatchShape& shape) {
  const double epochs =
      static_cast<double>(length.total_steps) / static_cast<double>(length.steps_per_epoch);
  return fmt::format(
      "steps: {} of {} ({:.4g} {} of {}); each rank computes {} x {} per step", length.total_steps,
      text::counted(shape.global_batch, "sample"), epochs, epochs == 1 ? "epoch" : "epochs",
      text::counted(length.steps_per_epoch, "step"), shape.micro_batches(shape.global_batch),
      text::counted(shape.micro_batch, "sample"));
}

std::string memory_line(std::int64_t rank_bytes, std::int64_t available_bytes) {
  const std::string available =
      available_bytes > 0
          ? fmt::format("; {} available on this host", track::short_bytes(available_bytes))
          : "";
  return fmt::format("memory: at least {} per rank between steps{}", track::short_bytes(rank_bytes),
                     available);
}

namespace {

constexpr const char* kOptimizer = "masters and moments";
constexpr const char* kGradients = "gradients";
constexpr const char* kParameters = "parameters";

// "masters and moments in '/a', gradients in '/b'"
std::string places_text(const config::OffloadSection& offload) {
  std::vector<std::string> parts;
  for (const auto& [what, folder] : {std::pair(kOptimizer, offload.optimizer_folder),
                                     std::pair(kGradients, offload.gradient_folder),
                                     std::pair(kParameters, offload.parameter_folder)}) {
    if (!folder.empty()) {
      parts.push_back(fmt::format("{} in '{}'", what, folder));
    }
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::string offload_line(const config::RunConfig& config, std::int64_t rank_bytes,
                         const std::string& transfers) {
  return fmt::format("on the disk: {}, {} per rank, moved by {}",
                     places_text(config.memory.offload), track::short_bytes(rank_bytes), transfers);
}

std::string host_line(const config::OffloadSection& offload, std::int64_t rank_bytes) {
  std::vector<std::string> parts;
  for (const auto& [what, is_there] : {std::pair(kOptimizer, offload.optimizer_on_host),
                                       std::pair(kGradients, offload.gradients_on_host),
                                       std::pair(kParameters, offload.parameters_on_host)}) {
    if (is_there) {
      parts.emplace_back(what);
    }
  }
  const std::string state = parts.empty()
                                ? ""
                                : fmt::format("{}, {} per rank, pinned", fmt::join(parts, ", "),
                                              track::short_bytes(rank_bytes));
  const char* const activations =
      parts.empty() ? "activations, during each step" : "; and activations";
  return fmt::format("on the host: {}{}", state, offload.activations_on_host ? activations : "");
}

void StepsMade::add(const StepOutcome& step) {
  ++steps;
  if (step.supervised_tokens == 0 || !step.skipped.empty()) {
    return;
  }
  last_loss = step.loss;
  if (!first_loss || !std::isfinite(*first_loss)) {
    first_loss = last_loss;
  }
  if (!step.overflowed) {
    worst_loss = std::isfinite(step.loss) ? std::max(worst_loss, step.loss) : step.loss;
    learns_nothing = learns_nothing || step.grad_norm == 0;
  }
}

std::string done_line(const StepsMade& made) {
  const std::string learned =
      made.last_loss ? fmt::format("loss {:.4f} -> {:.4f}", *made.first_loss, *made.last_loss)
                     : "no supervised token: nothing learned";
  return fmt::format("done: {} in {}, {}", text::counted(made.steps, "step"),
                     track::clock_text(made.seconds), learned);
}

namespace {

// A loss this many times the first one's is no noise of batches.
constexpr double kDiverged = 3;

}  // namespace

std::string diverged_line(const StepsMade& made) {
  if (!made.last_loss) {
    return "";
  }
  const double usual = std::max(*made.first_loss, 1.0);
  const bool is_lost = !std::isfinite(*made.last_loss) || !std::isfinite(made.worst_loss);
  if (!is_lost && made.worst_loss <= kDiverged * usual && !made.learns_nothing) {
    return "";
  }
  const std::string how =
      is_lost ? "the loss is no longer a number"
      : made.worst_loss > kDiverged * usual
          ? fmt::format("the loss rose from {:.4g} to {:.4g}", *made.first_loss, made.worst_loss)
          : "the gradient became 0";
  return fmt::format(
      "warning: this run has diverged: {}. Lower optim.lr, or raise schedule.warmup.", how);
}

std::string next_lines(const config::RunConfig& config, const std::string& checkpoint) {
  if (checkpoint.empty()) {
    return "next: no checkpoint was requested: the trained weights are not kept";
  }
  const std::string output = track::shell_word(config.train.output);
  return fmt::format(
      "next: sherd eval {0}{1}\n      sherd generate {0}\n      sherd export {0} --out FOLDER",
      output, config.data.eval.empty() ? " --data FILE" : "");
}

}  // namespace llm::train
