#include "llm/runs/evaluation_set.h"

#include <fmt/core.h>

#include "files/sha256.h"

namespace llm::runs {

EvaluationSet evaluation_set(int index, const config::DataSet& set, const std::string& sha256,
                             config::DataFormat format) {
  constexpr std::size_t kDigits = 16;
  std::string what =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", sha256, static_cast<int>(format), set.columns.prompt,
                  set.columns.completion, set.limit ? std::to_string(*set.limit) : "all",
                  static_cast<int>(set.limit_order));
  const config::DataColumns usual;
  if (set.columns.messages != usual.messages || set.columns.text != usual.text) {
    what += fmt::format("\n{}\n{}", set.columns.messages, set.columns.text);
  }
  if (set.held_out) {
    what += "\nheld out";
  }
  return {index, sherd::files::sha256_of(what).substr(0, kDigits)};
}

}  // namespace llm::runs
