#include "llm/inputs/run_data.h"

#include <algorithm>

#include <fmt/core.h>

#include "llm/inputs/data_options.h"
#include "llm/inputs/prepare.h"
#include "llm/text/printable.h"
#include "sherd/error.h"

namespace llm::inputs {

bool RunData::learns_conversations() const {
  return std::any_of(parts.begin(), parts.end(),
                     [](const TrainingPart& part) { return part.report.chat.conversations > 0; });
}

RunLength run_length(const config::RunConfig& config, std::int64_t rows) {
  const std::int64_t batch = config.train.global_batch;
  RunLength length{rows, (rows + batch - 1) / batch, 0};
  length.total_steps =
      config.train.max_steps.value_or(config.train.epochs * length.steps_per_epoch);
  const std::int64_t warmup = config::warmup_steps(config.schedule.warmup, length.total_steps);
  if (warmup > length.total_steps) {
    throw sherd::Error(
        sherd::ExitCode::Usage,
        fmt::format(
            "schedule.warmup = \"{}\" is longer than the run, which has {} "
            "({}, train.global_batch = {}): the learning rate "
            "would never be reached. Set it to at most that, or train for "
            "longer.",
            config::to_text(config::Every::steps(warmup)),
            text::counted(length.total_steps, "step"),
            text::counted(rows, config.data.packing == config::Packing::None ? "sample" : "row"),
            batch));
  }
  return length;
}

std::int64_t sample_length(std::int64_t asked, std::int64_t context) {
  return asked == 0 ? context : std::min(asked, context);
}

std::string length_remark(const std::string& key, std::int64_t asked, std::int64_t context) {
  return asked <= context
             ? ""
             : fmt::format("{} = {} is more than the model's context: {} tokens are used", key,
                           asked, context);
}

Source source_of_part(const RunData& data, std::size_t part, const config::RunConfig& config) {
  const config::DataSet& set = config.data.train[part];
  Source source = open_source(set.path, training_reading_of(set, config.data),
                              digest_folder(store_folder(config.data.cache)));
  if (source.file.sha256 != data.parts[part].sha256) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("'{}' has changed since it was tokenized: its SHA-256 was {} and is now {}. "
                    "Start again.",
                    source.file.name, data.parts[part].sha256, source.file.sha256));
  }
  return source;
}

config::RunConfig with_formats(config::RunConfig config, const RunData& data) {
  for (std::size_t i = 0; i < data.parts.size(); ++i) {
    config.data.train[i].format = data.parts[i].format;
  }
  for (std::size_t i = 0; i < data.heldout.size(); ++i) {
    config.data.eval[i].format = data.heldout[i].format;
  }
  return config;
}

}  // namespace llm::inputs
