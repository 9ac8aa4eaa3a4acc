#include "llm/train/tokenize_once.h"

#include <optional>
#include <utility>

#include <fmt/core.h>

#include "llm/train/agreement.h"

namespace llm::train {

namespace {

// One data file, on this rank.
class Tokenizing {
 public:
  Tokenizing(sherd::World& world, const data::TokenCache& cache, const data::DataFile& file,
             const text::PromptEncoder& encoder, const data::Limit& limit,
             track::Progress* progress)
      : world_(world),
        cache_(cache),
        file_(file),
        encoder_(encoder),
        limit_(limit),
        progress_(progress) {}

  // Takes the tokens from the cache; else encodes them and keeps them there.
  void find_or_encode() {
    key_ = data::token_key(file_, encoder_, limit_);
    find();
    if (!found_) {
      found_ = encode();
      not_kept_ = cache_.write(key_, *found_);
    }
  }

  [[nodiscard]] bool is_done() const { return found_.has_value(); }
  // Why what was encoded here could not be kept; else empty.
  [[nodiscard]] const std::string& not_kept() const { return not_kept_; }
  [[nodiscard]] TokenizedOnce take() { return {std::move(*found_), std::move(skipped_)}; }

 private:
  // What was skipped is not in the cache; and it may be refused now.
  void find() {
    found_ = cache_.find(key_, file_.name);
    if (found_ && found_->report.skipped > 0) {
      skipped_ = data::questions_of(file_, limit_, found_->report, encoder_).skipped;
    }
  }

  data::TokenizedFile encode() {
    const track::Working tokenizing(progress_, "tokenizing " + file_.name);
    const sherd::WorkPhase phase(world_, "tokenizing " + file_.name, kLongestSilence);
    const text::QuestionFile questions = data::questions_of(file_, limit_);
    const auto count = track::counted_in("samples", progress_);
    data::TokenizedFile made =
        data::tokenize(questions, file_, encoder_, [&](std::int64_t done, std::int64_t total) {
          count(done, total);
          phase.report(fmt::format("{} of {} samples", done, total));
        });
    skipped_ = made.report.unfit.empty()
                   ? questions.skipped
                   : data::questions_of(file_, limit_, made.report, encoder_).skipped;
    return made;
  }

  sherd::World& world_;
  const data::TokenCache& cache_;
  const data::DataFile& file_;
  const text::PromptEncoder& encoder_;
  const data::Limit& limit_;
  track::Progress* progress_;
  std::string key_;
  std::optional<data::TokenizedFile> found_;
  std::vector<text::BadSample> skipped_;
  std::string not_kept_;
};

// Says, on rank 0, which ranks will have to encode again and why.
void tell_not_kept(sherd::World& world, const std::string& mine,
                   const std::function<void(const std::string& line)>& say) {
  const std::vector<std::string> reasons = world.all_gather(mine);
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (!reasons[rank].empty()) {
      return say(fmt::format("tokens are not kept for the next run{}: {}",
                             rank == 0 ? "" : fmt::format(" (rank {})", rank), reasons[rank]));
    }
  }
}

}  // namespace

TokenizedOnce tokenize_once(sherd::World& world, const data::TokenCache& cache,
                            const data::DataFile& file, const text::PromptEncoder& encoder,
                            const data::Limit& limit,
                            const std::function<void(const std::string& line)>& say,
                            track::Progress* progress) {
  Tokenizing mine(world, cache, file, encoder, limit, progress);
  // Nobody looks for a file before it is there: network file systems remember that it was not.
  for (const bool is_my_turn : {world.rank() == 0, world.local_rank() == 0, true}) {
    together(world, [&] {
      if (is_my_turn && !mine.is_done()) {
        mine.find_or_encode();
      }
    });
  }
  tell_not_kept(world, mine.not_kept(), say);
  return mine.take();
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
