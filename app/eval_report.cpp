#include "app/eval_report.h"

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "app/rank.h"
#include "llm/eval/prediction_files.h"
#include "llm/text/printable.h"

namespace app {

namespace {

nlohmann::ordered_json json_of(const EvalOutcome& outcome) {
  const auto& [result, report] = outcome;
  nlohmann::ordered_json all = {{"loss", result.loss},
                                {"em", result.em},
                                {"f1", result.f1},
                                {"samples", result.samples},
                                {"samples_per_second", result.samples_per_second()},
                                {"seconds", result.seconds},
                                {"supervised_tokens", result.supervised_tokens},
                                {"contexts_cut", report.contexts_cut},
                                {"answers_cut", report.answers_cut},
                                {"answers_outside", report.answers_outside},
                                {"conversations_cut", report.chat.cut},
                                {"skipped", report.skipped}};
  if (!result.figures.empty()) {
    all["figures"] = result.figures;
  }
  return all;
}

// The fields are those of the first file; `files` has them of each.
std::string json_line(const std::vector<EvalOutcome>& outcomes) {
  nlohmann::ordered_json line = json_of(outcomes.front());
  line["files"] = nlohmann::ordered_json::array();
  for (const EvalOutcome& outcome : outcomes) {
    nlohmann::ordered_json one = {{"data", outcome.report.name}};
    one.update(json_of(outcome));
    line["files"].push_back(std::move(one));
  }
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void show(const llm::eval::EvaluationResult& result, const EvalReport& options) {
  using llm::text::printable;
  const auto count =
      std::min<std::int64_t>(options.show, static_cast<std::int64_t>(result.predictions.size()));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& p = result.predictions[static_cast<size_t>(i)];
    const std::string text =
        fmt::format("  question:  {}\n  gold:      {}\n  predicted: {}{}\n", printable(p.question),
                    printable(p.gold.front()), printable(p.text),
                    p.score.exact_match == 1.0 ? "   (exact)" : "");
    options.json ? say(text, true) : print_result(text);
  }
}

}  // namespace

void report_evaluation(const std::vector<EvalOutcome>& outcomes, std::size_t files,
                       const EvalReport& options) {
  const std::size_t number = outcomes.size() - 1;
  const auto& [result, data] = outcomes.back();
  show(result, options);
  if (!options.predictions.empty()) {
    const std::string name = number == 0 ? "predictions" : fmt::format("predictions-{}", number);
    llm::eval::write_predictions(options.predictions, name, result.predictions);
  }
  const std::string text = fmt::format("evaluation{}: {}", files == 1 ? "" : " of " + data.name,
                                       llm::eval::evaluation_text(result, options.generated));
  if (!options.json) {
    print_result(text);
  } else if (number + 1 == files) {
    print_result(json_line(outcomes));
  }
}

}  // namespace app
