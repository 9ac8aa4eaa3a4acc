#include "llm/eval/completion.h"

#include <nlohmann/json.hpp>

#include "llm/eval/dealing.h"
#include "llm/eval/generation.h"

namespace llm::eval {

namespace {

// This rank's completions of a round, as a JSON list.
std::string completions_of(sherd::Sharded<model::CausalLm>& model,
                           std::span<const std::vector<text::TokenId>> prompts,
                           const std::vector<std::uint64_t>& numbers,
                           const text::Tokenizer& tokenizer, const CompletionOptions& options) {
  const auto written = generate(model, prompts, options.max_new_tokens, options.stop_ids,
                                {.sampling = options.sampling, .text_numbers = numbers});
  nlohmann::json texts = nlohmann::json::array();
  for (const auto& ids : *written) {
    texts.push_back(tokenizer.decode(ids));
  }
  return texts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void complete(sherd::Sharded<model::CausalLm>& model,
              std::span<const std::vector<text::TokenId>> prompts, const text::Tokenizer& tokenizer,
              const CompletionOptions& options, const TellCompletion& tell) {
  sherd::World& world = model.world();
  const auto count = static_cast<std::int64_t>(prompts.size());
  std::size_t told = 0;
  for (std::int64_t round = 0; round < rounds_of(count, options.batch, world); ++round) {
    std::vector<std::vector<text::TokenId>> mine;
    std::vector<std::uint64_t> numbers;
    for (const std::int64_t index : dealt(count, options.batch, round, world)) {
      mine.push_back(prompts[static_cast<std::size_t>(index)]);
      numbers.push_back(options.first_number + static_cast<std::uint64_t>(index));
    }
    for (const std::string& rank :
         world.all_gather(completions_of(model, mine, numbers, tokenizer, options))) {
      for (const auto& text : nlohmann::json::parse(rank)) {
        tell(told++, text.get<std::string>());
      }
    }
  }
}

}  // namespace llm::eval
