#include <optional>
#include <stdexcept>

#include <fmt/core.h>

#include "llm/config/flags.h"
#include "llm/config/reading.h"
#include "llm/config/recipe_paths.h"
#include "llm/config/toml_file.h"
#include "sherd/error.h"

namespace llm::config {
namespace {

/// Checks across keys, once everything is read; each error names the place where its key was given.
void check_whole(Reading& reading) {
  for (const Fault& fault : validate(reading.config)) {
    const auto place = reading.places.find(fault.key);
    const bool given = place != reading.places.end();
    if (reading.faulty_keys.contains(fault.key) || (!given && !reading.file_was_read)) {
      continue;
    }
    reading.faults.push_back((given ? place->second + ": " : "") + fault.text);
  }
}

void check_threads(int most, Reading& reading) {
  const int threads = reading.config.device.threads.value_or(0);
  if (threads > most) {
    reading.faults.push_back(
        fmt::format("{}: device.threads = {} is more than the processors that a rank may use "
                    "here: {}",
                    reading.places["device.threads"], threads, most));
  }
}

/// A lost minus of an exponent is a typing error that no check of a range finds.
void note_large_lr(Reading& reading) {
  constexpr double kUnusual = 0.1;
  const double lr = reading.config.optim.lr;
  if (lr >= kUnusual) {
    reading.notes.push_back(fmt::format(
        "warning: optim.lr = {} is unusually large for AdamW; usual are 1e-6 to 1e-2", lr));
  }
}

std::string lines(const std::vector<std::string>& faults) {
  std::string text;
  for (const std::string& fault : faults) {
    text += "\n  " + fault;
  }
  return text;
}

std::string joined(const std::vector<std::string>& faults) {
  return faults.size() == 1
             ? faults.front()
             : fmt::format("{} faults in the configuration:{}", faults.size(), lines(faults));
}

// What a recipe reads.
void find_shipped(const std::filesystem::path& recipe, RunConfig& config) {
  config.model.path = path_in_recipe(config.model.path, recipe);
  config.adapter.path = path_in_recipe(config.adapter.path, recipe);
  config.data.chat_template = path_in_recipe(config.data.chat_template, recipe);
  for (auto* sets : {&config.data.train, &config.data.eval}) {
    for (DataSet& set : *sets) {
      set.path = path_in_recipe(set.path, recipe);
    }
  }
}

/// Without data.eval, what is kept from training is evaluated.
void evaluate_held_out(DataSection& data) {
  if (data.held_out == 0 || !data.eval.empty()) {
    return;
  }
  data.eval = data.train;
  for (DataSet& set : data.eval) {
    set.weight = 1;
    set.held_out = true;
  }
}

/// Under train.objective = "dpo" a file whose format is not given holds preference pairs.
void read_pairs(RunConfig& config) {
  if (config.train.objective != Objective::Dpo) {
    return;
  }
  for (auto* sets : {&config.data.train, &config.data.eval}) {
    for (DataSet& set : *sets) {
      set.format = set.format == DataFormat::Auto ? DataFormat::Preference : set.format;
    }
  }
}

/// runs/my for my.toml.
void name_output(const std::optional<std::filesystem::path>& file, Reading& reading) {
  const bool given = reading.places.contains("train.output");
  if (file && !given && !file->stem().empty()) {
    reading.config.train.output = (std::filesystem::path("runs") / file->stem()).string();
  }
}

}  // namespace

RunConfig load(const std::optional<std::filesystem::path>& file, std::span<const std::string> flags,
               const Note& note, std::optional<int> most_threads) {
  Reading reading;
  if (file) {
    read_toml(*file, reading);
    find_shipped(*file, reading.config);
  }
  read_flags(flags, reading);
  name_output(file, reading);
  evaluate_held_out(reading.config.data);
  read_pairs(reading.config);
  check_whole(reading);
  if (most_threads) {
    check_threads(*most_threads, reading);
  }
  if (!reading.faults.empty()) {
    throw sherd::Error(sherd::ExitCode::Usage, joined(reading.faults));
  }
  note_large_lr(reading);
  for (const std::string& line : reading.notes) {
    if (note) {
      note(line);
    }
  }
  return reading.config;
}

RunConfig from_toml(const std::string& text) {
  Reading reading;
  read_toml_text(text, "config", reading);
  for (const Leaf& leaf : leaves(reading.config)) {
    if (!leaf.field.before.empty() && !reading.places.contains(leaf.key)) {
      leaf.field.value()->set(FlagText{leaf.field.before});
    }
  }
  if (!reading.faults.empty()) {
    throw std::invalid_argument("the configuration cannot be read:" + lines(reading.faults));
  }
  return reading.config;
}

}  // namespace llm::config
