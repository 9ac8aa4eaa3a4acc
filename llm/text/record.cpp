#include "llm/text/record.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/json.h"
#include "llm/text/json_numbers.h"
#include "llm/text/printable.h"
#include "llm/text/utf8.h"

namespace llm::text {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxRecordBytes = std::size_t{16} << 20;
constexpr std::size_t kColumnsTold = 12;
constexpr std::size_t kParserBytesTold = 200;

// What the parser says, without the place, which it counts from the record's begin, and without the
// text that it read.
std::string reason_in(const std::string& what) {
  std::size_t begin = what.find(": ");
  begin = begin == std::string::npos ? what.find("] ") : begin;
  begin = begin == std::string::npos ? 0 : begin + 2;
  const std::string reason = what.substr(begin, what.find("; last read") - begin);
  return printable(start_of(reason, kParserBytesTold)) +
         (reason.size() > kParserBytesTold ? "…" : "");
}

// Collects the wanted fields from the events of a parse; keeps nothing else of a record.
class ColumnReader : public nlohmann::json_sax<json> {
 public:
  ColumnReader(const std::string& first, const std::string& second) : wanted_{&first, &second} {}

  bool null() override { return other("null"); }
  bool boolean(bool /*value*/) override { return other("boolean"); }
  bool number_integer(number_integer_t /*value*/) override { return other("number"); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return other("number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return other("number");
  }
  bool binary(binary_t& /*value*/) override { return other("binary"); }
  bool string(string_t& value) override {
    if (depth_ == 0) {
      return other("string");
    }
    if (column_ && depth_ == 1) {
      found_[*column_] = value;
    }
    return true;
  }
  bool start_object(std::size_t /*size*/) override {
    return (depth_ == 0 || other("object")) && deeper();
  }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t /*size*/) override { return other("array") && deeper(); }
  bool end_array() override { return --depth_ >= 0; }
  bool key(string_t& name) override {
    if (depth_ != 1) {
      return true;
    }
    if (names_.size() <= kColumnsTold) {
      names_.push_back(name);
    }
    column_.reset();
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (name == *wanted_[i]) {
        column_ = i;
        if (seen_[i]) {
          fault = "the column " + in_quotes(name) + " occurs twice";
        }
        seen_[i] = true;
      }
    }
    return fault.empty();
  }
  bool parse_error(std::size_t position, const std::string& /*last*/,
                   const nlohmann::detail::exception& error) override {
    fault = "not JSON: " + reason_in(error.what());
    fault_byte = position == 0 ? 0 : position - 1;
    return false;
  }

  // After the end: what is not there, or is empty.
  void require_both() {
    for (std::size_t i = 0; i < wanted_.size() && fault.empty(); ++i) {
      if (!found_[i]) {
        fault = fmt::format(
            "has no {}; its columns are {}: name them with columns = {{ prompt = "
            "\"…\", completion = \"…\" }}",
            in_quotes(*wanted_[i]), names());
      } else if (found_[i]->find_first_not_of(" \t\r\n") == std::string::npos) {
        fault = in_quotes(*wanted_[i]) + " is empty";
      }
    }
  }

  [[nodiscard]] std::string value(std::size_t i) const { return found_[i].value_or(""); }

  std::string fault;
  std::size_t fault_byte = 0;

 private:
  // A value that is no string, or no object where the record should be one.
  bool other(const std::string& kind) {
    if (depth_ == 0) {
      fault = "should be an object, is " + kind;
    } else if (depth_ == 1 && column_) {
      fault = fmt::format("{} should be a string, is {}", in_quotes(*wanted_[*column_]), kind);
    }
    return fault.empty();
  }
  bool deeper() {
    if (++depth_ > sherd::files::kMaxJsonDepth) {
      fault = fmt::format("nested deeper than {} levels", sherd::files::kMaxJsonDepth);
    }
    return fault.empty();
  }
  [[nodiscard]] std::string names() const {
    std::string text;
    for (std::size_t i = 0; i < std::min(names_.size(), kColumnsTold); ++i) {
      text += (i == 0 ? "" : ", ") + in_quotes(names_[i]);
    }
    return text.empty() ? "none" : text + (names_.size() > kColumnsTold ? ", …" : "");
  }

  std::array<const std::string*, 2> wanted_;
  std::array<bool, 2> seen_{};
  std::array<std::optional<std::string>, 2> found_;
  std::optional<std::size_t> column_;  // that the next value at depth 1 belongs to
  std::vector<std::string> names_;
  int depth_ = 0;
};

}  // namespace

Record read_record(std::string_view bytes, const std::string& prompt_column,
                   const std::string& completion_column) {
  Record record;
  if (bytes.size() > kMaxRecordBytes) {
    record.fault = fmt::format("has {} bytes, more than the {} that a record may have",
                               bytes.size(), kMaxRecordBytes);
    return record;
  }
  // The parser takes a NUL byte for the end of the text.
  if (const std::size_t nul = bytes.find('\0'); nul != std::string_view::npos) {
    record.fault = "not JSON: a NUL byte";
    record.fault_byte = nul;
    return record;
  }
  ColumnReader columns(prompt_column, completion_column);
  bool is_json = json::sax_parse(bytes.begin(), bytes.end(), &columns);
  if (!is_json) {
    if (const auto finite = with_finite_numbers(bytes)) {
      columns = ColumnReader(prompt_column, completion_column);
      is_json = json::sax_parse(*finite, &columns);
    }
  }
  if (is_json) {
    columns.require_both();
  }
  record.prompt = columns.value(0);
  record.completion = columns.value(1);
  record.fault = columns.fault;
  record.fault_byte = columns.fault_byte;
  return record;
}

}  // namespace llm::text
