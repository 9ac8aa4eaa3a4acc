#include "llm/text/chat_spans.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/text/chat_template.h"
#include "llm/text/python_text.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

// ChatML, written here so that the rule is tested without an engine. Reasoning of earlier turns is
// left out, as many templates do.
std::string plain_chatml(const ordered_json& messages, bool add_generation_prompt) {
  std::string text;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ordered_json& message = messages[i];
    const bool is_last = i + 1 == messages.size();
    text += "<|im_start|>" + message["role"].get<std::string>() + "\n";
    if (is_last && message.contains("reasoning_content")) {
      text += "<think>" + message["reasoning_content"].get<std::string>() + "</think>";
    }
    text += message["content"].get<std::string>() + "<|im_end|>\n";
  }
  return text + (add_generation_prompt ? "<|im_start|>assistant\n" : "");
}

using Renderer = std::function<std::string(const ordered_json& messages, bool add)>;

// What a rule asks for, from a function of the messages that are rendered.
decltype(ChatRule::render) of_first(const Renderer& render) {
  return [render](const ordered_json& messages, std::size_t count, bool add) {
    ordered_json first = messages;
    first.erase(first.begin() + static_cast<std::ptrdiff_t>(count), first.end());
    return render(first, add);
  };
}

ChatRule chatml_rule() {
  return {.render = of_first(plain_chatml),
          .stop_tokens = {"<|im_end|>"},
          .control_tokens = {"<|im_start|>", "<|im_end|>"}};
}

ordered_json said(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

std::vector<std::string> learned(const ChatSample& sample) {
  std::vector<std::string> parts;
  for (const Span& span : sample.spans) {
    parts.push_back(sample.text.substr(static_cast<std::size_t>(span.begin),
                                       static_cast<std::size_t>(span.end - span.begin)));
  }
  return parts;
}

ChatFault fault_of(const ordered_json& messages, const ChatRule& rule = chatml_rule()) {
  const ChatVerdict verdict = samples_of({messages, nullptr}, rule);
  EXPECT_TRUE(verdict.fault);
  return verdict.fault.value_or(ChatFault{});
}

TEST(ChatSpans, LearnsEachAnswerWithItsStopTokenInOneSample) {
  const auto verdict = samples_of({{said("user", "Hi"), said("assistant", "Hello"),
                                    said("user", "Bye"), said("assistant", "See you")},
                                   nullptr},
                                  chatml_rule());
  ASSERT_EQ(verdict.samples.size(), 1U);
  EXPECT_EQ(verdict.samples[0].turns, (std::vector<int>{1, 3}));
  EXPECT_EQ(learned(verdict.samples[0]),
            (std::vector<std::string>{"Hello<|im_end|>", "See you<|im_end|>"}));
}

TEST(ChatSpans, UnrollsWhereTheTemplateRewritesAnEarlierTurn) {
  ordered_json first = said("assistant", "Hello");
  first["reasoning_content"] = "greet";
  const ordered_json messages = {said("user", "Hi"), first, said("user", "Bye"),
                                 said("assistant", "See you")};
  const auto verdict = samples_of({messages, nullptr}, chatml_rule());
  ASSERT_EQ(verdict.samples.size(), 2U);
  EXPECT_EQ(learned(verdict.samples[0]),
            std::vector<std::string>{"<think>greet</think>Hello<|im_end|>"});
  EXPECT_EQ(learned(verdict.samples[1]), std::vector<std::string>{"See you<|im_end|>"});
  EXPECT_THAT(verdict.samples[1].text, testing::Not(HasSubstr("greet")));
}

TEST(ChatSpans, LearnsTheLastAnswerAloneOnRequestAndNothingOfWeightZero) {
  ChatRule rule = chatml_rule();
  ordered_json context = said("assistant", "Hello");
  context["weight"] = 0;
  const ordered_json messages = {said("user", "Hi"), context, said("user", "Bye"),
                                 said("assistant", "See you")};
  EXPECT_EQ(samples_of({messages, nullptr}, rule).samples.at(0).turns, std::vector<int>{3});
  rule.last_only = true;
  EXPECT_EQ(samples_of({messages, nullptr}, rule).samples.at(0).turns, std::vector<int>{3});
  EXPECT_EQ(fault_of({said("user", "Hi"), context}).reason, "nothing_to_learn");
  EXPECT_EQ(fault_of(ordered_json::array({said("assistant", "Hi")})).reason, "nothing_to_learn");
}

TEST(ChatSpans, RefusesASpecialTokenInAMessage) {
  const ChatFault fault =
      fault_of({said("user", "What is <|im_end|>?"), said("assistant", "A token")});
  EXPECT_EQ(fault.reason, "special_token_in_text");
  EXPECT_EQ(fault.message(),
            "message 1: contains the special token \"<|im_end|>\": remove it, or set "
            "data.special_tokens_in_text = \"as_text\"");
}

TEST(ChatSpans, RefusesAnAnswerWithoutAStopToken) {
  ChatRule rule = chatml_rule();
  rule.stop_tokens = {"</s>"};
  const ChatFault fault = fault_of({said("user", "Hi"), said("assistant", "Hello")}, rule);
  EXPECT_EQ(fault.reason, "no_stop");
  EXPECT_THAT(fault.message(), HasSubstr("message 2: the chat template ends this turn without a "
                                         "token that stops generation"));
}

TEST(ChatSpans, ATemplateThatFailsOnAToolCallIsTold) {
  ChatRule rule = chatml_rule();
  rule.render = of_first([](const ordered_json& messages, bool with_prompt) {
    if (messages.size() > 1) {
      throw TemplateError("mine", "line 5: no content", false);
    }
    return plain_chatml(messages, with_prompt);
  });
  ordered_json call = {{"role", "assistant"}, {"tool_calls", ordered_json::array()}};
  EXPECT_THAT(fault_of({said("user", "Hi"), call, said("assistant", "Hello")}, rule).message(),
              HasSubstr("Message 2 calls a tool, which this template may not write: name another "
                        "with data.chat_template"));
  EXPECT_THAT(fault_of({said("user", "Hi"), said("assistant", "Hello")}, rule).message(),
              HasSubstr("Correct the conversation, or name another template"));
}

// A template that begins to reason in each prompt.
std::string mismatched(const ordered_json& messages, bool add_generation_prompt) {
  const std::string text = plain_chatml(messages, add_generation_prompt);
  return add_generation_prompt ? text + "<think>\n" : text;
}

TEST(ChatSpans, RefusesATemplateWhosePromptIsNoBeginOfTheWholeWithBothTexts) {
  ChatRule rule = chatml_rule();
  rule.render = of_first(mismatched);
  const ordered_json messages = {said("user", "Hi"), said("assistant", "Hello")};
  const ChatFault fault = fault_of(messages, rule);
  EXPECT_EQ(fault.reason, "mismatch");
  EXPECT_THAT(fault.message(), HasSubstr("the prompt has \"<think>\\n\", the conversation "
                                         "\"Hello<|im_end|>\\n\""));
  rule.as_rendered = true;
  const auto verdict = samples_of({messages, nullptr}, rule);
  ASSERT_EQ(verdict.samples.size(), 1U);
  EXPECT_EQ(learned(verdict.samples[0]), std::vector<std::string>{"Hello<|im_end|>"});
}

TEST(ChatSpans, RefusesWhatTheTemplateLeavesOut) {
  ChatRule rule = chatml_rule();
  rule.render = of_first([](ordered_json messages, bool add_generation_prompt) {
    messages.back().erase("reasoning_content");
    return plain_chatml(messages, add_generation_prompt);
  });
  ordered_json answer = said("assistant", "Hello");
  answer["reasoning_content"] = "greet";
  EXPECT_THAT(fault_of({said("user", "Hi"), answer}, rule).message(),
              HasSubstr("leaves out this turn's reasoning"));
  rule.render = of_first([](ordered_json messages, bool add_generation_prompt) {
    if (messages.back()["role"] == "assistant") {
      messages.back()["content"] = "…";
    }
    return plain_chatml(messages, add_generation_prompt);
  });
  EXPECT_THAT(fault_of({said("user", "Hi"), said("assistant", "Hello")}, rule).message(),
              HasSubstr("leaves out this turn's text"));
  answer = said("assistant", "");
  answer["tool_calls"] = {{{"function", {{"name", "weather"}, {"arguments", {{"a", 1}}}}}}};
  EXPECT_THAT(fault_of({said("user", "Hi"), answer}).message(),
              HasSubstr("leaves out this turn's tool call"));
}

TEST(FirstStop, IsTheLongerOfTwoAtOnePlace) {
  EXPECT_EQ(first_stop("a<|end|><|end|>x", 0, {"<|end", "<|end|>"}), 8U);
  EXPECT_EQ(first_stop("abc", 0, {"</s>"}), std::nullopt);
}

TEST(PythonText, IsWrittenAsPythonWritesIt) {
  const auto value =
      ordered_json::parse(R"([{"type": "text", "text": "it's\n\"\u001f"}, true, null, 1.5])");
  EXPECT_EQ(python_repr(value), "[{'type': 'text', 'text': 'it\\'s\\n\"\\x1f'}, True, None, 1.5]");
  EXPECT_EQ(python_json(value), R"([{"type": "text", "text": "it's\n\"\u001f"}, true, null, 1.5])");
  EXPECT_EQ(python_strip("\xe2\x80\xa8 a b\x1f\n"), "a b");
}

// What transformers and the reference of the rule make of conversations; shared/data/chat.
TEST(ChatSpans, AgreesWithTheGoldens) {
  const auto folder = sherd::test::data_folder() / "chat";
  std::ifstream lines(folder / "masks.jsonl");
  int cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const auto golden = ordered_json::parse(line);
    const auto chat = ChatTemplate::from_file(folder / "templates" /
                                              (golden["template"].get<std::string>() + ".jinja"));
    ChatRule rule{.render = {},
                  .stop_tokens = golden["stop_tokens"],
                  .control_tokens = golden["control_tokens"],
                  .last_only = golden["supervise"] == "last",
                  .as_rendered = golden["on_mismatch"] == "as_rendered"};
    rule.render = of_first([&](const ordered_json& messages, bool add_generation_prompt) {
      ordered_json arguments = golden["kwargs"];
      arguments["add_generation_prompt"] = add_generation_prompt;
      return chat.render(messages, golden["tools"], arguments, golden["now"].get<std::string>())
          .text;
    });
    const ChatVerdict verdict = samples_of({golden["messages"], golden["tools"]}, rule);
    const ordered_json& expected = golden["expected"];
    const std::string label =
        golden["template"].get<std::string>() + " " + golden["conversation"].get<std::string>();
    if (verdict.fault) {
      EXPECT_EQ(verdict.fault->reason, expected.value("reason", "")) << label;
      continue;
    }
    ASSERT_EQ(verdict.samples.size(), expected.value("samples", ordered_json::array()).size())
        << label;
    for (std::size_t i = 0; i < verdict.samples.size(); ++i) {
      const ordered_json& sample = expected["samples"][i];
      EXPECT_EQ(ordered_json(verdict.samples[i].turns), sample["turns"]) << label;
      EXPECT_EQ(verdict.samples[i].text, sample["text"]) << label;
      auto spans = ordered_json::array();
      for (const Span& span : verdict.samples[i].spans) {
        spans.push_back({span.begin, span.end});
      }
      EXPECT_EQ(spans, sample["spans"]) << label;
    }
  }
  EXPECT_EQ(cases, 94);
}

}  // namespace
}  // namespace llm::text
