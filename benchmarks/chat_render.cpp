// Microseconds per render of a short conversation (a question, an answer and a question) by each
// chat template that ships, or by the files that are named.
//
//   build/release/bin/chat_render [TEMPLATE_FILE…]
//
// Prints the median of 20 rounds of 500 renders per template, on one thread and on two at once.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <vector>

#include <nlohmann/json.hpp>

#include "benchmarks/program.h"
#include "llm/text/chat_template.h"
#include "sherd/error.h"

namespace {

using llm::text::ChatTemplate;
using nlohmann::ordered_json;

constexpr int kRounds = 20;
constexpr int kRenders = 500;

double microseconds_per_render(const ChatTemplate& chat) {
  const ordered_json messages = {
      {{"role", "user"}, {"content", "Name a colour of the sea on a grey day."}},
      {{"role", "assistant"}, {"content", "Slate, with a little green where the waves break."}},
      {{"role", "user"}, {"content", "And at night?"}}};
  const ordered_json arguments = {{"add_generation_prompt", true}};
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRenders; ++i) {
      static_cast<void>(chat.render(messages, nullptr, arguments, "2026-03-09T07:05:03"));
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    rounds.push_back(took.count() / kRenders);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

void measure(const ChatTemplate& chat) {
  try {
    const double alone = microseconds_per_render(chat);
    auto beside = std::async(std::launch::async, [&] { return microseconds_per_render(chat); });
    const double here = microseconds_per_render(chat);
    std::printf("%6.1f µs %6.1f µs  %s\n", alone, (here + beside.get()) / 2, chat.file().c_str());
  } catch (const sherd::Error& error) {
    std::printf("  refused  %s\n", error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const ordered_json tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  std::printf("%s\n", sherd::benchmarks::processor().c_str());
  for (int i = 1; i < argc; ++i) {
    measure(ChatTemplate::from_file(argv[i], tokens));
  }
  for (const char* name : {"chatml", "llama2", "llama3", "mistral", "gemma", "zephyr", "alpaca"}) {
    if (argc == 1) {
      measure(ChatTemplate::named(name, tokens));
    }
  }
  return 0;
}
