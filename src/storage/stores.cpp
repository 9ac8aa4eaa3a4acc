#include "storage/stores.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "storage/movable_storage.h"

namespace sherd::detail {

Stores::Stores(const Offload& offload, c10::Device device, std::shared_ptr<MemoryLedger> ledger,
               const StorageFactory* factory)
    : offload_(offload),
      device_(device),
      ledger_(std::move(ledger)),
      factory_(factory),
      resident_gradients_(std::make_shared<GatherArena>(
          std::numeric_limits<std::int64_t>::max(), ledger_, device_, MemoryKind::GradientShard)) {
  const auto open = [&](Part part, const std::string& folder, bool is_on_host) {
    Place& place = places_[static_cast<std::size_t>(part)];
    place.is_on_host = is_on_host;
    if (!folder.empty()) {
      place.file = std::make_shared<FileStore>(folder, device_, ledger_, is_on_host);
    }
  };
  open(Part::Optimizer, offload_.optimizer_folder, offload_.optimizer_on_host);
  open(Part::Gradients, offload_.gradient_folder, offload_.gradients_on_host);
  open(Part::Parameters, offload_.parameter_folder, offload_.parameters_on_host);
  if (offload_.optimizer_on_host || offload_.gradients_on_host || offload_.parameters_on_host) {
    copies_ = std::make_shared<CopyEngine>(device_, ledger_);
  }
  if (offload_.activations_on_host) {
    activations_ = std::make_shared<ActivationStore>(device_, ledger_);
  }
}

std::unique_ptr<Storage> Stores::offloaded(Part part, std::int64_t numel, c10::ScalarType dtype,
                                           MemoryKind kind) const {
  if (factory_ != nullptr) {
    if (auto storage = factory_->make(part, numel, dtype)) {
      return storage;
    }
  }
  const auto& [file, is_on_host] = places_[static_cast<std::size_t>(part)];
  std::unique_ptr<Storage> storage;
  if (file != nullptr) {
    storage = std::make_unique<FileStorage>(file, numel, dtype);
  } else if (is_on_host) {
    storage = pinned_storage(numel, dtype, kind, ledger_, device_);
  }
  if (is_on_host) {
    const bool has_slot = part == Part::Gradients;
    storage = std::make_unique<HostStorage>(copies_, std::move(storage), has_slot);
  }
  return storage;
}

std::unique_ptr<Storage> Stores::make(Part part, std::int64_t numel, c10::ScalarType dtype,
                                      MemoryKind kind) const {
  if (auto storage = offloaded(part, numel, dtype, kind)) {
    return storage;
  }
  if (part == Part::Gradients) {
    return std::make_unique<ResidentStorage>(numel, dtype, device_, resident_gradients_);
  }
  const auto buffer = std::make_shared<Buffer>(
      numel * static_cast<std::int64_t>(c10::elementSize(dtype)), kind, ledger_, device_);
  return std::make_unique<ResidentStorage>(flat_tensor(buffer->data(), numel, dtype, device_),
                                           buffer);
}

FileStore* Stores::file(Part part) const {
  return places_[static_cast<std::size_t>(part)].file.get();
}

std::vector<FileStore*> Stores::files() const {
  std::vector<FileStore*> files;
  for (const Place& place : places_) {
    if (place.file != nullptr) {
      files.push_back(place.file.get());
    }
  }
  return files;
}

std::int64_t Stores::most_bytes(bool behind_host) const {
  std::int64_t bytes = 0;
  for (const FileStore* file : files()) {
    bytes += file->is_behind_host() == behind_host ? file->most_in_memory_bytes() : 0;
  }
  return bytes;
}

void Stores::free_memory() const {
  for (FileStore* file : files()) {
    file->free_memory();
  }
}

bool Stores::take_failure() const {
  const std::vector<FileStore*> all = files();
  if (std::ranges::none_of(all, &FileStore::has_failed)) {
    return false;
  }
  for (FileStore* file : all) {
    file->forget_failure();
  }
  return true;
}

}  // namespace sherd::detail
