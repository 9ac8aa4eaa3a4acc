// tokenizer_check TOKENIZER_DIR CASES.jsonl: does the tokenizer produce the expected ids?
//
// A case is one line of JSON with `text`, `ids` (no special tokens added) and `ids_with_special`.
// Prints one line of JSON: the number of cases, how many differ, and the first that differs (null
// if none does). Exits 0 when it could compare.

#include <cstdio>
#include <iostream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "files/input.h"
#include "files/json.h"
#include "llm/text/tokenizer.h"
#include "sherd/error.h"

namespace {

using llm::text::SpecialTokens;
using llm::text::TokenId;
using llm::text::Tokenizer;
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

json compare(const std::string& folder, const std::string& cases_path) {
  const Tokenizer tokenizer = Tokenizer::from_folder(folder);
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
  return {{"cases", cases}, {"differ", differ}, {"first", first}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) {
      throw sherd::Error(sherd::ExitCode::Usage,
                         "usage: tokenizer_check TOKENIZER_DIR CASES.jsonl");
    }
    // ASCII only, for any terminal and any reader.
    std::cout << compare(argv[1], argv[2]).dump(-1, ' ', true) << '\n';
    return static_cast<int>(sherd::ExitCode::Done);
  } catch (const sherd::Error& error) {
    std::cerr << "tokenizer_check: " << error.what() << '\n';
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "tokenizer_check: internal error: " << error.what() << '\n';
    return static_cast<int>(sherd::ExitCode::Internal);
  }
}
