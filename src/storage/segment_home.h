#pragma once
// Where a part of a segment's state rests while nothing computes with it.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "sherd/memory.h"
#include "storage/offload_file.h"

namespace sherd::detail {

/// A stretch of a home's addresses, with a place in the file.
struct HomeChunk {
  static constexpr std::int64_t kBytes = std::int64_t{2} << 20;  ///< but for a home's last
  enum class Place { File, OnTheWay, Memory, WrittenBack };
  char* data = nullptr;  ///< null on the meta device
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  ///< in the file
  Place place = Place::File;
  Transfers::Ticket transfer = 0;  ///< while it is on the way or written back
  bool differs = false;            ///< from the file
  int uses = 0;
  Buffer on_meta = {};  ///< stands for its memory there
};

/// The file of a rank's model, and which chunks are in memory: a few, of what is used, read ahead
/// or written back.
class OffloadStore {
 public:
  /// `is_behind_host`: of a device, whose host has what is in memory. On the meta device there is
  /// no file: only bytes are counted.
  OffloadStore(const std::string& folder, c10::Device device, std::shared_ptr<MemoryLedger> ledger,
               bool is_behind_host = false);

  /// What chunks take of memory at most, unless more is used at once: `bytes`, or more if it was
  /// more.
  void raise_limit(std::int64_t bytes) { limit_bytes_ = std::max(limit_bytes_, bytes); }
  /// What they can take.
  [[nodiscard]] std::int64_t most_in_memory_bytes() const {
    return std::min(limit_bytes_, allocated_bytes_);
  }
  /// Where it is used: the host's, or meta.
  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] bool is_behind_host() const { return is_behind_host_; }
  /// Writes back what differs, and gives back the memory of all that is not used.
  void rest();
  /// Whether a transfer has failed since forget_failure().
  [[nodiscard]] bool has_failed() const { return has_failed_; }
  /// Waits for transfers under way, so that no later use is told of the same fault.
  void forget_failure();
  /// "io_uring, direct"
  [[nodiscard]] std::string description() const { return file_ ? file_->description() : "none"; }

 private:
  friend class SegmentHome;
  [[nodiscard]] std::int64_t allocate(std::int64_t bytes);
  void release(std::int64_t begin, std::int64_t bytes);
  void count(std::int64_t bytes);
  void give_memory(HomeChunk& chunk);
  void fetch(HomeChunk& chunk);
  void bring(HomeChunk& chunk);
  void write_back(HomeChunk& chunk);
  void settle(HomeChunk& chunk);
  void settle_quietly(HomeChunk& chunk);
  [[nodiscard]] HomeChunk* make_room(std::int64_t bytes);
  void leave(HomeChunk& chunk);
  void forget(HomeChunk& chunk);

  c10::Device device_;
  std::unique_ptr<OffloadFile> file_;  ///< null on the meta device
  std::shared_ptr<MemoryLedger> ledger_;
  std::int64_t limit_bytes_ = 8 * HomeChunk::kBytes;
  std::int64_t allocated_bytes_ = 0;  ///< of all homes that were made
  std::int64_t held_bytes_ = 0;
  std::list<HomeChunk*> in_memory_;  ///< the longest unused first
  bool has_failed_ = false;
  bool is_behind_host_;
};

/// Bytes that are zero at first, at addresses that stay; they have memory, and may be read and
/// written, only while a Use of them lives. An access without one faults. Used by one thread.
class SegmentHome {
 public:
  SegmentHome(std::shared_ptr<OffloadStore> store, std::int64_t bytes);
  ~SegmentHome();
  SegmentHome(const SegmentHome&) = delete;
  SegmentHome& operator=(const SegmentHome&) = delete;

  /// With what chunks are rounded up to.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] OffloadStore& store() const { return *store_; }
  /// Where it begins; on the meta device an address of nothing.
  [[nodiscard]] void* address() const { return storage_->mutable_data(); }
  /// [numel] at `offset` bytes. It may outlive the home, and is of no use then.
  [[nodiscard]] at::Tensor view(std::int64_t offset, std::int64_t numel,
                                c10::ScalarType dtype) const;

  /// Starts to bring what a view lies in into memory.
  void fetch(const at::Tensor& view);
  /// Brings it into memory and waits; it stays while what is returned lives. `writes`: it differs
  /// from the file afterwards.
  [[nodiscard]] std::shared_ptr<void> use(const at::Tensor& view, bool writes);
  /// The same of all of it, to be written anew: nothing is read, and what it holds is undefined.
  [[nodiscard]] std::shared_ptr<void> use_anew();
  /// What it holds is not needed any more: undefined until it is written.
  void discard();
  /// use() as a function that the home has to outlive.
  [[nodiscard]] std::function<std::shared_ptr<void>(const at::Tensor& view, bool writes)> usable() {
    return [this](const at::Tensor& view, bool writes) { return use(view, writes); };
  }
  /// Starts to write back what of it differs and is not used.
  void write_back(const at::Tensor& view);

 private:
  class Use;
  struct Span {
    std::size_t first = 0;
    std::size_t last = 0;  ///< one past
  };
  [[nodiscard]] Span chunks_of(const at::Tensor& view) const;

  std::shared_ptr<OffloadStore> store_;
  std::int64_t bytes_;
  std::int64_t offset_ = 0;  ///< in the file
  void* addresses_ = nullptr;
  c10::intrusive_ptr<c10::StorageImpl> storage_;
  std::vector<HomeChunk> chunks_;
};

}  // namespace sherd::detail
