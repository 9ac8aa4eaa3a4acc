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
#include "llm/setup/model_identity.h"
#include "sherd/safetensors.h"

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

// What of the configuration and the model folder decides its values. On rank 0.
std::string model_text(const RunInputs& inputs) {
  const config::RunConfig& config = inputs.config;
  setup::Settings decides = setup::model_identity(inputs.model.config, inputs.tokenizer);
  decides.emplace_back("param_dtype",
                       std::to_string(static_cast<int>(config.precision.param_dtype)));
  decides.emplace_back("adapter", config.adapter.path);
  decides.emplace_back("max_length", std::to_string(config.data.max_length.value_or(0)));
  if (config.model.init == config::Init::Random) {
    decides.emplace_back("seed", std::to_string(config.train.seed));
    decides.emplace_back("initializer_range",
                         fmt::format("{}", inputs.model.config.shape.initializer_range));
  } else {
    const setup::Settings weights =
        setup::weights_identity(sherd::SafetensorsFolder(config.model.path));
    decides.insert(decides.end(), weights.begin(), weights.end());
  }
  std::string text;
  for (const auto& [name, value] : decides) {
    text += name + "=" + value + "\n";
  }
  return text;
}

}  // namespace

ReferenceLogps::ReferenceLogps(RunInputs& inputs, sherd::World& world)
    : inputs_(inputs), world_(world), folder_(inputs::store_folder(inputs.config.data.cache)) {
  for (const inputs::TrainingPart& part : inputs.data.parts) {
    sets_.push_back({part.report.name, inputs::Samples(part.store), part.store->digest()});
  }
  for (const inputs::Heldout& heldout : inputs.data.heldout) {
    const inputs::Dataset& dataset = heldout.dataset;
    sets_.push_back({dataset.report.name, dataset.samples, dataset.digest});
  }
  model_ = setup::from_rank_0(world_, [&] { return model_text(inputs_); });
  for (Set& set : sets_) {
    set.logps =
        logps_of(setup::from_rank_0(world_, [&] { return std::string(bytes_of(kept(set))); }));
  }
}

std::filesystem::path ReferenceLogps::file_of(const Set& set) const {
  return folder_ / (files::sha256_of(std::string(kMagic) + model_ + set.digest) + ".reference");
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
