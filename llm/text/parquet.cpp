#include "llm/text/parquet.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "llm/text/parquet_rows.h"
#include "llm/text/printable.h"
#include "llm/text/utf8.h"

namespace llm::text {
namespace {

using nlohmann::json;

// Why a row is bad.
struct RowFault {
  std::string column;
  std::string why;
};

std::string text_in(const json& row, const std::string& column) {
  const auto value = row.find(column);
  if (value == row.end() || !value->is_string()) {
    throw RowFault{column, value == row.end() || value->is_null()
                               ? "is missing"
                               : fmt::format("should be a text, is {}", value->type_name())};
  }
  auto text = value->get<std::string>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw RowFault{column, "is empty"};
  }
  return text;
}

// The byte at which a character of a text starts; none beyond its end.
std::optional<std::size_t> byte_of_character(std::string_view text, std::int64_t character) {
  std::size_t byte = 0;
  for (std::int64_t passed = 0; passed < character; ++passed) {
    const auto next = first_code_point(text.substr(byte));
    if (!next) {
      return std::nullopt;
    }
    byte += next->bytes;
  }
  return character >= 0 && byte < text.size() ? std::optional(byte) : std::nullopt;
}

Answer answer_in(const std::string& context, const json& text, const json& start) {
  constexpr const char* kColumn = "answers";
  if (!text.is_string() || !start.is_number_integer()) {
    throw RowFault{kColumn, "an answer needs a text and, as answer_start, an integer"};
  }
  const auto answer = text.get<std::string>();
  const auto byte = byte_of_character(context, start.get<std::int64_t>());
  if (answer.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw RowFault{kColumn, "an answer is empty"};
  }
  if (!byte || context.compare(*byte, answer.size(), answer) != 0) {
    throw RowFault{
        kColumn, fmt::format("the answer {} is not at character {} of the context{}",
                             in_quotes(answer), start.dump(),
                             context.find(answer) == std::string::npos ? ", nor elsewhere in it"
                                                                       : ", but elsewhere in it")};
  }
  return {answer, static_cast<std::int64_t>(*byte)};
}

// Of a struct of lists, or of a list of structs; empty where there is none.
std::vector<Answer> answers_in(const json& row, const std::string& context) {
  const json& value = row.at("answers");
  const auto field = [](const json& object, const char* name) {
    return object.is_object() && object.contains(name) ? object[name] : json();
  };
  std::vector<Answer> answers;
  if (value.is_array()) {
    for (const json& one : value) {
      answers.push_back(answer_in(context, field(one, "text"), field(one, "answer_start")));
    }
    return answers;
  }
  const json texts = field(value, "text");
  const json starts = field(value, "answer_start");
  if (!texts.is_array() || !starts.is_array() || texts.size() != starts.size()) {
    throw RowFault{"answers",
                   "should be a struct of the lists text and answer_start, of one length"};
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    answers.push_back(answer_in(context, texts[i], starts[i]));
  }
  return answers;
}

std::string id_in(const json& row, std::int64_t number) {
  if (!row.contains("id")) {
    return fmt::format("row {}", number);
  }
  const json& id = row["id"];
  return id.is_number() ? id.dump() : text_in(row, "id");
}

// Rows as questions; contexts are held once where those of one follow each other.
class QuestionRows {
 public:
  void add_question(const std::string& row_text, std::int64_t number) {
    const json row = json::parse(row_text);
    const std::string context = text_in(row, "context");
    Question question{.id = id_in(row, number),
                      .question = text_in(row, "question"),
                      .answers = answers_in(row, context)};
    if (!ids_.insert(question.id).second) {
      throw RowFault{"id", in_quotes(question.id) + " occurs twice"};
    }
    if (question.answers.empty()) {
      question.unanswerable = true;
      question.answers.push_back({std::string(kNoAnswer)});
    }
    if (file_.contexts.empty() || file_.contexts.back() != context) {
      file_.contexts.push_back(context);
    }
    question.context = file_.contexts.size() - 1;
    file_.questions.push_back(std::move(question));
  }
  [[nodiscard]] QuestionFile file() && { return std::move(file_); }

 private:
  QuestionFile file_;
  std::set<std::string> ids_;
};

bool has_all(const std::vector<std::string>& names, const std::vector<std::string>& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  });
}

}  // namespace

bool is_parquet(std::string_view bytes) {
  return bytes.starts_with("PAR1");
}

bool are_of_questions(const std::vector<std::string>& names, const Columns& columns) {
  return has_all(names, {"question", "context", "answers"}) &&
         !has_all(names, {columns.prompt, columns.completion});
}

QuestionFile parse_parquet(const std::string& bytes, const std::string& name,
                           const Columns& columns, const BadSamplePolicy& policy) {
  ParquetRows rows(bytes, name, {"id", "question", "context", "answers"});
  if (!are_of_questions(rows.columns(), columns)) {
    return read_records({name, bytes},
                        {.container = Container::Parquet, .columns = columns, .bad = policy});
  }
  BadSamples bad(name, policy);
  QuestionRows good;
  std::int64_t number = 0;
  while (const auto row = rows.next()) {
    ++number;
    try {
      good.add_question(*row, number);
    } catch (const RowFault& fault) {
      const std::string column =
          fault.column.empty() ? "" : fmt::format("column {}: ", in_quotes(fault.column));
      bad.add({.unit = "row", .place = std::to_string(number), .reason = column + fault.why}, *row);
    }
  }
  QuestionFile file = std::move(good).file();
  file.skipped = std::move(bad).skipped();
  return file;
}

}  // namespace llm::text
