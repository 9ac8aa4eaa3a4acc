// `samples`: which samples a conversation becomes, and what is learned in them.

#include "app/chat_check/questions.h"
#include "llm/text/chat_spans.h"
#include "llm/text/chat_template.h"

namespace chat_check {

namespace {

using namespace llm::text;

Json samples_as_json(const std::vector<ChatSample>& samples) {
  Json all = Json::array();
  for (const ChatSample& sample : samples) {
    Json spans = Json::array();
    for (const Span& span : sample.spans) {
      spans.push_back({span.begin, span.end});
    }
    all.push_back({{"turns", sample.turns}, {"text", sample.text}, {"spans", std::move(spans)}});
  }
  return all;
}

Json fault_as_json(const ChatFault& fault) {
  const bool is_mismatch = fault.reason == "mismatch";
  return {{"verdict", is_mismatch ? "mismatch" : "refused"},
          {"reason", fault.reason},
          {"turn", fault.turn ? Json(*fault.turn) : Json()},
          {"message", fault.message()}};
}

// A template that cannot be parsed cannot be rendered.
std::function<std::string(const Json& messages, std::size_t count, bool add_generation_prompt)>
renderer_of(const Json& question) {
  const auto kwargs = field_of(question, "kwargs");
  const auto tools = field_of(question, "tools");
  const auto now = text_of(question, "now");
  const std::string file = text_of(question, "template_file");
  std::optional<ChatTemplate> parsed;
  std::optional<ChatInput> input;
  return [=](const Json& messages, std::size_t count, bool add_generation_prompt) mutable {
    if (!parsed) {
      parsed = ChatTemplate::from_file(file);
      input = parsed->input(messages, tools, kwargs);
    }
    return parsed->render(*input, count, add_generation_prompt, now).text;
  };
}

}  // namespace

Json answer_samples(const Json& question) {
  ChatRule rule{.render = renderer_of(question),
                .stop_tokens = field_of(question, "stop_tokens"),
                .control_tokens = field_of(question, "control_tokens"),
                .last_only = text_of(question, "supervise") == "last",
                .as_rendered = text_of(question, "on_mismatch") == "as_rendered"};
  const ChatVerdict verdict =
      samples_of({field_of(question, "messages"), field_of(question, "tools")}, rule);
  if (verdict.fault) {
    return fault_as_json(*verdict.fault);
  }
  return {{"verdict", verdict.samples.size() == 1 ? "one_sample" : "unrolled"},
          {"samples", samples_as_json(verdict.samples)}};
}

}  // namespace chat_check
