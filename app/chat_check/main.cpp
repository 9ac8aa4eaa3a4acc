// chat_check < QUESTIONS.jsonl > ANSWERS.jsonl: what this project makes of chat data.
//
// A question is one line of JSON; its field `do` names the kind (questions.h). An answer is one
// line of JSON. A fault in a template or in data is an answer. Exits 0 when it could answer all.

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "app/chat_check/questions.h"
#include "sherd/error.h"

namespace {

using chat_check::Json;
using sherd::ExitCode;

Json answer(const std::string& line) {
  const Json question = Json::parse(line);
  const std::string wanted = chat_check::text_of(question, "do");
  const auto kinds = chat_check::kinds();
  const auto kind =
      std::find_if(kinds.begin(), kinds.end(), [&](const auto& one) { return one.name == wanted; });
  if (kind == kinds.end()) {
    throw sherd::Error(ExitCode::Usage, "`do`: unknown kind of question: " + wanted);
  }
  return kind->answer(question);
}

Json fault(const char* kind, const char* message) {
  return {{"error", {{"class", kind}, {"message", message}}}};
}

}  // namespace

int main() {
  ExitCode code = ExitCode::Done;
  std::string line;
  while (std::getline(std::cin, line)) {
    Json answered;
    try {
      answered = answer(line);
    } catch (const sherd::Error& error) {
      answered = fault(error.code() == ExitCode::Usage ? "question" : "template", error.what());
      code = error.code() == ExitCode::Usage ? ExitCode::Usage : code;
    } catch (const std::exception& error) {
      answered = fault("question", error.what());
      code = ExitCode::Usage;
    }
    // ASCII only, for any terminal and any reader.
    std::cout << answered.dump(-1, ' ', true, Json::error_handler_t::replace) << '\n';
  }
  return static_cast<int>(code);
}
