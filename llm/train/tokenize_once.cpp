#include "llm/train/tokenize_once.h"

#include <optional>
#include <utility>

#include "llm/train/agreement.h"

namespace llm::train {

TokenizedOnce tokenize_once(sherd::World& world, const data::TokenCache& cache,
                            const data::DataFile& file, const text::PromptEncoder& encoder,
                            const data::Limit& limit,
                            const std::function<void(const std::string& line)>& say,
                            track::Progress* progress) {
  std::string key;
  std::optional<data::TokenizedFile> found;
  std::vector<text::BadSample> skipped;
  const auto encode = [&] {
    const track::Working tokenizing(progress, "tokenizing " + file.name);
    const text::QuestionFile questions = data::questions_of(file, limit);
    data::TokenizedFile made =
        data::tokenize(questions, file, encoder, track::counted_in("samples", progress));
    skipped = made.report.unfit.empty()
                  ? questions.skipped
                  : data::questions_of(file, limit, made.report, encoder).skipped;
    return made;
  };
  // What was skipped is not in the cache; and it may be refused now.
  const auto find = [&] {
    found = cache.find(key, file.name);
    if (found && found->report.skipped > 0) {
      skipped = data::questions_of(file, limit, found->report, encoder).skipped;
    }
  };
  together(world, [&] {
    key = data::token_key(file, encoder, limit);
    find();
    if (!found && world.rank() == 0) {
      found = encode();
      if (const std::string why = cache.write(key, *found); !why.empty()) {
        say("tokens are not kept for the next run: " + why);
      }
    }
  });
  together(world, [&] {
    if (!found) {
      find();
    }
    if (!found) {
      found = encode();
    }
  });
  return {std::move(*found), std::move(skipped)};
}

data::Dataset load_dataset_once(sherd::World& world, const data::TokenCache& cache,
                                const data::DataFile& file, const text::PromptEncoder& encoder,
                                const data::Limit& limit,
                                const std::function<void(const std::string& line)>& say,
                                track::Progress* progress) {
  data::TokenizedFile tokens =
      tokenize_once(world, cache, file, encoder, limit, say, progress).tokens;
  text::QuestionFile questions =
      read_together(world, [&] { return data::questions_of(file, limit, tokens.report, encoder); });
  return {std::move(questions), std::move(tokens.samples), std::move(tokens.report)};
}

}  // namespace llm::train
