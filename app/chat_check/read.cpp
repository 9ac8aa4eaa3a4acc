// `read`: the conversations of a data file, and what of it is bad.

#include <limits>

#include "app/chat_check/questions.h"
#include "llm/text/conversation.h"
#include "llm/text/records.h"
#include "sherd/error.h"

namespace chat_check {

namespace {

// A prompt and its completion are a conversation of two messages.
Json messages_of(const llm::text::Question& question) {
  if (question.conversation) {
    return question.conversation->messages;
  }
  Json messages = Json::array();
  if (!question.question.empty()) {
    messages.push_back({{"role", "user"}, {"content", question.question}});
  }
  messages.push_back({{"role", "assistant"}, {"content", question.answers.front().text}});
  return messages;
}

Json read_file(const std::string& path) {
  const llm::text::DataBytes file{path};
  llm::text::RecordReader reader(
      file, {.container = llm::text::container_of(file),
             .bad = {.skip = true, .most_skipped = std::numeric_limits<std::int64_t>::max()}});
  Json records = Json::array();
  while (const auto question = reader.next()) {
    Json record = {{"place", question->id}, {"messages", messages_of(*question)}};
    if (question->conversation && !question->conversation->tools.is_null()) {
      record["tools"] = question->conversation->tools;
    }
    records.push_back(std::move(record));
  }
  Json faults = Json::array();
  for (const llm::text::BadSample& bad : std::move(reader).skipped()) {
    faults.push_back({{"place", bad.unit + " " + bad.place}, {"reason", bad.reason}});
    if (bad.byte) {
      faults.back()["byte"] = *bad.byte;
    }
  }
  if (records.empty() && faults.empty()) {
    throw sherd::Error(sherd::ExitCode::BadData, path + ": contains no records");
  }
  return {{"records", std::move(records)}, {"faults", std::move(faults)}};
}

}  // namespace

Json answer_read(const Json& question) {
  const std::string path = text_of(question, "data_file");
  try {
    return read_file(path);
  } catch (const sherd::Error& error) {
    const Json fault = {{"place", ""}, {"reason", error.what()}};
    return {{"records", Json::array()},
            {"faults", Json::array({fault})},
            {"code", static_cast<int>(error.code())}};
  }
}

}  // namespace chat_check
