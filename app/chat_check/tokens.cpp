// `tokens`: the ids of a text, and which of them are in spans.

#include <algorithm>
#include <filesystem>

#include "app/chat_check/questions.h"
#include "llm/text/tokenizer.h"
#include "sherd/error.h"

namespace chat_check {

namespace {

using llm::text::ByteRange;
using llm::text::Tokenizer;

bool starts_in(const ByteRange& token, const ByteRange& span) {
  return span.begin <= token.begin && token.begin < span.end;
}

bool overlaps(const ByteRange& token, const ByteRange& span) {
  return token.begin < span.end && span.begin < token.end;
}

std::vector<ByteRange> spans_of(const Json& question) {
  std::vector<ByteRange> spans;
  for (const Json& span : field_of(question, "spans")) {
    spans.push_back({span.at(0).get<std::int64_t>(), span.at(1).get<std::int64_t>()});
  }
  return spans;
}

// The tokenizer of the question before, while it is the same file.
const Tokenizer& tokenizer_of(const std::string& file) {
  static std::string last_file;
  static std::optional<Tokenizer> last;
  if (file != last_file || !last) {
    last = Tokenizer::from_folder(std::filesystem::path(file).parent_path());
    last_file = file;
  }
  return *last;
}

}  // namespace

Json answer_tokens(const Json& question) {
  const std::string rule = text_of(question, "rule");
  if (rule != "starts" && rule != "overlaps") {
    throw sherd::Error(sherd::ExitCode::Usage, "`rule` should be \"starts\" or \"overlaps\"");
  }
  const auto is_in = rule == "starts" ? starts_in : overlaps;
  const auto spans = spans_of(question);
  const auto encoding =
      tokenizer_of(text_of(question, "tokenizer_file")).encode_whole(text_of(question, "text"));
  Json mask = Json::array();
  for (const ByteRange& token : encoding.ranges) {
    mask.push_back(std::any_of(spans.begin(), spans.end(),
                               [&](const ByteRange& span) { return is_in(token, span); })
                       ? 1
                       : 0);
  }
  return {{"ids", encoding.ids}, {"mask", std::move(mask)}};
}

}  // namespace chat_check
