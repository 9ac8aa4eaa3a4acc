#include "llm/text/chat_encoder.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/core.h>

#include "llm/text/chosen_template.h"
#include "llm/text/printable.h"
#include "sherd/error.h"

namespace llm::text {
namespace {

using nlohmann::ordered_json;

// A noncharacter that cuts special tokens in messages, so that they are encoded as text.
constexpr std::string_view kCut = "\xef\xb7\x9f";  // U+FDDF

[[noreturn]] void refuse_chat(const std::string& why) {
  throw sherd::Error(sherd::ExitCode::BadData, why);
}

// A template whose answers end with no token of the model. No record is at fault.
[[noreturn]] void refuse_template(const std::string& name, const std::string& end) {
  throw sherd::Error(
      sherd::ExitCode::InputMissing,
      fmt::format("data.chat_template: {} ends an answer with {}, and the model has no special "
                  "token there: it would not learn to stop. {}",
                  name, in_quotes(end), advice_on_named_templates()));
}

bool is_part(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string with_cut_tokens(std::string text, const std::vector<std::string>& tokens) {
  for (const std::string& token : tokens) {
    for (std::size_t at = text.find(token); at != std::string::npos; at = text.find(token, at)) {
      std::size_t first = 1;
      while (first < token.size() && (static_cast<unsigned char>(token[first]) & 0xC0U) == 0x80U) {
        ++first;
      }
      text.insert(at + first, kCut);
      at += kCut.size();
    }
  }
  return text;
}

// The value with its special tokens cut, names of fields included.
ordered_json with_cut_tokens(const ordered_json& value, const std::vector<std::string>& tokens) {
  if (value.is_string()) {
    if (is_part(value.get_ref<const std::string&>(), kCut)) {
      refuse_chat(
          "a message contains U+FDDF, which data.special_tokens_in_text = \"as_text\" "
          "needs for itself: remove it");
    }
    return with_cut_tokens(value.get<std::string>(), tokens);
  }
  if (value.is_array()) {
    ordered_json cut = ordered_json::array();
    for (const ordered_json& item : value) {
      cut.push_back(with_cut_tokens(item, tokens));
    }
    return cut;
  }
  if (value.is_object()) {
    ordered_json cut = ordered_json::object();
    for (const auto& [name, item] : value.items()) {
      cut[with_cut_tokens(name, tokens)] = with_cut_tokens(item, tokens);
    }
    return cut;
  }
  return value;
}

// The first token is never learned: nothing comes before it.
LabelledPrompt labelled_spans(const Encoding& whole, const std::vector<Span>& spans,
                              bool overlapping) {
  LabelledPrompt prompt;
  prompt.ids = whole.ids;
  prompt.supervised.assign(whole.ids.size(), 0);
  for (std::size_t i = 1; i < whole.ids.size(); ++i) {
    const ByteRange& token = whole.ranges[i];
    const bool is_learned = std::any_of(spans.begin(), spans.end(), [&](const Span& span) {
      return overlapping ? token.begin < span.end && span.begin < token.end
                         : span.begin <= token.begin && token.begin < span.end;
    });
    prompt.supervised[i] = is_learned ? 1 : 0;
  }
  return prompt;
}

// Whether the last token that starts in a span is one of those.
bool ends_with_one_of(const std::vector<TokenId>& ids, const Encoding& whole, const Span& span) {
  const auto behind = std::find_if(whole.ranges.begin(), whole.ranges.end(),
                                   [&](const ByteRange& token) { return token.begin >= span.end; });
  if (behind == whole.ranges.begin()) {
    return false;
  }
  const TokenId last = whole.ids[static_cast<std::size_t>(behind - whole.ranges.begin()) - 1];
  return std::find(ids.begin(), ids.end(), last) != ids.end();
}

std::int64_t learned_tokens(const LabelledPrompt& prompt) {
  return std::count(prompt.supervised.begin(), prompt.supervised.end(), std::uint8_t{1});
}

// Cuts a sample at its end.
void cut_to(LabelledPrompt& prompt, std::int64_t max_length) {
  const std::int64_t excess = std::ssize(prompt.ids) - max_length;
  if (excess <= 0) {
    return;
  }
  const std::int64_t before = learned_tokens(prompt);
  prompt.ids.resize(static_cast<std::size_t>(max_length));
  prompt.supervised.resize(static_cast<std::size_t>(max_length));
  prompt.cut_answer_tokens = before - learned_tokens(prompt);
  prompt.answer_was_cut = prompt.cut_answer_tokens > 0;
  prompt.cut_tokens = excess - prompt.cut_answer_tokens;
  prompt.context_was_cut = prompt.cut_tokens > 0;
}

}  // namespace

ChatEncoder::ChatEncoder(Tokenizer tokenizer, ChatTemplate chat_template, ChatOptions options)
    : tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)),
      options_(std::move(options)),
      control_tokens_(tokenizer_.special_tokens()) {
  for (const TokenId id : tokenizer_.stop_ids()) {
    stop_tokens_.push_back(tokenizer_.decode(std::span(&id, 1), false));
  }
  if (const auto stop = stop_of_template()) {
    stop_id_ = tokenizer_.token_to_id(*stop);
    if (std::find(stop_tokens_.begin(), stop_tokens_.end(), *stop) == stop_tokens_.end()) {
      stop_tokens_.push_back(*stop);
    }
  }
}

std::vector<TokenId> ChatEncoder::stop_ids() const {
  std::vector<TokenId> ids = tokenizer_.stop_ids();
  if (stop_id_ && std::find(ids.begin(), ids.end(), *stop_id_) == ids.end()) {
    ids.push_back(*stop_id_);
  }
  return ids;
}

// What ends the answer of a short conversation: the first token there that stops generation; where
// there is none, the first special token.
std::optional<std::string> ChatEncoder::stop_of_template() const {
  constexpr std::string_view kAnswer = "Answer";
  const ordered_json messages = {{{"role", "user"}, {"content", "Question"}},
                                 {{"role", "assistant"}, {"content", kAnswer}}};
  std::string text;
  try {
    text = render(messages, nullptr, false).text;
  } catch (const sherd::Error&) {
    return std::nullopt;  // a template of other conversations
  }
  const std::size_t answer = text.rfind(kAnswer);
  if (answer == std::string::npos) {
    return std::nullopt;
  }
  const std::size_t begin = answer + kAnswer.size();
  const bool stops = first_stop(text, begin, stop_tokens_).has_value();
  const std::vector<std::string>& candidates = stops ? stop_tokens_ : control_tokens_;
  const auto end = first_stop(text, begin, candidates);
  if (!end) {
    return std::nullopt;
  }
  const auto stop = std::max_element(
      candidates.begin(), candidates.end(), [&](const std::string& a, const std::string& b) {
        const auto ends = [&](const std::string& token) {
          return std::string_view(text).substr(begin, *end - begin).ends_with(token) ? token.size()
                                                                                     : 0;
        };
        return ends(a) < ends(b);
      });
  return *stop;
}

RenderedChat ChatEncoder::render(const ordered_json& messages, const ordered_json& tools,
                                 bool add_generation_prompt) const {
  ordered_json arguments = options_.arguments;
  arguments["add_generation_prompt"] = add_generation_prompt;
  return template_.render(messages, tools, arguments, options_.now);
}

// Converts the conversation at its first render.
ChatRule ChatEncoder::rule_of(const ordered_json& tools) const {
  return {
      .render =
          [this, &tools, input = std::optional<ChatInput>()](
              const ordered_json& messages, std::size_t count, bool add_generation_prompt) mutable {
            if (!input) {
              input = template_.input(messages, tools, options_.arguments);
            }
            return template_.render(*input, count, add_generation_prompt, options_.now).text;
          },
      .stop_tokens = stop_tokens_,
      .control_tokens = control_tokens_,
      .last_only = options_.supervised == Supervised::Last,
      .as_rendered = options_.as_rendered};
}

ChatSample ChatEncoder::sample_of_template(const Conversation& conversation) const {
  RenderedChat whole = render(conversation.messages, conversation.tools, false);
  if (whole.spans.empty()) {
    refuse_chat(template_.file() +
                ": data.supervise = \"template\", and the chat template marks nothing with {% "
                "generation %}: set data.supervise = \"all\", or name another template with "
                "data.chat_template");
  }
  return {{}, std::move(whole.text), std::move(whole.spans)};
}

// The conversation, or `cut`: the same with special tokens of messages cut, where they are encoded
// as text.
const Conversation& ChatEncoder::as_encoded(const Conversation& conversation,
                                            Conversation& cut) const {
  if (!options_.special_tokens_as_text) {
    return conversation;
  }
  cut = {with_cut_tokens(conversation.messages, control_tokens_),
         with_cut_tokens(conversation.tools, control_tokens_)};
  return cut;
}

std::vector<ChatSample> ChatEncoder::samples(const Conversation& conversation) const {
  if (stop_tokens_.empty()) {
    refuse_chat(template_.file() +
                ": neither the chat template nor the model's folder names a token that stops "
                "generation: set eos_token in tokenizer_config.json");
  }
  Conversation cut;
  const Conversation& given = as_encoded(conversation, cut);
  const ChatRule rule = rule_of(given.tools);
  if (options_.supervised == Supervised::Template) {
    return {sample_of_template(given)};
  }
  ChatVerdict verdict = samples_of(given, rule);
  if (verdict.fault) {
    if (verdict.fault->reason == "no_stop" && !stop_of_template()) {
      refuse_template(template_.file(), verdict.fault->detail);
    }
    refuse_chat(verdict.fault->message());
  }
  return std::move(verdict.samples);
}

// Special tokens in messages are cut in two; the parts are encoded apart, so that neither is one.
Encoding ChatEncoder::encoded(std::string_view text) const {
  if (!options_.special_tokens_as_text) {
    return tokenizer_.encode_whole(text);
  }
  Encoding all;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(kCut, begin), text.size());
    Encoding part = tokenizer_.encode_whole(text.substr(begin, end - begin));
    all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
    for (const ByteRange& range : part.ranges) {
      all.ranges.push_back({range.begin + static_cast<std::int64_t>(begin),
                            range.end + static_cast<std::int64_t>(begin)});
    }
    begin = end + kCut.size();
  }
  return all;
}

// Whether the ids of `text` begin with those of its first bytes alone. The last token there at
// which texts can be parted (such as <|im_start|>) has the same ids before it either way, so only
// what follows is encoded again.
bool ChatEncoder::holds_prompt(const Encoding& whole, std::string_view text,
                               std::size_t prompt_bytes) const {
  const auto end = static_cast<std::int64_t>(prompt_bytes);
  std::size_t first = whole.ids.size();
  while (first > 0 &&
         !(whole.ranges[first - 1].end <= end && tokenizer_.is_boundary(whole.ids[first - 1]))) {
    --first;
  }
  first -= first > 0 ? 1 : 0;
  const std::size_t begin = first > 0 ? static_cast<std::size_t>(whole.ranges[first].begin) : 0;
  const std::vector<TokenId> rest = encoded(text.substr(begin, prompt_bytes - begin)).ids;
  return whole.ids.size() - first >= rest.size() &&
         std::equal(rest.begin(), rest.end(),
                    whole.ids.begin() + static_cast<std::ptrdiff_t>(first));
}

std::vector<LabelledPrompt> ChatEncoder::encode(const ChatSample& sample) const {
  std::vector<LabelledPrompt> prompts;
  const std::string_view text = sample.text;
  const std::vector<TokenId> stops = stop_ids();
  const bool of_template = options_.supervised == Supervised::Template;
  const Encoding whole = encoded(text);
  std::vector<Span> in_whole;
  std::vector<int> turns_in_whole;
  for (std::size_t i = 0; i < sample.spans.size(); ++i) {
    const Span& span = sample.spans[i];
    const auto begin = static_cast<std::size_t>(span.begin);
    const auto size = static_cast<std::size_t>(span.end - span.begin);
    if (of_template || (holds_prompt(whole, text, begin) && ends_with_one_of(stops, whole, span))) {
      in_whole.push_back(span);
      if (!of_template) {
        turns_in_whole.push_back(sample.turns[i]);
      }
      continue;
    }
    std::vector<TokenId> prompt = encoded(text.substr(0, begin)).ids;
    LabelledPrompt& apart = prompts.emplace_back();
    apart.turns = {sample.turns[i]};
    apart.is_apart = true;
    apart.supervised.assign(prompt.size(), 0);
    apart.ids = std::move(prompt);
    const std::vector<TokenId> answer = encoded(text.substr(begin, size)).ids;
    if (answer.empty() || std::find(stops.begin(), stops.end(), answer.back()) == stops.end()) {
      refuse_chat(
          fmt::format("the tokenizer joins the token that stops generation to the text before it: "
                      "{} has no token of its own for its end, and the model would not learn to "
                      "stop. Make it an added token of tokenizer.json, or name another template "
                      "with data.chat_template",
                      in_quotes(text.substr(begin, size))));
    }
    apart.ids.insert(apart.ids.end(), answer.begin(), answer.end());
    apart.supervised.resize(apart.ids.size(), 1);
  }
  if (!in_whole.empty()) {
    prompts.push_back(labelled_spans(whole, in_whole, of_template));
    prompts.back().turns = std::move(turns_in_whole);
  }
  return prompts;
}

std::vector<LabelledPrompt> ChatEncoder::encode(const Conversation& conversation,
                                                std::int64_t max_length) const {
  std::vector<LabelledPrompt> prompts;
  const std::vector<ChatSample> texts = samples(conversation);
  for (const ChatSample& sample : texts) {
    std::vector<LabelledPrompt> some = encode(sample);
    std::move(some.begin(), some.end(), std::back_inserter(prompts));
  }
  std::int64_t shortest = 0;
  std::int64_t lost = 0;
  std::vector<LabelledPrompt> kept;
  for (LabelledPrompt& prompt : prompts) {
    const auto first = std::find(prompt.supervised.begin(), prompt.supervised.end(), 1);
    const std::int64_t needed = first - prompt.supervised.begin() + 1;
    shortest = shortest == 0 ? needed : std::min(shortest, needed);
    cut_to(prompt, max_length);
    prompt.chat_texts = std::ssize(texts);
    if (learned_tokens(prompt) > 0) {
      kept.push_back(std::move(prompt));
    } else {
      lost += prompt.cut_answer_tokens;
    }
  }
  if (kept.empty()) {
    refuse_chat(
        fmt::format("nothing that is learned lies in the first data.max_length ({}) "
                    "tokens: the first learned token is number {}. Raise data.max_length",
                    max_length, shortest));
  }
  if (lost > 0) {
    kept.back().cut_answer_tokens += lost;
    kept.back().answer_was_cut = true;
  }
  return kept;
}

std::string ChatEncoder::prompt_text(const Conversation& conversation) const {
  Conversation cut;
  const Conversation& given = as_encoded(conversation, cut);
  return render(given.messages, given.tools, true).text;
}

std::vector<TokenId> ChatEncoder::encode_prompt(const Conversation& conversation) const {
  return encoded(prompt_text(conversation)).ids;
}

std::string ChatEncoder::key() const {
  // A template that does not ask for the date does not depend on it.
  const bool asks_date = is_part(template_.source(), "strftime_now");
  const ordered_json parts = {template_.source(),
                              template_.special_tokens(),
                              static_cast<int>(options_.supervised),
                              options_.as_rendered,
                              options_.special_tokens_as_text,
                              options_.arguments,
                              asks_date ? options_.now : "",
                              stop_tokens_};
  return parts.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
}

}  // namespace llm::text
