#pragma once
// State that is kept in a file, with a few chunks of it in memory.

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "files/unnamed_file.h"
#include "storage/device.h"
#include "storage/storage.h"

namespace sherd::detail {

/// A range of a storage's addresses and its place in the file.
struct FileChunk {
  static constexpr std::int64_t kBytes = std::int64_t{2} << 20;  ///< but for a storage's last
  enum class Place { File, Arriving, Memory, Leaving };
  char* data = nullptr;  ///< null on the meta device
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  ///< in the file
  Place place = Place::File;
  files::Transfers::Ticket transfer = 0;  ///< while it arrives or leaves
  bool differs = false;                   ///< from the file
  int uses = 0;
  Buffer on_meta = {};  ///< stands for its memory there
};

/// The file of a rank's model. It decides which few chunks are in memory: those that are used, read
/// ahead or written back.
class FileStore {
 public:
  /// `is_behind_host`: the model is computed on another device, and memory for chunks is its
  /// host's. On the meta device there is no file, and bytes are only counted.
  FileStore(const std::string& folder, c10::Device device, std::shared_ptr<MemoryLedger> ledger,
            bool is_behind_host = false);

  /// Allows chunks to take at least `bytes` of memory. They take more if more is used at once.
  void raise_limit(std::int64_t bytes) { limit_bytes_ = std::max(limit_bytes_, bytes); }
  /// Returns the maximum bytes that they take.
  [[nodiscard]] std::int64_t most_in_memory_bytes() const {
    return std::min(limit_bytes_, allocated_bytes_);
  }
  [[nodiscard]] bool is_behind_host() const { return is_behind_host_; }
  /// Writes back what differs, and frees the memory of all chunks that are not used.
  void free_memory();
  /// Returns true if a transfer has failed since forget_failure().
  [[nodiscard]] bool has_failed() const { return has_failed_; }
  /// Waits for transfers under way, so that no later use reports the same fault.
  void forget_failure();
  /// "io_uring, direct"
  [[nodiscard]] std::string description() const { return file_ ? file_->description() : "none"; }

 private:
  friend class FileStorage;
  [[nodiscard]] std::int64_t allocate(std::int64_t bytes);
  void release(std::int64_t begin, std::int64_t bytes);
  void count(std::int64_t bytes);
  bool give_memory(FileChunk& chunk);
  void fetch(FileChunk& chunk);
  void write_back(FileChunk& chunk);
  void await_transfer(FileChunk& chunk);
  [[nodiscard]] FileChunk* make_room(std::int64_t bytes);
  void forget(FileChunk& chunk);

  c10::Device device_;                        ///< the host's, or meta
  std::unique_ptr<files::UnnamedFile> file_;  ///< null on the meta device
  std::shared_ptr<MemoryLedger> ledger_;
  std::int64_t limit_bytes_ = 8 * FileChunk::kBytes;
  std::int64_t allocated_bytes_ = 0;  ///< of all storages that were made
  std::int64_t held_bytes_ = 0;
  std::list<FileChunk*> in_memory_;  ///< the least recently used first
  bool has_failed_ = false;
  bool is_behind_host_;
};

/// In a file, with stable addresses. They have memory only within use() or while it is held; any
/// other access faults.
class FileStorage final : public Storage {
 public:
  FileStorage(std::shared_ptr<FileStore> store, std::int64_t numel, c10::ScalarType dtype);
  ~FileStorage() override;

  [[nodiscard]] bool is_held() const override { return held_ != nullptr; }
  [[nodiscard]] FileStore* file() const override { return store_.get(); }
  /// On the meta device an address of nothing.
  [[nodiscard]] void* address() const override { return tensor_.mutable_data_ptr(); }
  [[nodiscard]] std::shared_ptr<void> use(const at::Tensor& view, bool writes) override {
    return bring(view, writes ? Access::Write : Access::Read);
  }
  void read_ahead(const at::Tensor& view) override;
  void write_back(const at::Tensor& view) override;
  [[nodiscard]] std::shared_ptr<void> copy_to_device(const c10::Stream& stream,
                                                     const at::Tensor& view,
                                                     const at::Tensor& to) override;
  void copy_to_host(const c10::Stream& stream, const at::Tensor& from,
                    const at::Tensor& view) override;
  void prefetch(void* /*place*/, const c10::Event* /*free*/) override { read_ahead(tensor_); }
  void hold(Access access) override;
  void write_back() override;
  void drop() override { held_.reset(); }
  void discard() override;

 private:
  [[nodiscard]] std::span<FileChunk> chunks_of(const at::Tensor& view);
  [[nodiscard]] std::shared_ptr<void> used(std::span<FileChunk> chunks);
  [[nodiscard]] std::shared_ptr<void> bring(const at::Tensor& view, Access access);

  std::shared_ptr<FileStore> store_;
  std::int64_t bytes_;               ///< rounded up to chunks
  std::shared_ptr<void> addresses_;  ///< null on the meta device; tensors keep them reserved
  std::int64_t offset_ = 0;          ///< in the file
  std::vector<FileChunk> chunks_;
  std::shared_ptr<void> held_;
};

}  // namespace sherd::detail
