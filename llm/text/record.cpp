#include "llm/text/record.h"

#include <algorithm>
#include <array>

#include <fmt/core.h>

#include "files/json.h"
#include "llm/text/printable.h"
#include "llm/text/record_frames.h"
#include "llm/text/utf8.h"

namespace llm::text {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::size_t kColumnsTold = 12;
constexpr std::size_t kParserBytesTold = 200;
constexpr std::size_t kMostFields = 1024;  // they are looked up one after the other
constexpr std::size_t kMostNames = 256;
constexpr std::array<std::string_view, 12> kMessageFields = {
    "role",     "content",      "from",       "value",         "weight",
    "name",     "tool_call_id", "tool_calls", "function_call", "reasoning_content",
    "thinking", "reasoning"};
// Of Axolotl, ms-swift, torchtune, LLaMA-Factory and their data sets.
constexpr std::array<std::string_view, 12> kLearnedFields = {
    "train", "training",  "train_detail", "training_detail", "train_on_turn", "trainable",
    "loss",  "loss_mask", "loss_weight",  "loss_scale",      "mask",          "masked"};

template <std::size_t n>
bool holds(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

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

// Builds the wanted fields from the events of a parse; keeps nothing else of a record.
class RecordBuilder : public nlohmann::json_sax<json> {
 public:
  explicit RecordBuilder(const WantedFields& wanted) : wanted_(wanted) {}

  bool null() override {
    if (depth_ == skipped_from_) {
      passed_.clear();
    }
    return scalar(nullptr, "null");
  }
  bool boolean(bool value) override { return scalar(value, "boolean"); }
  bool number_integer(number_integer_t value) override { return scalar(value, "number"); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(value, "number"); }
  bool number_float(number_float_t value, const string_t& text) override {
    const bool is_integer = text.find_first_of(".eE") == std::string::npos;
    if (is_integer && is_kept() && depth_ > 0) {
      record.fault = in_quotes(top_) + " holds an integer of more than 64 bits: " + in_quotes(text);
      return false;
    }
    return scalar(value, "number");
  }
  bool binary(binary_t& /*value*/) override { return scalar(nullptr, "binary"); }
  bool string(string_t& value) override { return scalar(std::move(value), "string"); }
  bool start_object(std::size_t /*size*/) override {
    if (depth_ == 0) {
      open_.push_back(&record.fields);
      ++depth_;
      return true;
    }
    return open(ordered_json::object());
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*size*/) override {
    return depth_ == 0 ? scalar(nullptr, "array") : open(ordered_json::array());
  }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!is_kept()) {
      return true;
    }
    bool is_wanted = true;
    passed_.clear();
    if (depth_ == 1) {
      if (record.names.size() < kMostNames) {
        record.names.push_back(name);
      }
      top_ = name;
      is_wanted = wanted_.names.contains(name);
    } else if (depth_ == 3 && wanted_.lists.contains(top_) && open_[1]->is_array()) {
      is_wanted = holds(kMessageFields, name) || tells_what_is_learned(name);
      passed_ = is_wanted ? "" : name;
    }
    ordered_json& object = *open_.back();
    if (!is_wanted) {
      skipped_from_ = depth_;
    } else if (object.contains(name)) {
      record.twice.emplace_back(top_, name);
    } else if (object.size() >= kMostFields) {
      record.fault =
          fmt::format("{} holds an object of more than {} fields", in_quotes(top_), kMostFields);
    }
    name_ = std::move(name);
    return record.fault.empty();
  }
  bool parse_error(std::size_t position, const std::string& /*last*/,
                   const nlohmann::detail::exception& error) override {
    record.fault = "not JSON: " + reason_in(error.what());
    record.fault_byte = position == 0 ? 0 : position - 1;
    return false;
  }

  Record record;

 private:
  [[nodiscard]] bool is_kept() const { return skipped_from_ < 0; }
  // The value that a name announced was passed over.
  void end_value() {
    if (skipped_from_ != depth_) {
      return;
    }
    skipped_from_ = -1;
    if (passed_.empty()) {
      return;
    }
    std::pair<std::string, std::string> one(top_, passed_);
    const bool is_new =
        std::find(record.unread.begin(), record.unread.end(), one) == record.unread.end();
    if (is_new && record.unread.size() < kMostNames) {
      record.unread.push_back(std::move(one));
    }
  }
  template <class Value>
  bool scalar(Value value, const char* kind) {
    if (depth_ == 0) {
      record.fault = fmt::format("should be an object, is {}", kind);
      return false;
    }
    if (is_kept()) {
      place(std::move(value));
    }
    end_value();
    return true;
  }
  ordered_json& place(ordered_json value) {
    ordered_json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return parent.back();
    }
    ordered_json& slot = parent[name_];
    slot = std::move(value);
    return slot;
  }
  bool open(ordered_json empty) {
    if (is_kept()) {
      open_.push_back(&place(std::move(empty)));
    }
    if (++depth_ > sherd::files::kMaxJsonDepth) {
      record.fault = fmt::format("nested deeper than {} levels", sherd::files::kMaxJsonDepth);
    }
    return record.fault.empty();
  }
  bool close() {
    --depth_;
    if (is_kept()) {
      open_.pop_back();
    }
    end_value();
    return true;
  }

  const WantedFields& wanted_;
  std::vector<ordered_json*> open_;  // from the record down to what is being read
  std::string top_;                  // the record's field that is being read
  std::string name_;                 // of the value that comes next
  std::string passed_;               // a message's field whose value is passed over
  int depth_ = 0;
  int skipped_from_ = -1;  // the depth of an object whose value is passed over
};

}  // namespace

std::span<const std::string_view> fields_of_what_is_learned() {
  return kLearnedFields;
}

bool tells_what_is_learned(std::string_view field) {
  return holds(kLearnedFields, field);
}

std::string names_text(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kColumnsTold); ++i) {
    text += (i == 0 ? "" : ", ") + in_quotes(names[i]);
  }
  return text.empty() ? "none" : text + (names.size() > kColumnsTold ? ", …" : "");
}

std::string Record::columns() const {
  return names_text(names);
}

Record read_record(std::string_view bytes, const WantedFields& wanted) {
  RecordBuilder builder(wanted);
  // The parser takes a NUL byte for the end of the text.
  if (const std::size_t nul = bytes.find('\0'); nul != std::string_view::npos) {
    builder.record.fault = "not JSON: a NUL byte";
    builder.record.fault_byte = nul;
    return std::move(builder.record);
  }
  json::sax_parse(bytes.begin(), bytes.end(), &builder);
  return std::move(builder.record);
}

}  // namespace llm::text
