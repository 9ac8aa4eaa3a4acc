#include "app/chat_session.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <unistd.h>

#include "app/rank.h"
#include "llm/eval/generation.h"
#include "llm/text/printable.h"
#include "llm/text/text_stream.h"
#include "llm/text/utf8.h"
#include "sherd/error.h"

namespace app {

namespace {

using llm::text::TokenId;
using nlohmann::ordered_json;
using sherd::Error;
using sherd::ExitCode;

constexpr const char* kHelp =
    "Each line is a message; the model answers the whole conversation.\n"
    "/reset        forget the conversation; the system message stays\n"
    "/system TEXT  set the system message; without TEXT, remove it\n"
    "/help         print this list\n"
    "/exit         end; so does Ctrl-D\n"
    "Ctrl-C stops an answer. A message that begins with / needs a space in front.";

bool is_asked_at_terminal() {
  return ::isatty(STDIN_FILENO) == 1;
}

// "/system", "Be brief."
std::pair<std::string, std::string> words_of_command(const std::string& line) {
  const std::size_t end = line.find_first_of(" \t");
  const std::size_t begin = line.find_first_not_of(" \t", end);
  return {line.substr(0, end), begin == std::string::npos ? "" : line.substr(begin)};
}

void refuse_other_encodings(const std::string& text) {
  if (const auto byte = llm::text::first_byte_without_utf8(text)) {
    throw Error(
        ExitCode::BadData,
        fmt::format("the message is not UTF-8 at byte {}: set the terminal to UTF-8", *byte));
  }
}

}  // namespace

ChatSession::ChatSession(sherd::Sharded<llm::model::CausalLm>& model,
                         llm::text::Tokenizer tokenizer, llm::eval::EvaluatedChat chat,
                         ChatOptions options, llm::track::Progress& progress)
    : model_(model),
      tokenizer_(std::move(tokenizer)),
      chat_(std::move(chat)),
      options_(std::move(options)),
      progress_(progress),
      context_(model.module()->context_length()) {
  set_system(options_.system);
}

void ChatSession::tell(const std::string& line) const {
  progress_.say(llm::text::printable(line, llm::text::Lines::Keep));
}

void ChatSession::run() {
  // Without a terminal, the interrupt key ends the program as it ends any other.
  const auto interrupts =
      is_asked_at_terminal() ? std::make_unique<Interrupts>() : std::unique_ptr<Interrupts>();
  if (is_asked_at_terminal()) {
    tell("/help lists the commands; Ctrl-D ends.");
  }
  std::string line;
  for (Next next = Next::Line; next == Next::Line;) {
    if (is_asked_at_terminal()) {
      progress_.aside([] { std::cerr << "> " << std::flush; });
    }
    try {
      switch (input_.next(line)) {
        case ChatInput::Read::End:
          next = Next::End;
          break;
        case ChatInput::Read::Interrupted:
          tell("\n/exit or Ctrl-D ends.");
          break;
        case ChatInput::Read::Line:
          if (line.ends_with('\r')) {
            line.pop_back();
          }
          if (line.starts_with('/')) {
            next = command(line);
          } else if (line.find_first_not_of(" \t") != std::string::npos) {
            answer(line.substr(line.starts_with(" /") ? 1 : 0));
          }
      }
    } catch (const Error& error) {
      if (error.code() != ExitCode::BadData) {
        throw;
      }
      tell(error.what());
    }
  }
}

ChatSession::Next ChatSession::command(const std::string& line) {
  const auto [word, text] = words_of_command(line);
  if (word == "/exit") {
    return Next::End;
  }
  if (word == "/help") {
    tell(kHelp);
  } else if (word == "/reset") {
    messages_ = ordered_json::array();
    set_system(options_.system);
    tell("The conversation is forgotten.");
  } else if (word == "/system") {
    refuse_other_encodings(text);
    set_system(text);
    tell(text.empty() ? "There is no system message." : "The system message is set.");
  } else {
    tell(
        fmt::format("{} is no command: /help lists them. To send it as a message, put a space in "
                    "front.",
                    word));
  }
  return Next::Line;
}

void ChatSession::set_system(const std::string& text) {
  options_.system = text;
  if (!messages_.empty() && messages_[0]["role"] == "system") {
    messages_.erase(0);
  }
  if (!text.empty()) {
    messages_.insert(messages_.begin(), ordered_json{{"role", "system"}, {"content", text}});
  }
}

std::vector<TokenId> ChatSession::encoded_conversation() const {
  auto ids = chat_.encoder->encode_prompt({messages_, nullptr});
  if (std::ssize(ids) >= context_) {
    throw Error(ExitCode::BadData,
                fmt::format("with this message the conversation has {} tokens, and the model's "
                            "context holds {}. The message is taken back: /reset begins a new "
                            "conversation.",
                            ids.size(), context_));
  }
  if (ids.empty()) {
    throw Error(ExitCode::BadData,
                chat_.encoder->chat_template().file() + ": the chat template renders no text");
  }
  return ids;
}

std::string ChatSession::written_answer(const std::vector<TokenId>& ids, std::int64_t most_tokens) {
  std::optional<llm::track::Working> reading(std::in_place, &progress_, "reading the conversation");
  llm::text::TextStream stream(tokenizer_);
  std::string answer;
  const auto write = [&](const std::string& part) {
    if (!part.empty()) {
      reading.reset();
      answer += part;
      write_result(for_stdout(part));
    }
  };
  llm::eval::GenerationOptions options;
  options.sampling = options_.sampling;
  options.text_numbers = {answers_++};
  options.stop_requested = [] { return Interrupts::requested(); };
  options.on_token = [&](std::size_t, TokenId token) { write(stream.take(token)); };
  const std::vector<TokenId> prompts[] = {ids};
  const auto written = llm::eval::generate(model_, prompts, most_tokens, chat_.stop_ids, options);
  write(stream.rest());
  reading.reset();
  write_result("\n");
  if (!written) {
    Interrupts::take();
    tell("The answer is stopped; what is written belongs to the conversation.");
  } else if (std::ssize(written->front()) == most_tokens) {
    tell(most_tokens < options_.max_new_tokens
             ? fmt::format("The answer ends here: the model's context of {} tokens is full. /reset "
                           "begins a new conversation.",
                           context_)
             : fmt::format("The answer ends here, after --max-new-tokens {}.", most_tokens));
  }
  return answer;
}

void ChatSession::answer(const std::string& message) {
  refuse_other_encodings(message);
  messages_.push_back({{"role", "user"}, {"content", message}});
  std::vector<TokenId> ids;
  try {
    ids = encoded_conversation();
  } catch (const Error&) {
    messages_.erase(messages_.size() - 1);
    throw;
  }
  const std::int64_t room = context_ - std::ssize(ids);
  std::string text = written_answer(ids, std::min(room, options_.max_new_tokens));
  messages_.push_back({{"role", "assistant"}, {"content", std::move(text)}});
}

}  // namespace app
