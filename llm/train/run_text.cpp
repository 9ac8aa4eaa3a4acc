#include "llm/train/run_text.h"

#include <array>
#include <cstdio>

#include "llm/track/step_record.h"

namespace llm::train {

namespace {

std::string setting(const config::RunConfig& config, const std::string& key) {
  for (const auto& [name, value] : config::key_values(config)) {
    if (name == key) {
      return value.size() >= 2 && value.front() == '"' ? value.substr(1, value.size() - 2) : value;
    }
  }
  return "";
}

std::string counted(std::int64_t number, const std::string& what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

std::string loss_text(double loss) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4f", loss);
  return text.data();
}

// A word for the shell.
std::string quoted(const std::string& text) {
  const bool plain =
      text.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,") ==
      std::string::npos;
  return plain && !text.empty() ? text : "'" + text + "'";
}

}  // namespace

std::string model_line(const config::RunConfig& config, const ModelShape& shape) {
  const bool random = config.model.init == config::Init::Random;
  return "model: " + config.model.path + ": " + shape.shapes->family() + ", " +
         track::short_count(static_cast<double>(shape.parameters)) + " parameters" +
         (random ? " (random)" : "") + ", computed in " + setting(config, "precision.param_dtype") +
         ", context " + std::to_string(shape.shapes->context_length()) + " tokens, " +
         setting(config, "parallel.strategy");
}

std::string steps_line(const RunLength& length, const data::BatchShape& shape) {
  std::array<char, 32> epochs{};
  std::snprintf(
      epochs.data(), epochs.size(), "%.4g",
      static_cast<double>(length.total_steps) / static_cast<double>(length.steps_per_epoch));
  return "steps: " + std::to_string(length.total_steps) + " of " +
         counted(shape.global_batch, "sample") + " (" + epochs.data() + " epochs of " +
         counted(length.steps_per_epoch, "step") + "); a rank computes " +
         std::to_string(shape.micro_batches(shape.global_batch)) + " x " +
         counted(shape.micro_batch, "sample") + " a step";
}

std::string memory_line(std::int64_t rank_bytes, std::int64_t available_bytes) {
  return "memory: at least " + track::short_bytes(rank_bytes) + " a rank between steps" +
         (available_bytes > 0
              ? "; " + track::short_bytes(available_bytes) + " available on this host"
              : std::string());
}

std::string closing_lines(const config::RunConfig& config, const RunSummary& summary,
                          const std::string& checkpoint) {
  std::string text;
  if (summary.steps > 0) {
    text = "done: " + counted(summary.steps, "step") + " in " + track::clock_text(summary.seconds) +
           ", loss " + loss_text(summary.first_loss) + " -> " + loss_text(summary.last_loss) + "\n";
  }
  if (checkpoint.empty()) {
    return text + "next: no checkpoint was asked for: what was learned is not kept";
  }
  const std::string output = quoted(config.train.output);
  const std::string data = config.data.eval.empty() ? "FILE" : quoted(config.data.eval);
  return text + "next: sherd eval --model " + output + " --data " + data +
         "\n      sherd export --checkpoint " + output + " --out FOLDER";
}

}  // namespace llm::train
