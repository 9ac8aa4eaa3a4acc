#include "llm/inputs/store_report.h"

#include <algorithm>

#include <nlohmann/json.hpp>

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
          {"pairs", report.pairs},
          {"skipped", report.skipped},
          {"tokens", report.tokens},
          {"supervised_tokens", report.supervised_tokens},
          {"longest_tokens", report.longest_tokens},
          {"contexts_cut", report.contexts_cut},
          {"answers_cut", report.answers_cut},
          {"answers_outside", report.answers_outside},
          {"duplicates", report.duplicates},
          {"unread", json_of(report.unread)},
          {"max_length_tokens", report.limits.max_length_tokens},
          {"max_answer_tokens", report.limits.max_answer_tokens},
          {"chat",
           {report.chat.conversations, report.chat.unrolled, report.chat.rewritten,
            report.chat.apart, report.chat.cut, report.chat.answers_cut}}};
}

DatasetReport report_of(const json& fields) {
  DatasetReport report;
  report.records = fields.at("records");
  report.samples = fields.at("samples");
  report.pairs = fields.at("pairs");
  report.skipped = fields.at("skipped");
  report.tokens = fields.at("tokens");
  report.supervised_tokens = fields.at("supervised_tokens");
  report.longest_tokens = fields.at("longest_tokens");
  report.contexts_cut = fields.at("contexts_cut");
  report.answers_cut = fields.at("answers_cut");
  report.answers_outside = fields.at("answers_outside");
  report.duplicates = fields.at("duplicates");
  report.unread = unread_of(fields.at("unread"));
  report.limits = {fields.at("max_length_tokens"), fields.at("max_answer_tokens")};
  const json& chat = fields.at("chat");
  report.chat.conversations = chat.at(0);
  report.chat.unrolled = chat.at(1);
  report.chat.rewritten = chat.at(2);
  report.chat.apart = chat.at(3);
  report.chat.cut = chat.at(4);
  report.chat.answers_cut = chat.at(5);
  return report;
}

json json_of(const std::vector<text::BadSample>& samples, const DataFile& source) {
  json all = json::array();
  for (const text::BadSample& sample : samples) {
    const auto file =
        std::find_if(source.files.begin(), source.files.end(),
                     [&](const NamedBytes& one) { return one.name == sample.source; });
    json one = {{"file", file - source.files.begin()},
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

std::vector<text::BadSample> bad_samples_of(const json& list, const DataFile& source) {
  std::vector<text::BadSample> samples;
  for (const auto& one : list) {
    const std::size_t file = one.at("file");
    text::BadSample sample{
        .source = file < source.files.size() ? source.files[file].name : source.name,
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

std::string text_of(const text::Question& question) {
  json answers = json::array();
  for (const text::Answer& answer : question.answers) {
    answers.push_back({answer.text, answer.begin_byte});
  }
  return dumped({{"id", question.id},
                 {"question", question.question},
                 {"answers", std::move(answers)},
                 {"record", question.is_record()},
                 {"unanswerable", question.unanswerable},
                 {"file", question.file}});
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
  return question;
}

std::string dumped(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace llm::inputs
