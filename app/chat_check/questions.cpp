#include "app/chat_check/questions.h"

#include "sherd/error.h"

namespace chat_check {

namespace {

constexpr Kind kKinds[] = {
    {"read", answer_read},
    {"render", answer_render},
    {"samples", answer_samples},
    {"tokens", answer_tokens},
};

}  // namespace

std::span<const Kind> kinds() {
  return kKinds;
}

const Json& field_of(const Json& question, const char* name) {
  const auto found = question.find(name);
  if (found == question.end()) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       std::string("the question has no field `") + name + "`");
  }
  return *found;
}

std::string text_of(const Json& question, const char* name) {
  const Json& field = field_of(question, name);
  if (!field.is_string()) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       std::string("the question's field `") + name + "` should be a string");
  }
  return field.get<std::string>();
}

}  // namespace chat_check
