#include "llm/train/step_profile.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string_view>
#include <utility>

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

namespace llm::train {

namespace {

using Clock = std::chrono::steady_clock;

struct PhaseName {
  std::string_view scope;
  Phase phase;
};

// The engine's names of what it does, and the trainer's.
constexpr PhaseName kScopes[] = {{"forward", Phase::Forward},
                                 {"backward", Phase::Backward},
                                 {"all-gather", Phase::Gather},
                                 {"wait for the all-gather", Phase::Gather},
                                 {"wait for a reduce buffer", Phase::Reduce},
                                 {"reduction", Phase::Reduce},
                                 {"publication", Phase::Wait},
                                 {"all-reduce", Phase::Wait},
                                 {"all-reduce of the gradient norm", Phase::Wait},
                                 {"clip_grad_norm", Phase::Clip},
                                 {"AdamW::step", Phase::Optimizer}};

const PhaseName* phase_of(std::string_view scope) {
  const auto* found = std::find_if(std::begin(kScopes), std::end(kScopes),
                                   [&](const PhaseName& name) { return name.scope == scope; });
  return found == std::end(kScopes) ? nullptr : found;
}

}  // namespace

struct StepProfile::State {
  struct Open {
    Phase phase;
    std::string name;
    Clock::time_point start;
    double nested_seconds = 0;
  };
  struct Sum {
    double seconds = 0;
    std::int64_t calls = 0;
  };
  std::vector<Open> open;
  std::map<std::pair<Phase, std::string>, Sum> sums;
  std::function<void()> at_phase_end;

  void begin(const at::RecordFunction& function) {
    Phase phase = open.empty() ? Phase::Other : open.back().phase;
    if (function.scope() == at::RecordScope::USER_SCOPE) {
      if (const PhaseName* named = phase_of(function.name())) {
        phase = named->phase;
      }
    }
    open.push_back({phase, function.name(), Clock::now()});
  }

  void end() {
    const Open done = std::move(open.back());
    open.pop_back();
    const double seconds = std::chrono::duration<double>(Clock::now() - done.start).count();
    Sum& sum = sums[{done.phase, done.name}];
    sum.seconds += seconds - done.nested_seconds;
    ++sum.calls;
    if (!open.empty()) {
      open.back().nested_seconds += seconds;
    }
    const bool whole =
        done.name == "forward" || done.name == "backward" || done.name == "AdamW::step";
    if (whole && at_phase_end) {
      at_phase_end();
    }
  }
};

namespace {

// Observers are plain functions; this is how one finds its profile. What Gloo sends and receives
// begins and ends where it likes: it is no part of what nests.
thread_local StepProfile::State* observed = nullptr;

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  if (observed != nullptr && !function.isAsync()) {
    observed->begin(function);
  }
  return nullptr;
}
void on_end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  if (observed != nullptr && !function.isAsync() && !observed->open.empty()) {
    observed->end();
  }
}

}  // namespace

const char* name_of(Phase phase) {
  constexpr const char* kNames[kPhases] = {"gather", "forward",   "backward", "reduce",
                                           "clip",   "optimizer", "wait",     "other"};
  return kNames[static_cast<int>(phase)];
}

StepProfile::StepProfile(Detail detail) : state_(std::make_unique<State>()) {
  TORCH_CHECK(observed == nullptr, "[StepProfile] one at a time a thread");
  observed = state_.get();
  auto callback = at::RecordFunctionCallback(&on_begin, &on_end);
  if (detail == Detail::Phases) {
    callback.scopes({at::RecordScope::USER_SCOPE});
  } else {
    callback.scopes({at::RecordScope::USER_SCOPE, at::RecordScope::FUNCTION,
                     at::RecordScope::BACKWARD_FUNCTION});
  }
  handle_ = at::addThreadLocalCallback(callback);
}

StepProfile::~StepProfile() {
  at::removeCallback(handle_);
  observed = nullptr;
}

std::vector<StepProfile::Entry> StepProfile::entries() const {
  std::vector<Entry> found;
  for (const auto& [key, sum] : state_->sums) {
    found.push_back({key.first, key.second, sum.seconds, sum.calls});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Entry& a, const Entry& b) { return a.seconds > b.seconds; });
  return found;
}

std::map<std::string, double> StepProfile::phase_seconds() const {
  std::map<std::string, double> seconds;
  for (const auto& [key, sum] : state_->sums) {
    seconds[name_of(key.first)] += sum.seconds;
  }
  return seconds;
}

void StepProfile::set_at_phase_end(std::function<void()> callback) {
  state_->at_phase_end = std::move(callback);
}

}  // namespace llm::train
