#include "storage/offload_stores.h"

#include <algorithm>

namespace sherd::detail {

std::vector<OffloadStore*> OffloadStores::all() const {
  std::vector<OffloadStore*> stores;
  for (const auto& store : {optimizer, gradients, parameters}) {
    if (store != nullptr) {
      stores.push_back(store.get());
    }
  }
  return stores;
}

std::int64_t OffloadStores::most_in_memory_bytes() const {
  std::int64_t bytes = on_host == nullptr ? 0 : on_host->slot_bytes();
  for (const OffloadStore* store : all()) {
    bytes += store->is_behind_host() ? 0 : store->most_in_memory_bytes();
  }
  return bytes;
}

std::int64_t OffloadStores::most_page_bytes() const {
  std::int64_t bytes = 0;
  for (const OffloadStore* store : all()) {
    bytes += store->is_behind_host() ? store->most_in_memory_bytes() : 0;
  }
  return bytes;
}

void OffloadStores::rest() const {
  for (OffloadStore* store : all()) {
    store->rest();
  }
}

bool OffloadStores::take_failure() const {
  const std::vector<OffloadStore*> stores = all();
  if (std::none_of(stores.begin(), stores.end(),
                   [](const OffloadStore* store) { return store->has_failed(); })) {
    return false;
  }
  for (OffloadStore* store : stores) {
    store->forget_failure();
  }
  return true;
}

}  // namespace sherd::detail
