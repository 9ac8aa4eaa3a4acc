#include "llm/inputs/store_report.h"

#include <nlohmann/json.hpp>

#include "llm/text/conversation.h"

namespace llm::inputs {

using nlohmann::json;

namespace {

json json_of(const text::UnreadFields& unread) {
  json list = json::array();
  for (const text::UnreadFields::Field& field : unread.all()) {
    list.push_back({field.name, field.records, field.first_record});
  }
  return list;
}

text::UnreadFields unread_of(const json& list) {
  text::UnreadFields unread;
  for (const json& field : list) {
    unread.add({field.at(0), field.at(1), field.at(2)});
  }
  return unread;
}

}  // namespace

json json_of(const DatasetReport& report) {
  return {{"records", report.records},
          {"samples", report.samples},
          {"skipped", report.skipped},
          {"tokens", report.tokens},
          {"supervised_tokens", report.supervised_tokens},
          {"longest_tokens", report.longest_tokens},
          {"contexts_cut", report.contexts_cut},
          {"answers_cut", report.answers_cut},
          {"answers_outside", report.answers_outside},
          {"duplicates", report.duplicates},
          {"conversations", report.conversations},
          {"unread", json_of(report.unread)},
          {"max_length_tokens", report.limits.max_length_tokens},
          {"max_answer_tokens", report.limits.max_answer_tokens},
          {"unfit", report.unfit}};
}

DatasetReport report_of(const json& fields) {
  DatasetReport report;
  report.records = fields.at("records");
  report.samples = fields.at("samples");
  report.skipped = fields.at("skipped");
  report.tokens = fields.at("tokens");
  report.supervised_tokens = fields.at("supervised_tokens");
  report.longest_tokens = fields.at("longest_tokens");
  report.contexts_cut = fields.at("contexts_cut");
  report.answers_cut = fields.at("answers_cut");
  report.answers_outside = fields.at("answers_outside");
  report.duplicates = fields.at("duplicates");
  report.conversations = fields.at("conversations");
  report.unread = unread_of(fields.at("unread"));
  report.limits = {fields.at("max_length_tokens"), fields.at("max_answer_tokens")};
  report.unfit = fields.at("unfit").get<std::vector<std::int64_t>>();
  return report;
}

json json_of(const std::vector<text::BadSample>& samples) {
  json all = json::array();
  for (const text::BadSample& sample : samples) {
    json one = {{"source", sample.source},
                {"unit", sample.unit},
                {"place", sample.place},
                {"reason", sample.reason},
                {"content", sample.content}};
    if (sample.line) {
      one["line"] = *sample.line;
    }
    if (sample.byte) {
      one["byte"] = *sample.byte;
    }
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<text::BadSample> bad_samples_of(const json& list) {
  std::vector<text::BadSample> samples;
  for (const auto& one : list) {
    text::BadSample sample{.source = one.at("source"),
                           .unit = one.at("unit"),
                           .place = one.at("place"),
                           .reason = one.at("reason"),
                           .content = one.at("content")};
    if (one.contains("line")) {
      sample.line = one.at("line").get<std::int64_t>();
    }
    if (one.contains("byte")) {
      sample.byte = one.at("byte").get<std::int64_t>();
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

namespace {

std::string dumped_in_order(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string text_of(const text::Question& question) {
  json answers = json::array();
  for (const text::Answer& answer : question.answers) {
    answers.push_back({answer.text, answer.begin_byte});
  }
  json one = {{"id", question.id},
              {"question", question.question},
              {"answers", std::move(answers)},
              {"record", question.is_record()},
              {"unanswerable", question.unanswerable},
              {"file", question.file}};
  if (question.conversation) {  // as text: the order of its fields stays
    one["messages"] = dumped_in_order(question.conversation->messages);
    one["tools"] = dumped_in_order(question.conversation->tools);
  }
  return dumped(one);
}

text::Question question_of(std::string_view text) {
  const json one = json::parse(text);
  text::Question question;
  question.id = one.at("id");
  question.question = one.at("question");
  for (const auto& answer : one.at("answers")) {
    question.answers.push_back({answer.at(0), answer.at(1)});
  }
  if (!one.at("record").get<bool>()) {
    question.context = 0;
  }
  question.unanswerable = one.at("unanswerable");
  question.file = one.at("file");
  if (one.contains("messages")) {
    const auto part = [&](const char* name) {
      return nlohmann::ordered_json::parse(one.at(name).get_ref<const std::string&>());
    };
    question.conversation = std::make_shared<const text::Conversation>(
        text::Conversation{part("messages"), part("tools")});
  }
  return question;
}

std::string dumped(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace llm::inputs
