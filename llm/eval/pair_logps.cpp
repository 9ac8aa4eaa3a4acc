#include "llm/eval/pair_logps.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include <c10/util/Exception.h>
#include <fmt/core.h>

#include "llm/eval/dealing.h"
#include "llm/inputs/batch.h"
#include "llm/setup/agreement.h"
#include "llm/setup/batch_tensors.h"

namespace llm::eval {

namespace {

using inputs::PairLogps;

// Of some pairs, as bytes: chosen, rejected, chosen, …
std::string bytes_of(sherd::Sharded<model::CausalLm>& model, const inputs::Batch& pairs) {
  const at::Tensor logps_N = setup::logps(model, setup::to_tensors(pairs)).cpu().contiguous();
  return {reinterpret_cast<const char*>(logps_N.const_data_ptr<double>()),
          static_cast<std::size_t>(logps_N.numel()) * sizeof(double)};
}

// What is gathered has two numbers for each sample.
void require_pairs(const inputs::Samples& samples) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    TORCH_CHECK_VALUE(samples.rejected_begin(i) > 0, "[complete_pair_logps] sample ", i,
                      " is no preference pair");
  }
}

// No "-nan".
double without_sign(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

void require_finite(const std::vector<PairLogps>& logps, std::ptrdiff_t checked,
                    const PairLogpsOptions& options) {
  const auto bad = std::find_if(logps.begin() + checked, logps.end(), [](const PairLogps& pair) {
    return !std::isfinite(pair.chosen) || !std::isfinite(pair.rejected);
  });
  if (bad != logps.end()) {
    throw sherd::Error(
        sherd::ExitCode::NonFinite,
        fmt::format("{}: the model gives pair {} (in file order, from 1) log-probabilities of {} "
                    "and {} before any step. Check the weights, or compute with "
                    "precision.param_dtype = \"float32\".",
                    options.name, bad - logps.begin() + 1, without_sign(bad->chosen),
                    without_sign(bad->rejected)));
  }
}

}  // namespace

bool complete_pair_logps(sherd::Sharded<model::CausalLm>& model, const inputs::Samples& pairs,
                         const PairLogpsOptions& options, std::vector<PairLogps>& logps) {
  require_pairs(pairs);
  sherd::World& world = model.world();
  const std::int64_t first = std::ssize(logps);
  const std::int64_t count = static_cast<std::int64_t>(pairs.size()) - first;
  for (std::int64_t round = 0; round < rounds_of(count, options.batch, world); ++round) {
    if (any_stop_requested(world, options.stop_requested)) {
      return false;
    }
    std::vector<std::int64_t> indices = dealt(count, options.batch, round, world);
    for (std::int64_t& index : indices) {
      index += first;
    }
    const inputs::Batch some =
        setup::read_on_all_ranks(world, [&] { return inputs::collate(pairs, indices); });
    const std::ptrdiff_t done = std::ssize(logps);
    for (const std::string& bytes : world.all_gather(bytes_of(model, some))) {
      const std::size_t before = logps.size();
      logps.resize(before + bytes.size() / sizeof(PairLogps));
      std::memcpy(logps.data() + before, bytes.data(), bytes.size());
    }
    require_finite(logps, done, options);
    if (options.on_progress) {
      options.on_progress(std::ssize(logps));
    }
  }
  return true;
}

}  // namespace llm::eval
