// `tokens`: the ids of a text, and which of them are in spans. Where generation has other ids,
// these too.

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "app/chat_check/questions.h"
#include "llm/text/tokenizer.h"
#include "sherd/error.h"

namespace chat_check {

namespace {

using llm::text::ByteRange;
using llm::text::TokenId;
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

// Per span: null where the ids before it are those of the prompt alone, as generation has them.
// Else the ids of the prompt alone, and those that generation has to write.
Json as_generated(const Tokenizer& tokenizer, const std::string& text,
                  const std::vector<TokenId>& whole, const std::vector<ByteRange>& spans) {
  Json all = Json::array();
  for (const ByteRange& span : spans) {
    const auto begin = static_cast<std::size_t>(span.begin);
    const auto size = static_cast<std::size_t>(span.end - span.begin);
    const auto prompt = tokenizer.encode_whole(text.substr(0, begin)).ids;
    const bool is_begin =
        prompt.size() <= whole.size() && std::equal(prompt.begin(), prompt.end(), whole.begin());
    all.push_back(is_begin
                      ? Json()
                      : Json{{"prompt_ids", prompt},
                             {"answer_ids", tokenizer.encode_whole(text.substr(begin, size)).ids}});
  }
  return all;
}

void check_spans(const std::vector<ByteRange>& spans, std::size_t text_bytes) {
  for (const ByteRange& span : spans) {
    if (span.begin < 0 || span.end < span.begin || std::cmp_greater(span.end, text_bytes)) {
      throw sherd::Error(sherd::ExitCode::Usage, "`spans` should lie within `text`");
    }
  }
}

}  // namespace

Json answer_tokens(const Json& question) {
  const std::string rule = text_of(question, "rule");
  if (rule != "starts" && rule != "overlaps") {
    throw sherd::Error(sherd::ExitCode::Usage, "`rule` should be \"starts\" or \"overlaps\"");
  }
  const auto is_in = rule == "starts" ? starts_in : overlaps;
  const auto spans = spans_of(question);
  const std::string text = text_of(question, "text");
  check_spans(spans, text.size());
  const Tokenizer& tokenizer = tokenizer_of(text_of(question, "tokenizer_file"));
  const auto encoding = tokenizer.encode_whole(text);
  Json mask = Json::array();
  for (const ByteRange& token : encoding.ranges) {
    mask.push_back(std::any_of(spans.begin(), spans.end(),
                               [&](const ByteRange& span) { return is_in(token, span); })
                       ? 1
                       : 0);
  }
  Json answer = {{"ids", encoding.ids}, {"mask", std::move(mask)}};
  if (rule == "starts") {
    answer["as_generated"] = as_generated(tokenizer, text, encoding.ids, spans);
  }
  return answer;
}

}  // namespace chat_check
