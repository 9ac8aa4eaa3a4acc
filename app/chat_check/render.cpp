// `render`: a conversation as a template writes it.

#include "app/chat_check/questions.h"
#include "llm/text/chat_template.h"

namespace chat_check {

Json answer_render(const Json& question) {
  try {
    const auto chat = llm::text::ChatTemplate::from_file(text_of(question, "template_file"));
    const auto rendered = chat.render(field_of(question, "messages"), field_of(question, "tools"),
                                      field_of(question, "kwargs"), text_of(question, "now"));
    Json spans = Json::array();
    for (const auto& [begin, end] : rendered.spans) {
      spans.push_back({begin, end});
    }
    return {{"text", rendered.text}, {"spans", std::move(spans)}};
  } catch (const llm::text::TemplateError& error) {
    return {{"error",
             {{"class", error.raised() ? "raised" : "template"}, {"message", error.message()}}}};
  }
}

}  // namespace chat_check
