#include "llm/train/reference_logps.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "files/input.h"
#include "files/output.h"
#include "files/sha256.h"
#include "llm/eval/pair_logps.h"
#include "llm/inputs/prepare.h"
#include "llm/inputs/subset.h"
#include "llm/setup/reference_key.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

namespace files = sherd::files;
using inputs::PairLogps;

constexpr std::string_view kMagic = "sherd reference 1\n";
constexpr std::size_t kDigestBytes = 64;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;
constexpr std::chrono::minutes kKeptEvery{5};

std::string_view bytes_of(const std::vector<PairLogps>& logps) {
  return {reinterpret_cast<const char*>(logps.data()), logps.size() * sizeof(PairLogps)};
}

std::vector<PairLogps> logps_of(std::string_view bytes) {
  std::vector<PairLogps> logps(bytes.size() / sizeof(PairLogps));
  std::memcpy(logps.data(), bytes.data(), logps.size() * sizeof(PairLogps));
  return logps;
}

}  // namespace

ReferenceLogps::ReferenceLogps(RunInputs& inputs, sherd::World& world, const setup::RunNote& now,
                               const setup::ReferenceKey& begun)
    : inputs_(inputs),
      world_(world),
      folder_(inputs::store_folder(inputs.config.data.cache)),
      key_(begun) {
  for (const inputs::TrainingPart& part : inputs.data.parts) {
    sets_.push_back({part.report.name, inputs::Samples(part.store), part.store->digest()});
  }
  for (const inputs::Heldout& heldout : inputs.data.heldout) {
    const inputs::Dataset& dataset = heldout.dataset;
    sets_.push_back({dataset.report.name, dataset.samples, dataset.digest});
  }
  if (!key_.empty()) {
    find();
  }
  if (key_.empty() || !is_complete()) {
    key_ = key_of_start(now, begun);
    find();
  }
}

// Rank 0 reads the weights, and those of others were compared with its own.
setup::ReferenceKey ReferenceLogps::key_of_start(const setup::RunNote& now,
                                                 const setup::ReferenceKey& begun) const {
  setup::ReferenceKey key;
  key.weights = setup::from_rank_0(world_, [&] {
    const config::RunConfig& config = inputs_.config;
    const sherd::WorkPhase reading(world_, "reading the weights of the reference model",
                                   setup::kLongestSilence);
    key = setup::reference_key(config, inputs_.model.config, inputs_.tokenizer, now.base.sha256);
    if (!begun.empty() && key.weights != begun.weights) {
      const auto missing = std::find_if(sets_.begin(), sets_.end(),
                                        [](const Set& set) { return !set.is_complete(); });
      throw sherd::Error(
          sherd::ExitCode::Usage,
          fmt::format("the reference of this run is its model before the first step. Its "
                      "log-probabilities of {} are not in the folder of data.cache, and the model "
                      "has changed since the run began: {}, or that folder. To start over, give "
                      "--resume never and another train.output.",
                      missing->name, setup::changed_start(begun.weights, key.weights, config)));
    }
    return key.weights;
  });
  key.sha256 = setup::from_rank_0(world_, [&] { return key.sha256; });
  return key;
}

void ReferenceLogps::find() {
  for (Set& set : sets_) {
    set.logps =
        logps_of(setup::from_rank_0(world_, [&] { return std::string(bytes_of(kept(set))); }));
  }
}

std::filesystem::path ReferenceLogps::file_of(const Set& set) const {
  return folder_ /
         (files::sha256_of(std::string(kMagic) + key_.sha256 + set.digest) + ".reference");
}

std::vector<PairLogps> ReferenceLogps::kept(const Set& set) const {
  std::error_code error;
  if (folder_.empty() || !std::filesystem::exists(file_of(set), error)) {
    return {};
  }
  const std::string all = files::read_file(file_of(set).string(), kMostBytes);
  const std::size_t begin = kMagic.size() + kDigestBytes;
  if (all.size() < begin || all.size() > begin + set.pairs.size() * sizeof(PairLogps) ||
      !all.starts_with(kMagic)) {
    return {};
  }
  const std::string_view body = std::string_view(all).substr(begin);
  const bool is_whole =
      files::sha256_of(body) == std::string_view(all).substr(kMagic.size(), kDigestBytes);
  return is_whole ? logps_of(body) : std::vector<PairLogps>();
}

void ReferenceLogps::keep(const Set& set, track::Progress* progress) const {
  if (folder_.empty() || world_.rank() != 0) {
    return;
  }
  const std::string body(bytes_of(set.logps));
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  try {
    files::write_file(file_of(set).string(), std::string(kMagic) + files::sha256_of(body) + body);
  } catch (const sherd::Error& failure) {
    if (progress != nullptr) {
      progress->warn(fmt::format("the reference log-probabilities of {} are not kept: {}", set.name,
                                 failure.what()));
    }
  }
}

bool ReferenceLogps::is_complete() const {
  return std::all_of(sets_.begin(), sets_.end(), [](const Set& set) { return set.is_complete(); });
}

bool ReferenceLogps::complete(sherd::Sharded<model::CausalLm>& model, const RunHooks& hooks,
                              track::Progress* progress) {
  for (auto set = sets_.begin(); set != sets_.end(); ++set) {
    // A file may be trained on and evaluated.
    const auto same = std::find_if(sets_.begin(), set,
                                   [&](const Set& before) { return before.digest == set->digest; });
    if (same != set) {
      set->logps = same->logps;
    } else if (!set->is_complete() && !compute(*set, model, hooks, progress)) {
      return false;
    }
  }
  return true;
}

bool ReferenceLogps::compute(Set& set, sherd::Sharded<model::CausalLm>& model,
                             const RunHooks& hooks, track::Progress* progress) const {
  const track::Working working(progress, "reference log-probabilities of " + set.name);
  const auto count = track::counted_in("pairs", progress);
  const auto total = static_cast<std::int64_t>(set.pairs.size());
  auto last_kept = std::chrono::steady_clock::now();
  const auto note = [&](std::int64_t done) {
    count(done, total);
    if (const auto now = std::chrono::steady_clock::now(); now - last_kept > kKeptEvery) {
      last_kept = now;
      keep(set, progress);
    }
  };
  const bool is_done = eval::complete_pair_logps(model, set.pairs,
                                                 {.batch = inputs_.shape.micro_batch,
                                                  .name = set.name,
                                                  .stop_requested = hooks.stop_requested,
                                                  .on_progress = note},
                                                 set.logps);
  keep(set, progress);
  return is_done;
}

void ReferenceLogps::give() {
  inputs::RunData& data = inputs_.data;
  std::vector<inputs::Part> parts;
  for (std::size_t i = 0; i < data.parts.size(); ++i) {
    parts.push_back({inputs::with_reference(sets_[i].pairs, std::move(sets_[i].logps)),
                     inputs_.config.data.train[i].weight});
  }
  data.training = inputs::mixed(parts, static_cast<std::uint64_t>(inputs_.config.train.seed));
  for (std::size_t i = 0; i < data.heldout.size(); ++i) {
    Set& set = sets_[data.parts.size() + i];
    data.heldout[i].dataset.samples =
        inputs::with_reference(std::move(set.pairs), std::move(set.logps));
  }
}

}  // namespace llm::train
