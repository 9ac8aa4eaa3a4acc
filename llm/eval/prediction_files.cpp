#include "llm/eval/prediction_files.h"

#include <charconv>
#include <optional>
#include <system_error>
#include <vector>

#include <fmt/core.h>

#include "files/output.h"

namespace llm::eval {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "predictions-";

// Of "predictions-120.json" and "predictions-120-1.jsonl"; nothing for other names.
std::optional<std::int64_t> step_of(const fs::path& file) {
  const std::string extension = file.extension().string();
  const std::string name = file.stem().string();
  if ((extension != ".json" && extension != ".jsonl") || !name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, fault] = std::from_chars(name.data() + kPrefix.size(), end, step);
  const bool whole = stop == end || *stop == '-';
  return fault == std::errc{} && whole ? std::optional(step) : std::nullopt;
}

}  // namespace

std::string predictions_name(std::int64_t step, std::size_t data_file) {
  return fmt::format("{}{}{}", kPrefix, step,
                     data_file == 0 ? "" : "-" + std::to_string(data_file));
}

void write_predictions(const fs::path& folder, const std::string& name,
                       std::span<const Prediction> predictions) {
  sherd::files::write_file((folder / (name + ".json")).string(), squad_json(predictions));
  sherd::files::write_file((folder / (name + ".jsonl")).string(), prediction_lines(predictions));
}

bool is_predictions_file(const fs::path& file) {
  return step_of(file).has_value();
}

void remove_predictions_after(std::int64_t step, const fs::path& folder) {
  std::error_code ignored;  // what stays is replaced later
  std::vector<fs::path> later;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (const auto of = step_of(entry.path()); of && *of > step) {
      later.push_back(entry.path());
    }
  }
  for (const fs::path& file : later) {
    fs::remove(file, ignored);
  }
}

}  // namespace llm::eval
