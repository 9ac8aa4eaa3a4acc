#include "llm/setup/prepared_data.h"

#include <memory>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "llm/setup/agreement.h"

namespace llm::setup {

namespace {

// Shows what a source is at, here and to ranks that wait for this one.
class ToldPreparation {
 public:
  ToldPreparation(sherd::World& world, std::string name, track::Progress* progress)
      : phase_(world, "tokenizing " + name, kLongestSilence),
        name_(std::move(name)),
        progress_(progress) {}

  void count(std::int64_t done, std::int64_t total, const std::string& unit) {
    begin("tokenizing " + name_);
    if (progress_ != nullptr) {
      progress_->count(done, total, unit);
    }
    phase_.report(
        fmt::format("{}{} {}", done, total > 0 ? fmt::format(" of {}", total) : "", unit));
  }
  void wait(const std::string& of_holder) {
    begin("waiting for the process that tokenizes " + name_);
    if (of_holder == last_) {
      return;  // a holder that is at nothing new may hang
    }
    last_ = of_holder;
    phase_.report(of_holder);
    if (progress_ != nullptr) {
      progress_->set(
          fmt::format("waiting for the process that tokenizes {} ({})", name_, of_holder));
    }
  }

 private:
  void begin(const std::string& what) {
    if (!working_ || what != what_) {
      working_.reset();
      working_ = std::make_unique<track::Working>(progress_, what);
      what_ = what;
    }
  }

  sherd::WorkPhase phase_;
  std::string name_;
  track::Progress* progress_;
  std::string last_;
  std::string what_;
  std::unique_ptr<track::Working> working_;
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

inputs::Prepared prepare_on_ranks(sherd::World& world, const inputs::Source& source,
                                  const text::PromptEncoder& encoder,
                                  const DataPreparation& preparation, const inputs::Limit& limit,
                                  bool keeps_records,
                                  const std::function<void(const std::string& line)>& say,
                                  track::Progress* progress) {
  inputs::Prepared prepared;
  on_all_ranks(world, [&] {
    ToldPreparation told(world, source.file.name, progress);
    prepared = inputs::prepare(
        source, encoder,
        {.folder = preparation.folder,
         .limit = limit,
         .keeps_records = keeps_records,
         .memory_bytes = preparation.memory_bytes,
         .on_progress = [&](std::int64_t done, std::int64_t total,
                            const std::string& unit) { told.count(done, total, unit); },
         .on_wait = [&](const std::string& of_holder) { told.wait(of_holder); }});
  });
  tell_not_kept(world, prepared.not_kept, say);
  require_agreement(world, {{fmt::format("the tokens of {} (SHA-256)", source.file.name),
                             prepared.store->digest()}});
  return prepared;
}

inputs::Dataset load_dataset_on_ranks(sherd::World& world, const inputs::Source& source,
                                      const text::PromptEncoder& encoder,
                                      const DataPreparation& preparation,
                                      const inputs::Limit& limit,
                                      const std::function<void(const std::string& line)>& say,
                                      track::Progress* progress) {
  inputs::Prepared prepared =
      prepare_on_ranks(world, source, encoder, preparation, limit, true, say, progress);
  text::QuestionFile records =
      read_on_all_ranks(world, [&] { return inputs::records_in(*prepared.store); });
  records.skipped = std::move(prepared.skipped);
  return {std::move(records), inputs::Samples(prepared.store), std::move(prepared.report)};
}

}  // namespace llm::setup
