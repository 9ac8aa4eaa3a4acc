#include "llm/config/value.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "llm/config/run_config.h"
#include "llm/config/toml_file.h"

namespace llm::config {
namespace {

std::optional<std::int64_t> as_integer(const Raw& raw) {
  if (const auto* text = std::get_if<FlagText>(&raw)) {
    return integer_of(text->text);
  }
  const auto* value = std::get_if<std::int64_t>(&raw);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<double> as_number(const Raw& raw) {
  if (const auto* text = std::get_if<FlagText>(&raw)) {
    return number_of(text->text);
  }
  if (const auto* value = std::get_if<std::int64_t>(&raw)) {
    return static_cast<double>(*value);
  }
  const auto* value = std::get_if<double>(&raw);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::string> as_string(const Raw& raw) {
  if (const auto* text = std::get_if<FlagText>(&raw)) {
    return text->text;
  }
  const auto* value = std::get_if<std::string>(&raw);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::array<double, 2>> as_two_numbers(const Raw& raw) {
  if (const auto* text = std::get_if<FlagText>(&raw)) {
    const std::string_view both = text->text;
    const std::size_t comma = std::min(both.find(','), both.size());
    std::string_view rest = both.substr(std::min(comma + 1, both.size()));
    rest.remove_prefix(rest.starts_with(' ') ? 1 : 0);
    const auto first = number_of(both.substr(0, comma));
    const auto second = number_of(rest);
    return first && second ? std::optional(std::array<double, 2>{*first, *second}) : std::nullopt;
  }
  const auto* values = std::get_if<std::vector<double>>(&raw);
  return values == nullptr || values->size() != 2
             ? std::nullopt
             : std::optional(std::array<double, 2>{(*values)[0], (*values)[1]});
}

std::optional<std::vector<std::string>> as_strings(const Raw& raw) {
  std::vector<std::string> all;
  if (const auto* text = std::get_if<FlagText>(&raw)) {
    std::istringstream parts(text->text);
    for (std::string part; std::getline(parts, part, ',');) {
      all.push_back(part.substr(std::min(part.find_first_not_of(' '), part.size())));
    }
  } else if (const auto* given = std::get_if<std::vector<std::string>>(&raw)) {
    all = *given;
  } else if (const auto* numbers = std::get_if<std::vector<double>>(&raw);
             numbers == nullptr || !numbers->empty()) {  // [] may be a list of anything
    return std::nullopt;
  }
  const auto is_one = [](const std::string& part) {
    return !part.empty() && part.find(',') == std::string::npos;
  };
  return std::all_of(all.begin(), all.end(), is_one) ? std::optional(std::move(all)) : std::nullopt;
}

std::optional<std::vector<std::int64_t>> as_integers(const Raw& raw, const Range& range) {
  std::vector<double> numbers;
  if (const auto* given = std::get_if<std::vector<double>>(&raw)) {
    numbers = *given;
  } else if (const auto parts = as_strings(raw)) {
    for (const std::string& part : *parts) {
      numbers.push_back(number_of(part).value_or(std::nan("")));
    }
  } else {
    return std::nullopt;
  }
  std::vector<std::int64_t> all;
  for (const double number : numbers) {
    if (!range.holds(number) || number != std::floor(number)) {
      return std::nullopt;
    }
    all.push_back(static_cast<std::int64_t>(number));
  }
  return all;
}

// Modules chosen by a flag. No name of a module has a character that makes a pattern of it, but
// for the dot.
ModuleChoice choice_in(const std::string& text) {
  const bool is_pattern =
      text == kAllLinear || text.find_first_of("\\^$*+?()[]{}|") != std::string::npos;
  const auto names = as_strings(FlagText{text});
  return is_pattern || !names ? ModuleChoice{.pattern = text} : ModuleChoice{.names = *names};
}

template <class Slot, class Given>
bool store(Slot& slot, const std::optional<Given>& given) {
  if (given) {
    slot = static_cast<Slot>(*given);
  }
  return given.has_value();
}

template <class Number>
std::optional<Number> within(const Range& range, std::optional<Number> number) {
  return number && range.holds(static_cast<double>(*number)) ? number : std::nullopt;
}

/// `range`, and within it what an Integer can hold.
template <class Integer>
Range bounded(Range range) {
  using Limits = std::numeric_limits<Integer>;
  range.least = std::max(range.least, static_cast<double>(Limits::min()));
  range.most = std::min(range.most, static_cast<double>(Limits::max()));
  return range;
}

template <class Integer>
Value any_integer(Integer& slot, const Range& range) {
  const Range narrow = bounded<Integer>(range);
  return {.kind = "an integer" + range.text(),
          .text = [&slot] { return std::to_string(slot); },
          .set = [&slot,
                  narrow](const Raw& raw) { return store(slot, within(narrow, as_integer(raw))); }};
}

/// `value`, which writes to `*slot`, with a word for an empty slot.
template <class Number>
Value with_word(const std::string& word, std::optional<Number>& slot,
                const std::function<Value(Number&)>& value_of) {
  Number unused{};
  return {.kind = quote(word) + " or " + value_of(unused).kind,
          .text = [&slot, word, value_of] { return slot ? value_of(*slot).text() : quote(word); },
          .set =
              [&slot, word, value_of](const Raw& raw) {
                if (as_string(raw) == word) {
                  slot.reset();
                  return true;
                }
                Number number{};
                const bool fits = value_of(number).set(raw);
                slot = fits ? number : slot;
                return fits;
              }};
}

/// A value written as a string with a unit.
template <class Measure>
Value measured(Measure& slot, const std::string& kind,
               std::function<std::optional<Measure>(const std::string&)> read) {
  return {.kind = kind,
          .text = [&slot] { return quote(to_text(slot)); },
          .set =
              [&slot, read = std::move(read)](const Raw& raw) {
                const auto text = as_string(raw);
                return text && store(slot, read(*text));
              }};
}

Value duration(std::chrono::milliseconds& slot, std::chrono::milliseconds least) {
  return measured<std::chrono::milliseconds>(
      slot, "a time of at least " + to_text(least) + R"( such as "90 s", "10 min", "2 h")",
      [least](const std::string& text) {
        const auto read = duration_of(text);
        return read && *read >= least ? read : std::nullopt;
      });
}

}  // namespace

std::string raw_text(const Raw& raw) {
  if (const auto text = as_string(raw)) {
    return *text;
  }
  if (const auto integer = as_integer(raw)) {
    return std::to_string(*integer);
  }
  const auto number = as_number(raw);
  return number ? (*number == 0 ? "0" : float_text(*number)) : "";
}

bool Range::holds(double value) const {
  return std::isfinite(value) && (above_least ? value > least : value >= least) &&
         (below_most ? value < most : value <= most);
}

std::string Range::text() const {
  const auto bound = [](double value) {
    return std::isinf(value) ? std::string()
           : value == std::floor(value) && std::abs(value) < 1e15
               ? std::to_string(static_cast<std::int64_t>(value))
               : float_text(value);
  };
  const std::string low = bound(least);
  const std::string high = bound(most);
  if (low.empty()) {
    return "";
  }
  if (high.empty()) {
    return (above_least ? " above " : " of at least ") + low;
  }
  if (below_most) {
    return fmt::format(" of at least {} and below {}", low, high);
  }
  return above_least ? fmt::format(" above {}, at most {}", low, high)
                     : fmt::format(" from {} to {}", low, high);
}

Value integer(std::int64_t& slot, const Range& range) {
  return any_integer(slot, range);
}

Value integer(int& slot, const Range& range) {
  return any_integer(slot, range);
}

Value number(double& slot, const Range& range) {
  return {
      .kind = "a number" + range.text(),
      .text = [&slot] { return float_text(slot); },
      .set = [&slot, range](const Raw& raw) { return store(slot, within(range, as_number(raw))); }};
}

Value flag(bool& slot) {
  return {.kind = "true or false",
          .text = [&slot] { return slot ? "true" : "false"; },
          .set =
              [&slot](const Raw& raw) {
                const auto* text = std::get_if<FlagText>(&raw);
                const auto* value = std::get_if<bool>(&raw);
                if (text != nullptr && (text->text == "true" || text->text == "false")) {
                  slot = text->text == "true";
                  return true;
                }
                slot = value != nullptr ? *value : slot;
                return value != nullptr;
              }};
}

Value strings(std::vector<std::string>& slot) {
  const auto text = [&slot] {
    std::string all;
    for (const std::string& one : slot) {
      all += (all.empty() ? "" : ", ") + quote(one);
    }
    return "[" + all + "]";
  };
  const auto set = [&slot](const Raw& raw) { return store(slot, as_strings(raw)); };
  return {.kind = R"(a list of strings such as ["a", "b"])", .text = text, .set = set};
}

Value integers(std::vector<std::int64_t>& slot, const Range& range) {
  return {.kind = "a list of integers" + range.text() + " such as [0, 1]",
          .text = [&slot] { return fmt::format("[{}]", fmt::join(slot, ", ")); },
          .set = [&slot, range](const Raw& raw) { return store(slot, as_integers(raw, range)); }};
}

Value names_or_pattern(ModuleChoice& slot) {
  return {.kind = R"(a list of names such as ["q_proj", "v_proj"], or a pattern as one string)",
          .text =
              [&slot] {
                return slot.pattern.empty() ? strings(slot.names).text() : quote(slot.pattern);
              },
          .set =
              [&slot](const Raw& raw) {
                if (const auto* flag = std::get_if<FlagText>(&raw)) {
                  slot = choice_in(flag->text);
                  return true;
                }
                if (const auto* pattern = std::get_if<std::string>(&raw)) {
                  slot = {.pattern = *pattern};
                  return true;
                }
                const auto names = as_strings(raw);
                slot = names ? ModuleChoice{.names = *names} : slot;
                return names.has_value();
              }};
}

Value two_numbers(std::array<double, 2>& slot, const Range& range) {
  return {
      .kind = "two numbers, each" + range.text(),
      .text = [&slot] { return fmt::format("[{}, {}]", float_text(slot[0]), float_text(slot[1])); },
      .set =
          [&slot, range](const Raw& raw) {
            const auto numbers = as_two_numbers(raw);
            const bool fits = numbers && range.holds((*numbers)[0]) && range.holds((*numbers)[1]);
            slot = fits ? *numbers : slot;
            return fits;
          }};
}

Value string(std::string& slot) {
  return {.kind = "a string",
          .text = [&slot] { return quote(slot); },
          .set = [&slot](const Raw& raw) { return store(slot, as_string(raw)); }};
}

Value integer_or(const std::string& word, std::optional<std::int64_t>& slot, const Range& range) {
  return with_word<std::int64_t>(word, slot,
                                 [range](std::int64_t& number) { return integer(number, range); });
}

Value integer_or(const std::string& word, std::optional<int>& slot, const Range& range) {
  return with_word<int>(word, slot, [range](int& number) { return integer(number, range); });
}

Value number_or(const std::string& word, std::optional<double>& slot, const Range& range) {
  return with_word<double>(word, slot, [range](double& value) { return number(value, range); });
}

Value duration_or(const std::string& word, std::optional<std::chrono::milliseconds>& slot,
                  std::chrono::milliseconds least) {
  return with_word<std::chrono::milliseconds>(
      word, slot, [least](std::chrono::milliseconds& time) { return duration(time, least); });
}

Value share_or_none(double& slot) {
  constexpr double kPercent = 100;
  constexpr double kMostShare = 0.5;
  const auto share_of = [](const Raw& raw) -> std::optional<double> {
    const std::string text = as_string(raw).value_or("");
    const std::size_t sign = text.find_last_not_of(' ');
    if (sign == std::string::npos || text[sign] != '%') {
      return text == "none" ? std::optional(0.0) : as_number(raw);
    }
    const auto percent =
        number_of(std::string_view(text).substr(0, text.find_last_not_of(' ', sign - 1) + 1));
    return percent ? std::optional(*percent / kPercent) : std::nullopt;
  };
  return {
      .kind = R"("none", or a share up to one half such as "1 %")",
      .text =
          [&slot] { return quote(slot == 0 ? "none" : fmt::format("{:.12g} %", slot * kPercent)); },
      .set =
          [&slot, share_of](const Raw& raw) {
            const auto share = share_of(raw);
            const bool fits = share && *share >= 0 && *share <= kMostShare;
            slot = fits ? *share : slot;
            return fits;
          }};
}

Value every(Every& slot) {
  return measured<Every>(slot,
                         R"("never", "epoch", or steps or time such as "500 steps", "10 min")",
                         [](const std::string& text) { return every_of(text); });
}

Value memory_size(MemorySize& slot) {
  return measured<MemorySize>(slot, R"(memory from "16 MiB" to "1024 GiB")",
                              [](const std::string& text) { return memory_size_of(text); });
}

Value step_span(StepSpan& slot) {
  return measured<StepSpan>(slot, R"("never", or steps from 1 on such as "10", "10-12")",
                            [](const std::string& text) { return step_span_of(text); });
}

Value warmup(Warmup& slot) {
  return {.kind = R"(steps such as "100 steps", or a share of the run from 0 to 1)",
          .text =
              [&slot] {
                return slot.steps ? quote(to_text(Every::steps(*slot.steps)))
                                  : float_text(slot.share);
              },
          .set =
              [&slot](const Raw& raw) {
                const auto share = as_number(raw);
                return store(slot, share ? warmup_of(float_text(*share))
                                         : warmup_of(as_string(raw).value_or("")));
              }};
}

Value host_or_disk_folder(bool& on_host, std::string& folder) {
  const std::string disk = "disk:";
  const std::string host = "host";
  return {.kind = R"("none", "host" or "disk:FOLDER")",
          .text =
              [&on_host, &folder, disk, host] {
                return quote(on_host ? host : folder.empty() ? "none" : disk + folder);
              },
          .set =
              [&on_host, &folder, disk, host](const Raw& raw) {
                const std::string text = as_string(raw).value_or("");
                const bool is_folder = text.starts_with(disk) && text.size() > disk.size();
                const bool is_known = is_folder || text == host || text == "none";
                if (is_known) {
                  on_host = text == host;
                  folder = is_folder ? text.substr(disk.size()) : "";
                }
                return is_known;
              }};
}

Value host_or_none(bool& on_host) {
  return choice_of(
      {"none", "host"}, [&on_host] { return std::size_t{on_host}; },
      [&on_host](std::size_t position) { on_host = position == 1; }, {});
}

std::string with_underscores(const std::string& word) {
  std::string text;
  for (const char c : word) {
    text += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

std::string spelling(const std::string& word) {
  static const std::map<std::string, std::string> dtypes = {
      {"bf16", "bfloat16"}, {"fp16", "float16"}, {"half", "float16"}, {"fp32", "float32"}};
  const std::string text = with_underscores(word);
  const auto found = dtypes.find(text);
  return found == dtypes.end() ? text : found->second;
}

Value choice_of(std::vector<std::string> words, std::function<std::size_t()> get,
                std::function<void(std::size_t)> set, std::vector<std::string> planned_words) {
  std::string kind = words.size() > 1 ? "one of " : "";
  for (std::size_t i = 0; i < words.size(); ++i) {
    kind += (i > 0 ? ", " : "") + quote(words[i]);
  }
  return {.kind = kind,
          .text = [words, get = std::move(get)] { return quote(words[get()]); },
          .set =
              [words, set = std::move(set)](const Raw& raw) {
                const auto given = as_string(raw);
                const auto found =
                    std::find_if(words.begin(), words.end(), [&](const std::string& word) {
                      return given && spelling(word) == spelling(*given);
                    });
                if (found != words.end()) {
                  set(static_cast<std::size_t>(found - words.begin()));
                }
                return found != words.end();
              },
          .planned_words = std::move(planned_words)};
}

}  // namespace llm::config
