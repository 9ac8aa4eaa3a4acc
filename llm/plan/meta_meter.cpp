#include "llm/plan/meta_meter.h"

#include <algorithm>
#include <list>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include "llm/plan/caching_allocator.h"

namespace llm::plan {

namespace {

std::int64_t rounded_up(std::int64_t bytes, std::int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

// What an allocator has taken from the system, of which it gives nothing back.
struct Pool {
  std::int64_t asked_bytes = 0;  // for
  std::int64_t used_bytes = 0;   // of what was taken
  std::int64_t taken_bytes = 0;

  void use(std::int64_t asked, std::int64_t used, bool counts_peaks) {
    asked_bytes += asked;
    used_bytes += used;
    if (counts_peaks) {
      taken_bytes = std::max(taken_bytes, used_bytes);
    }
  }
  [[nodiscard]] std::int64_t kept_bytes() const {
    return std::max<std::int64_t>(0, taken_bytes - asked_bytes);
  }
};

namespace {

// Held by a tensor's storage.
struct Block {
  std::shared_ptr<MetaMeter::State> state;
  std::string item;
  std::int64_t bytes;
  Pool* pool = nullptr;
  CachingAllocator* allocator = nullptr;     // a GPU's
  CachingAllocator::Block* place = nullptr;  // there; null while peaks do not count
};

}  // namespace

struct MetaMeter::State {
  explicit State(const Pooling& of) : pooling(of) {}

  Pooling pooling;
  bool counts_peaks = true;
  Pool small;
  Pool large;
  CachingAllocator of_gpu;
  std::list<CachingAllocator> apart_allocators;  // blocks may outlive the work
  CachingAllocator* apart = nullptr;             // of what is allocated now, but buffers
  std::int64_t cached_bytes = 0;                 // in use of the GPU's allocator
  std::list<Block*> unplaced;                    // allocated while peaks do not count
  std::int64_t held_bytes = 0;
  Items held;
  std::int64_t peak_bytes = 0;
  std::int64_t in_use_at_peak = 0;
  Items at_peak;
  struct Scope {
    std::string name;
    bool is_ours;
    bool is_buffer;
  };
  std::vector<Scope> open;  // of this thread, the outermost first
  c10::Allocator* real = nullptr;

  [[nodiscard]] bool is_buffer() const { return !open.empty() && open.back().is_buffer; }

  // Blocks of no pool come from the system and go back to it.
  [[nodiscard]] Pool* pool_of(std::int64_t bytes) {
    if (pooling.page_bytes == 0 || is_buffer()) {
      return nullptr;
    }
    return bytes >= pooling.large_bytes ? &large : &small;
  }

  [[nodiscard]] CachingAllocator* allocator_of(std::int64_t bytes) {
    return bytes == 0                         ? nullptr
           : apart != nullptr && !is_buffer() ? apart
           : pooling.is_caching               ? &of_gpu
                                              : nullptr;
  }

  [[nodiscard]] std::int64_t taken_for(std::int64_t bytes, const Pool* pool) const {
    return pool == &large ? rounded_up(bytes, pooling.page_bytes) : bytes;
  }

  [[nodiscard]] std::int64_t kept_bytes() const {
    return pooling.is_caching ? std::max<std::int64_t>(0, of_gpu.reserved_bytes() - cached_bytes)
                              : small.kept_bytes() + large.kept_bytes();
  }

  void add(Block* block) {
    if (block->allocator != nullptr && counts_peaks) {
      block->place = block->allocator->allocate(block->bytes);
    } else if (block->allocator != nullptr) {
      unplaced.push_back(block);
    }
    count(*block, 1);
  }

  void remove(Block* block) {
    if (block->place != nullptr) {
      block->allocator->free(block->place);
    } else if (block->allocator != nullptr) {
      unplaced.remove(block);
    }
    count(*block, -1);
  }

  // `times` is -1 where the block is freed. What lies apart is not held.
  void count(const Block& block, int times) {
    if (block.allocator != nullptr && block.allocator != &of_gpu) {
      return;
    }
    const std::int64_t bytes = times * block.bytes;
    cached_bytes += block.allocator != nullptr ? bytes : 0;
    if (block.pool != nullptr) {
      block.pool->use(bytes, times * taken_for(block.bytes, block.pool), counts_peaks);
    }
    if (block.pool != nullptr || block.allocator != nullptr) {
      held_bytes += kept_bytes() - std::exchange(held[kKeptItem], kept_bytes());
    }
    held_bytes += bytes;
    held[block.item] += bytes;
    note_peak();
  }

  // What is left of what was allocated while peaks did not count.
  void place_the_rest() {
    for (Block* const block : std::exchange(unplaced, {})) {
      block->place = block->allocator->allocate(block->bytes);
    }
    if (pooling.is_caching) {
      held_bytes += kept_bytes() - std::exchange(held[kKeptItem], kept_bytes());
      note_peak();
    }
  }

  // Of moments at which as much is held, that at which more of it is in use.
  void note_peak() {
    const std::int64_t in_use = held_bytes - kept_bytes();
    if (counts_peaks && std::tie(held_bytes, in_use) > std::tie(peak_bytes, in_use_at_peak)) {
      begin_peak();
    }
  }

  void begin_peak() {
    peak_bytes = held_bytes;
    in_use_at_peak = held_bytes - kept_bytes();
    at_peak = held;
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

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  block->state->remove(block.get());
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(std::shared_ptr<MetaMeter::State> state) : state_(std::move(state)) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto asked_bytes = static_cast<std::int64_t>(bytes);
    auto* block = new Block{state_, state_->item(), asked_bytes, state_->pool_of(asked_bytes),
                            state_->allocator_of(asked_bytes)};
    state_->add(block);
    return {nullptr, block, &free_block, c10::Device(c10::kMeta)};
  }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {}

 private:
  std::shared_ptr<MetaMeter::State> state_;
};

// Observers are plain functions; this is how one finds its meter.
thread_local MetaMeter::State* observed = nullptr;

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  constexpr std::string_view kOurs = "sherd::";
  const std::string_view name = function.name();
  const bool is_operator = name.starts_with(kOurs);
  const bool is_buffer = function.scope() == at::RecordScope::USER_SCOPE;
  observed->open.push_back({std::string(is_operator ? name.substr(kOurs.size()) : name),
                            is_operator || is_buffer, is_buffer});
  return nullptr;
}
void on_end(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {
  observed->open.pop_back();
}

constexpr uint8_t kOverOthers = 100;  // LibTorch's own allocators have less

}  // namespace

MetaMeter::MetaMeter(const Pooling& pooling) : state_(std::make_shared<State>(pooling)) {
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

void MetaMeter::without_peaks(const std::function<void()>& work) {
  state_->counts_peaks = false;
  work();
  state_->counts_peaks = true;
  state_->place_the_rest();
}

std::int64_t MetaMeter::apart(const std::function<void()>& work) {
  state_->apart = &state_->apart_allocators.emplace_back();
  work();
  return std::exchange(state_->apart, nullptr)->reserved_bytes();
}

void MetaMeter::reset_peak() {
  state_->begin_peak();
}

}  // namespace llm::plan
