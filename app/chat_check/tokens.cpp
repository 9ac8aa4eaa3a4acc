// `tokens`: the ids of a text, and which of them are in spans, as ChatEncoder learns them. Where
// generation has other ids, these too.

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>
#include <vector>

#include "app/chat_check/questions.h"
#include "llm/text/chat_encoder.h"
#include "sherd/error.h"

namespace chat_check {

namespace {

using namespace llm::text;

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

// Turns are numbers of spans.
ChatSample sample_of(const Json& question) {
  ChatSample sample{{}, text_of(question, "text"), {}};
  for (const Json& span : field_of(question, "spans")) {
    sample.spans.push_back({span.at(0).get<std::int64_t>(), span.at(1).get<std::int64_t>()});
    const Span& last = sample.spans.back();
    if (last.begin < 0 || last.end < last.begin || std::cmp_greater(last.end, sample.text.size())) {
      throw sherd::Error(sherd::ExitCode::Usage, "`spans` should lie within `text`");
    }
  }
  sample.turns.resize(sample.spans.size());
  std::iota(sample.turns.begin(), sample.turns.end(), 0);
  return sample;
}

// The special token that the first span ends with; empty: none.
std::string stop_of(const ChatSample& sample, const Tokenizer& tokenizer) {
  std::string stop;
  if (!sample.spans.empty()) {
    const std::string_view until =
        std::string_view(sample.text).substr(0, static_cast<std::size_t>(sample.spans[0].end));
    for (const std::string& token : tokenizer.special_tokens()) {
      stop = until.ends_with(token) && token.size() > stop.size() ? token : stop;
    }
  }
  return stop;
}

// Of a model whose answers end with `stop`.
ChatEncoder encoder_of(const Tokenizer& tokenizer, const std::string& stop, Supervised supervised) {
  return {tokenizer,
          ChatTemplate::from_text(
              "", "{% for message in messages %}{{ message.content }}{% endfor %}{{ eos_token }}",
              {{"eos_token", stop}}),
          {.supervised = supervised}};
}

// Prompt and answer of a turn that are encoded apart.
Json apart_as_json(const LabelledPrompt& apart) {
  const auto answer = std::find(apart.supervised.begin(), apart.supervised.end(), 1);
  const auto begin = apart.ids.begin() + (answer - apart.supervised.begin());
  return {{"prompt_ids", std::vector<TokenId>(apart.ids.begin(), begin)},
          {"answer_ids", std::vector<TokenId>(begin, apart.ids.end())}};
}

// `ids` and `mask` are of the whole text, also where training encodes a turn apart.
void add_to_mask(Json& mask, const std::vector<ByteRange>& tokens, const Span& span) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (span.begin <= tokens[i].begin && tokens[i].begin < span.end) {
      mask[i] = 1;
    }
  }
}

}  // namespace

Json answer_tokens(const Json& question) {
  const std::string rule = text_of(question, "rule");
  if (rule != "starts" && rule != "overlaps") {
    throw sherd::Error(sherd::ExitCode::Usage, "`rule` should be \"starts\" or \"overlaps\"");
  }
  const ChatSample sample = sample_of(question);
  const Tokenizer& tokenizer = tokenizer_of(text_of(question, "tokenizer_file"));
  const Supervised supervised = rule == "starts" ? Supervised::All : Supervised::Template;
  const Encoding whole = tokenizer.encode_whole(sample.text);
  Json answer = {{"ids", whole.ids}, {"mask", std::vector<int>(whole.ids.size(), 0)}};
  Json as_generated(sample.spans.size(), nullptr);
  std::vector<std::size_t> apart;
  for (const LabelledPrompt& prompt :
       encoder_of(tokenizer, stop_of(sample, tokenizer), supervised).encode(sample)) {
    if (prompt.is_apart) {
      apart.push_back(static_cast<std::size_t>(prompt.turns.front()));
      as_generated[apart.back()] = apart_as_json(prompt);
    } else {
      answer["ids"] = prompt.ids;
      answer["mask"] = prompt.supervised;
    }
  }
  for (const std::size_t turn : apart) {
    add_to_mask(answer["mask"], whole.ranges, sample.spans[turn]);
  }
  if (rule == "starts") {
    answer["as_generated"] = std::move(as_generated);
  }
  return answer;
}

}  // namespace chat_check
