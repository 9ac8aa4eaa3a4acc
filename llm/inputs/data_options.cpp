#include "llm/inputs/data_options.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "llm/text/chat_encoder.h"
#include "llm/text/chosen_template.h"
#include "sherd/error.h"

namespace llm::inputs {

Limit limit_of(const config::DataSet& set, const config::TrainSection& train) {
  return {set.limit.value_or(0), set.limit_order == config::LimitOrder::Random,
          static_cast<std::uint64_t>(train.seed)};
}

FileReading reading_of(const config::DataSet& set, const config::DataSection& data) {
  return {set.format,
          {set.columns.prompt, set.columns.completion, set.columns.messages, set.columns.text,
           set.columns.chosen, set.columns.rejected},
          {data.on_bad_sample == config::OnBadSample::Skip, data.max_bad_samples},
          set.held_out ? Side::HeldOut : Side::All,
          data.held_out};
}

FileReading training_reading_of(const config::DataSet& set, const config::DataSection& data) {
  FileReading reading = reading_of(set, data);
  reading.side = data.held_out > 0 ? Side::Training : Side::All;
  return reading;
}

namespace {

// "false" is a boolean, "abc" a text.
nlohmann::ordered_json arguments_of(const std::vector<std::string>& given) {
  auto arguments = nlohmann::ordered_json::object();
  for (const std::string& argument : given) {
    const std::size_t equals = argument.find('=');
    const std::string value = argument.substr(equals + 1);
    auto parsed = nlohmann::ordered_json::parse(value, nullptr, false);
    arguments[argument.substr(0, equals)] =
        parsed.is_discarded() ? nlohmann::ordered_json(value) : std::move(parsed);
  }
  return arguments;
}

text::ChatOptions chat_options(const config::DataSection& data) {
  const auto supervised = data.supervise == config::Supervise::All    ? text::Supervised::All
                          : data.supervise == config::Supervise::Last ? text::Supervised::Last
                                                                      : text::Supervised::Template;
  return {supervised, data.on_template_mismatch == config::OnTemplateMismatch::AsRendered,
          data.special_tokens_in_text == config::SpecialTokensInText::AsText,
          arguments_of(data.template_arguments), data.date + "T00:00:00"};
}

}  // namespace

text::PromptEncoder prompt_encoder_of(const config::DataSection& data,
                                      const text::Tokenizer& tokenizer,
                                      const text::PromptLimits& limits,
                                      const std::string& recorded) {
  text::PromptOptions options;
  if (data.separator != "auto") {
    options.separator = data.separator;
  }
  if (!recorded.empty()) {
    options.chat = learned_chat_of(data, tokenizer, recorded);
    return {tokenizer, limits, std::move(options)};
  }
  const bool is_own = data.chat_template == "model";
  try {
    if (auto chat = text::chat_template_of(data.chat_template, tokenizer.folder())) {
      options.chat =
          std::make_shared<text::ChatEncoder>(tokenizer, std::move(*chat), chat_options(data));
    } else {
      options.no_chat = text::advice_on_chat_template(tokenizer.folder());
    }
  } catch (const sherd::Error& error) {
    if (!is_own) {
      throw;
    }
    options.no_chat = error.what();  // refused only where there are conversations
  }
  return {tokenizer, limits, std::move(options)};
}

std::string chat_template_text(const config::DataSection& data, const text::Tokenizer& tokenizer) {
  const text::PromptLimits any{.max_length_tokens = 2, .max_answer_tokens = 1};
  return prompt_encoder_of(data, tokenizer, any).chat().chat_template().source();
}

std::shared_ptr<const text::ChatEncoder> learned_chat_of(const config::DataSection& data,
                                                         const text::Tokenizer& tokenizer,
                                                         const std::string& recorded) {
  const std::string name =
      data.chat_template == "model" ? "the run's chat template" : data.chat_template;
  return std::make_shared<text::ChatEncoder>(
      tokenizer,
      text::ChatTemplate::from_text(name, recorded,
                                    text::ChatTemplate::tokens_of_folder(tokenizer.folder())),
      chat_options(data));
}

BatchShape batch_shape(const config::TrainSection& train, int world_size) {
  const BatchShape shape{train.global_batch, train.micro_batch.value_or(1), world_size};
  shape.validate();
  return shape;
}

}  // namespace llm::inputs
