#include "llm/plan/meta_meter.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

namespace llm::plan {

struct MetaMeter::State {
  std::int64_t held_bytes = 0;
  Items held;
  std::int64_t peak_bytes = 0;
  Items at_peak;
  struct Scope {
    std::string name;
    bool is_ours;
  };
  std::vector<Scope> open;  // of this thread, the outermost first
  c10::Allocator* real = nullptr;

  void add(const std::string& item, std::int64_t bytes) {
    held_bytes += bytes;
    held[item] += bytes;
    if (held_bytes > peak_bytes) {
      peak_bytes = held_bytes;
      at_peak = held;
    }
  }

  [[nodiscard]] std::string item() const {
    const auto ours =
        std::find_if(open.rbegin(), open.rend(), [](const Scope& scope) { return scope.is_ours; });
    if (ours != open.rend()) {
      return ours->name;
    }
    const auto of_libtorch = std::find_if(open.begin(), open.end(), [](const Scope& scope) {
      return scope.name.starts_with("aten::");
    });
    return of_libtorch != open.end() ? of_libtorch->name : "other";
  }
};

namespace {

// Held by a tensor's storage.
struct Block {
  std::shared_ptr<MetaMeter::State> state;
  std::string item;
  std::int64_t bytes;
};

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  block->state->add(block->item, -block->bytes);
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(std::shared_ptr<MetaMeter::State> state) : state_(std::move(state)) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* block = new Block{state_, state_->item(), static_cast<std::int64_t>(bytes)};
    state_->add(block->item, block->bytes);
    return {nullptr, block, &free_block, c10::Device(c10::kMeta)};
  }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {}

 private:
  std::shared_ptr<MetaMeter::State> state_;
};

// Observers are plain functions; this is how one finds its meter.
thread_local MetaMeter::State* observed = nullptr;

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  constexpr std::string_view kOperator = "sherd::";
  const std::string_view name = function.name();
  const bool is_operator = name.starts_with(kOperator);
  observed->open.push_back({std::string(is_operator ? name.substr(kOperator.size()) : name),
                            is_operator || function.scope() == at::RecordScope::USER_SCOPE});
  return nullptr;
}
void on_end(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {
  observed->open.pop_back();
}

constexpr uint8_t kOverOthers = 100;  // LibTorch's own allocators have less

}  // namespace

MetaMeter::MetaMeter() : state_(std::make_shared<State>()) {
  TORCH_CHECK(observed == nullptr, "[MetaMeter] one at a time");
  observed = state_.get();
  state_->real = c10::GetAllocator(c10::kMeta);
  // LibTorch may ask an allocator for as long as the process lives.
  c10::SetAllocator(c10::kMeta, new CountingAllocator(state_), kOverOthers);
  observer_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&on_begin, &on_end)
          .scopes({at::RecordScope::USER_SCOPE, at::RecordScope::FUNCTION}));
}

MetaMeter::~MetaMeter() {
  at::removeCallback(observer_);
  c10::SetAllocator(c10::kMeta, state_->real, kOverOthers);
  observed = nullptr;
}

std::int64_t MetaMeter::held_bytes() const {
  return state_->held_bytes;
}

const MetaMeter::Items& MetaMeter::held() const {
  return state_->held;
}

std::int64_t MetaMeter::peak_bytes() const {
  return state_->peak_bytes;
}

const MetaMeter::Items& MetaMeter::at_peak() const {
  return state_->at_peak;
}

void MetaMeter::reset_peak() {
  state_->peak_bytes = state_->held_bytes;
  state_->at_peak = state_->held;
}

}  // namespace llm::plan
