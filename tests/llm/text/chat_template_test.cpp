#include "llm/text/chat_template.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::text {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::TempFolder;

std::string rendered(const ChatTemplate& chat, const std::string& message = "Hi!") {
  const nlohmann::ordered_json messages = {{{"role", "user"}, {"content", message}}};
  return chat.render(messages, nullptr, {{"add_generation_prompt", true}}, "").text;
}

std::string rendered(const std::string& chat_template, const std::string& message = "Hi!") {
  const TempFolder folder;
  const nlohmann::json config = {{"chat_template", chat_template},
                                 {"bos_token", {{"content", "<s>"}}},
                                 {"eos_token", "</s>"},
                                 {"pad_token", nullptr}};
  static_cast<void>(folder.write("tokenizer_config.json", config.dump()));
  return rendered(ChatTemplate::from_folder(folder.path()).value(), message);
}

// The form that many small models have: a system message where there is none, and marks by role.
TEST(ChatTemplate, WritesAConversationAsTheModelWantsIt) {
  EXPECT_EQ(rendered("{% for message in messages %}{% if loop.first and messages[0]['role'] != "
                     "'system' %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}"
                     "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                     "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
                     "{{ '<|im_start|>assistant\\n' }}{% endif %}"),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
            "<|im_start|>assistant\n");
}

// What templates take from Python and from transformers: methods of strings, namespaces, blocks
// without the line they stand on.
TEST(ChatTemplate, MayUseWhatTransformersOffers) {
  EXPECT_EQ(rendered("{%- set ns = namespace(n=0) %}\n"
                     "{% for m in messages %}\n"
                     "  {% set ns.n = ns.n + 1 %}\n"
                     "{{ bos_token }}[{{ m.content.strip().upper() }}]{{ ns.n }}\n"
                     "{% endfor %}\n"
                     "{% if pad_token is not defined %}{{ eos_token }}{% endif %}",
                     " hi "),
            "<s>[HI]1\n</s>");
  EXPECT_EQ(rendered("{{ messages[0] | tojson }}"), R"({"role": "user", "content": "Hi!"})");
  EXPECT_EQ(rendered("{{ messages[0].content.split('!')[0] }}{{ 'x' if strftime_now('%Y') | int > "
                     "2000 }}"),
            "Hix");
}

TEST(ChatTemplate, LiesInOneOfTwoFiles) {
  const TempFolder folder;
  EXPECT_FALSE(ChatTemplate::from_folder(folder.path()));
  const auto with_config = [&](const std::string& config) {
    static_cast<void>(folder.write("tokenizer_config.json", config));
    return ChatTemplate::from_folder(folder.path());
  };
  EXPECT_FALSE(with_config("{}"));
  const auto named = with_config(R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                     {"name": "default", "template": "d"}]})");
  EXPECT_EQ(rendered(named.value()), "d");
  EXPECT_EQ(named->file(), (folder.path() / "tokenizer_config.json").string());
  static_cast<void>(folder.write("chat_template.jinja", "own"));
  EXPECT_EQ(rendered(ChatTemplate::from_folder(folder.path()).value()), "own");
}

TEST(ChatTemplate, ThatCannotBeRightIsToldWithItsFile) {
  const TempFolder folder;
  for (const char* config : {R"({"chat_template": 5})", R"({"chat_template": [{"name": "x"}]})"}) {
    static_cast<void>(folder.write("tokenizer_config.json", config));
    expect_error([&] { static_cast<void>(ChatTemplate::from_folder(folder.path())); },
                 ExitCode::BadData, {"tokenizer_config.json: /chat_template"});
  }
  const auto refuse = [](const std::string& text, const std::string& part) {
    expect_error([&] { static_cast<void>(rendered(text)); }, ExitCode::BadData,
                 {"tokenizer_config.json: the chat template cannot be rendered: ", part});
  };
  refuse("{% for x in %}", "line 1");
  refuse("\n{{ raise_exception('Only tools are welcome') }}", "line 2: Only tools are welcome");
}

// A template comes from strangers: it ends in an error, not with the process or never.
TEST(ChatTemplate, ThatIsHostileIsRefused) {
  const auto refuse = [](const std::string& text) {
    expect_error([&] { static_cast<void>(rendered(text)); }, ExitCode::BadData,
                 {"the chat template cannot be rendered"});
  };
  refuse(
      "{% for a in range(99999) %}{% for b in range(99999) %}{{ a * b }}{% endfor %}{% endfor %}");
  refuse(std::string(300 << 10, 'x'));
  refuse("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
  std::string sum = "1";
  for (int i = 0; i < 20000; ++i) {
    sum += "+1";
  }
  try {  // an answer or an error, within the stack
    EXPECT_EQ(rendered("{{ " + sum + " }}"), "20001");
  } catch (const sherd::Error& error) {
    EXPECT_EQ(error.code(), ExitCode::BadData);
  }
}

}  // namespace
}  // namespace llm::text
