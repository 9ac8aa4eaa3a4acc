#include "storage/activation_store.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/variable.h>

#include "sherd/error.h"
#include "storage/movable_storage.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

// Smaller ones are not worth a copy of their own.
constexpr std::int64_t kLeastBytes = std::int64_t{1} << 20;
constexpr std::int64_t kBlockBytes = std::int64_t{2} << 20;  // blocks are multiples of it

// A block serves what fills half of it; and so what is lent and what is not are bounded alike.
constexpr std::int64_t kLargestLoan = 2;

std::int64_t in_blocks(std::int64_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

at::Tensor bytes_of(const c10::Storage& storage) {
  return flat_tensor(storage.mutable_data(), static_cast<std::int64_t>(storage.nbytes()), at::kByte,
                     storage.device());
}

at::Tensor bytes_of(const ActivationStore::Block& block, std::int64_t bytes) {
  return flat_tensor(block->data(), bytes, at::kByte, block->device());
}

}  // namespace

void refuse_changed_in_place() {
  throw Error(ExitCode::Usage,
              "[backward] a tensor that autograd saved for backward was changed in place after "
              "it had been used: change a copy of it, or leave Offload::activations_on_host.");
}

ActivationStore::ActivationStore(c10::Device device, std::shared_ptr<MemoryLedger> ledger)
    : device_(device), ledger_(std::move(ledger)), streams_(device) {}

ActivationStore::~ActivationStore() {
  quietly([this] { streams_.synchronize(); });
}

ActivationStore::Block ActivationStore::take(std::int64_t bytes) {
  const std::int64_t wanted = in_blocks(bytes);
  if (Block block = reused(wanted)) {
    return block;
  }
  if (std::vector<Block> blocks = superfluous(wanted); !blocks.empty()) {
    streams_.synchronize();
  }
  auto block = std::make_unique<PinnedBuffer>(wanted, MemoryKind::OffloadSlot, ledger_, device_);
  const std::lock_guard lock(mutex_);
  held_bytes_ += wanted;
  asked_bytes_ += wanted;
  return block;
}

// Returns the smallest free block that fits; null if none does.
ActivationStore::Block ActivationStore::reused(std::int64_t wanted) {
  const std::lock_guard lock(mutex_);
  most_asked_bytes_ = std::max(most_asked_bytes_, asked_bytes_ + wanted);
  const auto size = [wanted](const Block& block) {
    return block->bytes() < wanted ? INT64_MAX : block->bytes();
  };
  const auto found = std::ranges::min_element(free_, {}, size);
  if (found == free_.end() || size(*found) > kLargestLoan * wanted) {
    return nullptr;
  }
  asked_bytes_ += wanted;
  Block block = std::move(*found);
  free_.erase(found);
  return block;
}

// Returns the blocks to free before a new one is made: the longest unused.
std::vector<ActivationStore::Block> ActivationStore::superfluous(std::int64_t wanted) {
  const std::lock_guard lock(mutex_);
  std::vector<Block> blocks;
  while (!free_.empty() && held_bytes_ + wanted > kLargestLoan * most_asked_bytes_) {
    held_bytes_ -= free_.front()->bytes();
    blocks.push_back(std::move(free_.front()));
    free_.pop_front();
  }
  return blocks;
}

void ActivationStore::give(Block block, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  asked_bytes_ -= in_blocks(bytes);
  free_.push_back(std::move(block));
}

bool ActivationStore::takes(const at::Tensor& tensor) const {
  if (tensor.device() != device_ || tensor.layout() != c10::kStrided || !tensor.has_storage() ||
      tensor.is_conj() || tensor.is_neg()) {
    return false;
  }
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  return static_cast<std::int64_t>(storage->nbytes()) >= kLeastBytes && !kept_.contains(storage);
}

void ActivationStore::end(const std::shared_ptr<SavedByCall>& call) {
  if (last_ != nullptr) {
    last_->for_each(&ParkedStorage::leave);
  }
  call->before_ = last_;
  last_ = call;
}

void ActivationStore::fetch(SavedByCall& call) {
  call.for_each(&ParkedStorage::fetch);
  if (const auto before = call.before_.lock()) {
    before->for_each(&ParkedStorage::fetch);
  }
}

ParkedStorage::ParkedStorage(std::shared_ptr<ActivationStore> store, const at::Tensor& tensor)
    : store_(std::move(store)),
      bytes_(static_cast<std::int64_t>(tensor.storage().nbytes())),
      storage_(tensor.storage()),
      version_(torch::autograd::impl::version_counter(tensor)),
      saved_version_(version_.current_version()),
      block_(store_->take(bytes_)),
      computes_(c10::Stream::DEFAULT, store_->device()) {
  start_copy(store_->streams().to_host(), bytes_of(storage_), bytes_of(block_, bytes_));
}

ParkedStorage::~ParkedStorage() {
  place_ = Place::Device;  // nobody needs what the host has
  quietly([this] { await_copy(); });
}

void ParkedStorage::start_copy(const c10::Stream& stream, const at::Tensor& from,
                               const at::Tensor& to) {
  computes_ = current_stream(store_->device());
  CopyStreams::order(computes_, stream);
  CopyStreams::copy(stream, from, to);
  copied_ = CopyStreams::reached(stream);
}

// Afterwards the device's memory may be freed, and the host's reused.
void ParkedStorage::await_copy() {
  CopyStreams::order(std::exchange(copied_, std::nullopt), computes_);
  if (block_ != nullptr && place_ != Place::Host) {
    store_->give(std::move(block_), bytes_);
  }
}

bool ParkedStorage::holds(const at::Tensor& tensor) const {
  return tensor.storage().unsafeGetStorageImpl() == storage_.unsafeGetStorageImpl() &&
         version_.current_version() == saved_version_ &&
         torch::autograd::impl::version_counter(tensor).current_version() == saved_version_;
}

void ParkedStorage::check_version() {
  is_changed_ = is_changed_ || version_.current_version() != saved_version_;
}

void ParkedStorage::leave() {
  const std::lock_guard lock(mutex_);
  if (place_ != Place::Leaving) {
    return;
  }
  check_version();
  place_ = Place::Host;
  await_copy();
  storage_ = c10::Storage();
}

void ParkedStorage::fetch() {
  const std::lock_guard lock(mutex_);
  if (place_ == Place::Device) {
    return;
  }
  if (place_ == Place::Leaving) {  // it has not left
    check_version();
    place_ = Place::Device;
    return;
  }
  const auto range = profiler_range("activations from the host");
  const c10::DeviceGuard guard(store_->device());
  storage_ =
      at::empty({bytes_}, c10::TensorOptions().dtype(at::kByte).device(store_->device())).storage();
  place_ = Place::Device;
  start_copy(store_->streams().to_device(), bytes_of(block_, bytes_), bytes_of(storage_));
}

const c10::Storage& ParkedStorage::use() {
  fetch();
  const std::lock_guard lock(mutex_);
  if (is_changed_) {
    refuse_changed_in_place();
  }
  await_copy();
  return storage_;
}

std::shared_ptr<ParkedStorage> SavedByCall::park(ActivationStore& store, const at::Tensor& tensor) {
  std::weak_ptr<ParkedStorage>& known = parked_[tensor.storage().unsafeGetStorageImpl()];
  std::shared_ptr<ParkedStorage> parked = known.lock();
  if (parked == nullptr || !parked->holds(tensor)) {
    parked = std::make_shared<ParkedStorage>(store.shared_from_this(), tensor);
    known = parked;
  }
  return parked;
}

void SavedByCall::for_each(void (ParkedStorage::*change)()) const {
  for (const auto& [storage, parked] : parked_) {
    if (const auto held = parked.lock()) {
      (*held.*change)();
    }
  }
}

}  // namespace sherd::detail
