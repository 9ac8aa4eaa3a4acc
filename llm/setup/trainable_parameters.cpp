#include "llm/setup/trainable_parameters.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "llm/config/nearest_name.h"
#include "llm/text/pattern.h"
#include "sherd/error.h"

namespace llm::setup {

namespace {

using sherd::Error;
using sherd::ExitCode;

constexpr std::size_t kNamesShown = 3;

text::Pattern pattern_of(const std::string& source) {
  try {
    return text::Pattern(source);
  } catch (const Error& error) {
    throw Error(ExitCode::Usage, fmt::format("model.trainable: {}", error.what()));
  }
}

[[noreturn]] void matches_nothing(const std::string& pattern, std::vector<std::string> names) {
  std::stable_sort(names.begin(), names.end(), [&](const auto& one, const auto& other) {
    return config::edit_distance(pattern, one) < config::edit_distance(pattern, other);
  });
  names.resize(std::min(names.size(), kNamesShown));
  throw Error(ExitCode::Usage,
              fmt::format("model.trainable: \"{}\" matches the whole name of no parameter. Nearest "
                          "are {}. A pattern is a regular expression, such as \"model.layers.0.*\"",
                          pattern, fmt::join(names, ", ")));
}

}  // namespace

void freeze_all_but(torch::nn::Module& model, const std::vector<std::string>& patterns) {
  if (patterns.empty()) {
    return;
  }
  const auto parameters = model.named_parameters();
  const std::vector<std::string> names = parameters.keys();
  std::set<std::string> trained;
  for (const std::string& source : patterns) {
    const text::Pattern pattern = pattern_of(source);
    bool matches = false;
    for (const std::string& name : names) {
      if (pattern.matches_whole(name)) {
        trained.insert(name);
        matches = true;
      }
    }
    if (!matches) {
      matches_nothing(source, names);
    }
  }
  for (const auto& parameter : parameters) {
    at::Tensor tensor = parameter.value();
    tensor.set_requires_grad(trained.contains(parameter.key()));
  }
}

}  // namespace llm::setup
