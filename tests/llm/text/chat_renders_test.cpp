// Chat templates against the goldens: what transformers makes of conversations.

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/text/byte_source.h"
#include "llm/text/chat_template.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using nlohmann::ordered_json;

constexpr const char* kNow = "2026-03-09T07:05:03";

std::vector<ordered_json> json_lines(const std::filesystem::path& file) {
  std::string bytes;
  ByteSource source({.name = file.string()});
  std::vector<char> buffer(1 << 16);
  for (std::size_t read = source.read(buffer); read > 0; read = source.read(buffer)) {
    bytes.append(buffer.data(), read);
  }
  std::vector<ordered_json> lines;
  std::istringstream stream(bytes);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(ordered_json::parse(line));
  }
  return lines;
}

// A folder of goldens: templates, conversations and renders.
class Goldens {
 public:
  explicit Goldens(std::filesystem::path folder) : folder_(std::move(folder)) {
    for (const auto& facts :
         ordered_json::parse(sherd::test::bytes_of(folder_ / "templates.json"))) {
      tokens_[facts["name"]] = facts["special_tokens"];
    }
    for (const auto& conversation : json_lines(folder_ / "conversations.jsonl")) {
      conversations_[conversation["name"]] = conversation;
    }
  }

  // What a render gives, in the words of the goldens; the message of a fault is left out.
  ordered_json answer_to(const ordered_json& question) {
    const std::string name = question["template"];
    const ordered_json& conversation = conversations_.at(question["conversation"]);
    ordered_json arguments = tokens_.at(name);
    arguments.update(question["kwargs"]);
    try {
      const auto rendered = template_of(name).render(
          conversation["messages"], conversation.value("tools", ordered_json()), arguments, kNow);
      ordered_json spans = ordered_json::array();
      for (const ByteRange& span : rendered.spans) {
        spans.push_back({span.begin, span.end});
      }
      return {{"text", rendered.text}, {"spans", spans}};
    } catch (const TemplateError& error) {
      return {{"error", error.raised() ? "raised" : "template"}};
    }
  }

  static ordered_json expected_of(const ordered_json& golden) {
    if (golden.contains("error")) {
      return {{"error", golden["error"]["class"]}};
    }
    return {{"text", golden["text"]}, {"spans", golden.value("spans", ordered_json::array())}};
  }

  [[nodiscard]] std::vector<ordered_json> renders() const {
    return json_lines(folder_ / "renders.jsonl.gz");
  }

 private:
  const ChatTemplate& template_of(const std::string& name) {
    const auto found = templates_.find(name);
    if (found != templates_.end()) {
      return found->second;
    }
    return templates_
        .emplace(name, ChatTemplate::from_file(folder_ / "templates" / (name + ".jinja")))
        .first->second;
  }

  std::filesystem::path folder_;
  std::map<std::string, ordered_json> tokens_;
  std::map<std::string, ordered_json> conversations_;
  std::map<std::string, ChatTemplate> templates_;
};

// Conversations whose integers have more than 64 bits: the readers of data refuse them by name.
const std::set<std::string> kNotDone = {"tools-huge-integers"};

void expect_all_equal(const std::filesystem::path& folder, std::size_t cases) {
  Goldens goldens(folder);
  std::vector<std::string> different;
  const auto renders = goldens.renders();
  EXPECT_EQ(renders.size(), cases);
  for (const ordered_json& golden : renders) {
    const ordered_json answer = goldens.answer_to(golden);
    if (answer != Goldens::expected_of(golden) && !kNotDone.contains(golden["conversation"])) {
      different.push_back(golden["template"].get<std::string>() + ", " +
                          golden["conversation"].get<std::string>() + ", " +
                          golden["kwargs"].dump() + ": " + answer.dump().substr(0, 300));
    }
  }
  EXPECT_EQ(different.size(), 0) << "the first of them: " << different.front();
}

TEST(ChatRenders, AreThoseOfTransformersForTheTemplatesThatShip) {
  expect_all_equal(sherd::test::data_folder() / "chat", 1050);
}

TEST(ChatRenders, AreThoseOfTransformersFor93Templates) {
  SHERD_NEEDS_EXTRA_DATA("chat/renders.jsonl.gz");
  expect_all_equal(*sherd::test::extra_data("chat"), 14412);
}

}  // namespace
}  // namespace llm::text
