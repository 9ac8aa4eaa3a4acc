// What a tokenizer encodes, beside what was recorded.

#include <sstream>

#include <nlohmann/json.hpp>

#include "files/input.h"
#include "files/json.h"
#include "llm/text/tokenizer.h"
#include "sherd/error.h"

namespace llm::text {

namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxCasesBytes = std::uint64_t{1} << 30;

// One field of a case, of the type T.
template <typename T>
T field_of(const json& test_case, const char* field, const std::string& place) {
  try {
    return test_case.at(field).get<T>();
  } catch (const json::exception&) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       place + ": `" + field + "` is missing or has another type");
  }
}

// The difference in one case, or null.
json difference(const Tokenizer& tokenizer, const json& test_case, const std::string& place) {
  const auto text = field_of<std::string>(test_case, "text", place);
  for (const auto& [field, special] :
       {std::pair{"ids", SpecialTokens::Leave}, {"ids_with_special", SpecialTokens::Add}}) {
    const auto expected = field_of<std::vector<TokenId>>(test_case, field, place);
    const auto got = tokenizer.encode(text, special).ids;
    if (got != expected) {
      return {{"field", field}, {"text", text}, {"expected", expected}, {"got", got}};
    }
  }
  return nullptr;
}

}  // namespace

std::string compare_with_recorded(const Tokenizer& tokenizer, const std::string& cases_path) {
  std::istringstream lines(sherd::files::read_file(cases_path, kMaxCasesBytes));
  int cases = 0;
  int differ = 0;
  json first = nullptr;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string place = cases_path + ":" + std::to_string(number);
    json found = difference(tokenizer, sherd::files::parse_json(line, place), place);
    ++cases;
    if (!found.is_null()) {
      found["line"] = number;
      first = differ == 0 ? found : first;
      ++differ;
    }
  }
  if (cases == 0) {
    throw sherd::Error(sherd::ExitCode::BadData, cases_path + ": contains no cases");
  }
  const json found = {{"cases", cases}, {"differ", differ}, {"first", first}};
  return found.dump(-1, ' ', true);  // ASCII, for any terminal and any reader
}

}  // namespace llm::text
