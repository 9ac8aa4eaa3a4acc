#include "storage/file_storage.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sys/mman.h>

#include "files/system_text.h"
#include "sherd/error.h"
#include "storage/device.h"
#include "storage/movable_storage.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

// To pages if it is small, else to chunks, which are huge pages.
std::int64_t rounded(std::int64_t bytes) {
  const std::int64_t unit =
      bytes < FileChunk::kBytes ? files::UnnamedFile::kAlignmentBytes : FileChunk::kBytes;
  return (bytes + unit - 1) / unit * unit;
}

[[noreturn]] void refused(std::int64_t bytes, int error) {
  throw Error(ExitCode::OutOfMemory,
              "out of memory: " + std::to_string(bytes) +
                  " bytes for values stored on a disk could not be mapped (" +
                  files::errno_text(error) + ").");
}

void map_pages(const FileChunk& chunk) {
  const auto size = static_cast<std::size_t>(chunk.bytes);
  if (::mprotect(chunk.data, size, PROT_READ | PROT_WRITE) != 0) {
    refused(chunk.bytes, errno);
  }
  ::madvise(chunk.data, size, MADV_HUGEPAGE);
}

// New pages would be zeroed first, which takes a good part of the time that reading them takes.
// False where the system cannot.
bool move_pages(const FileChunk& from, const FileChunk& to) {
  constexpr int kKeepsAddresses = 4;  // MREMAP_DONTUNMAP, of Linux 5.7; headers may not have it
  const auto size = static_cast<std::size_t>(to.bytes);
  return ::mremap(from.data, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | kKeepsAddresses,
                  to.data) != MAP_FAILED;
}

}  // namespace

FileStore::FileStore(const std::string& folder, c10::Device device,
                     std::shared_ptr<MemoryLedger> ledger, bool is_behind_host)
    : device_(device.is_meta() ? device : c10::Device(c10::kCPU)),
      file_(device.is_meta() ? nullptr : std::make_unique<files::UnnamedFile>(folder)),
      ledger_(std::move(ledger)),
      is_behind_host_(is_behind_host) {}

// The ledger of a device counts what lies on the device.
void FileStore::count(std::int64_t bytes) {
  if (!is_behind_host_) {
    ledger_->add(MemoryKind::OffloadSlot, bytes);
  }
}

std::int64_t FileStore::allocate(std::int64_t bytes) {
  const std::int64_t begin = file_ ? file_->allocate(bytes) : 0;
  allocated_bytes_ += bytes;
  ledger_->add_offloaded(bytes);
  return begin;
}

void FileStore::release(std::int64_t begin, std::int64_t bytes) {
  if (file_) {
    file_->release(begin, bytes);
  }
  allocated_bytes_ -= bytes;
  ledger_->add_offloaded(-bytes);
}

// Frees the least recently used chunks. The last of them may hand its pages on to the new chunk: it
// is returned still in memory.
FileChunk* FileStore::make_room(std::int64_t bytes) {
  while (held_bytes_ + bytes > limit_bytes_) {
    const auto found =
        std::ranges::find_if(in_memory_, [](const FileChunk* chunk) { return chunk->uses == 0; });
    if (found == in_memory_.end()) {
      return nullptr;
    }
    FileChunk& oldest = **found;
    write_back(oldest);
    await_transfer(oldest);
    if (oldest.bytes == bytes && held_bytes_ <= limit_bytes_) {
      return &oldest;
    }
    forget(oldest);
  }
  return nullptr;
}

void FileStore::free_memory() {
  const std::vector held(in_memory_.begin(), in_memory_.end());
  for (FileChunk* chunk : held) {
    write_back(*chunk);  // all of them, before the first is waited for
  }
  for (FileChunk* chunk : held) {
    if (chunk->uses == 0) {
      await_transfer(*chunk);
      forget(*chunk);
    }
  }
}

void FileStore::forget_failure() {
  for (FileChunk* chunk : std::vector(in_memory_.begin(), in_memory_.end())) {
    quietly([&] { await_transfer(*chunk); });
  }
  has_failed_ = false;
}

// Gives memory, with any contents, to a chunk that is in the file alone. Returns whether it was.
bool FileStore::give_memory(FileChunk& chunk) {
  if (chunk.place != FileChunk::Place::File) {
    return false;
  }
  FileChunk* const leaving = make_room(chunk.bytes);
  const bool has_pages = file_ && leaving != nullptr && move_pages(*leaving, chunk);
  if (leaving != nullptr) {
    forget(*leaving);
  }
  if (!file_) {
    const std::int64_t counted_bytes = is_behind_host_ ? 0 : chunk.bytes;
    chunk.on_meta = Buffer(counted_bytes, MemoryKind::OffloadSlot, ledger_, device_);
  } else {
    if (!has_pages) {
      map_pages(chunk);
    }
    count(chunk.bytes);
  }
  held_bytes_ += chunk.bytes;
  chunk.place = FileChunk::Place::Memory;
  in_memory_.push_back(&chunk);
  return true;
}

void FileStore::fetch(FileChunk& chunk) {
  if (!give_memory(chunk) || !file_) {
    return;
  }
  try {
    chunk.transfer = file_->transfers().start(files::Transfers::Direction::Read, chunk.data,
                                              chunk.bytes, chunk.offset);
    chunk.place = FileChunk::Place::Arriving;
  } catch (...) {
    forget(chunk);
    throw;
  }
}

// Waits for the transfer of a chunk, if there is one.
void FileStore::await_transfer(FileChunk& chunk) {
  using Place = FileChunk::Place;
  if (chunk.place != Place::Arriving && chunk.place != Place::Leaving) {
    return;
  }
  const bool was_read = std::exchange(chunk.place, Place::Memory) == Place::Arriving;
  try {
    file_->transfers().wait(chunk.transfer);
  } catch (...) {
    has_failed_ = true;
    if (was_read) {
      forget(chunk);
    } else {
      chunk.differs = true;
    }
    throw;
  }
}

void FileStore::write_back(FileChunk& chunk) {
  if (!chunk.differs || chunk.uses > 0 || chunk.place != FileChunk::Place::Memory || !file_) {
    return;
  }
  chunk.transfer = file_->transfers().start(files::Transfers::Direction::Write, chunk.data,
                                            chunk.bytes, chunk.offset);
  chunk.place = FileChunk::Place::Leaving;
  chunk.differs = false;
}

// Frees its memory, and loses what differs.
void FileStore::forget(FileChunk& chunk) {
  if (file_) {
    const auto size = static_cast<std::size_t>(chunk.bytes);
    // Remaps the pages, so that a system that accounts for promised memory no longer counts them.
    ::mmap(chunk.data, size, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
           0);
    count(-chunk.bytes);
  }
  chunk.on_meta = Buffer();
  held_bytes_ -= chunk.bytes;
  in_memory_.remove(&chunk);
  chunk.place = FileChunk::Place::File;
  chunk.differs = false;
}

FileStorage::FileStorage(std::shared_ptr<FileStore> store, std::int64_t numel,
                         c10::ScalarType dtype)
    : store_(std::move(store)),
      bytes_(rounded(numel * static_cast<std::int64_t>(c10::elementSize(dtype)))) {
  const bool has_memory = !store_->device_.is_meta() && bytes_ > 0;
  if (has_memory) {
    addresses_ = map_memory(bytes_, PROT_NONE, MAP_NORESERVE);
    if (addresses_ == nullptr) {
      refused(bytes_, errno);
    }
  }
  offset_ = store_->allocate(bytes_);
  tensor_ =
      flat_tensor(has_memory ? addresses_.get() : this, numel, dtype, store_->device_, addresses_);
  for (std::int64_t begin = 0; begin < bytes_; begin += FileChunk::kBytes) {
    FileChunk& chunk = chunks_.emplace_back();
    chunk.data = has_memory ? static_cast<char*>(addresses_.get()) + begin : nullptr;
    chunk.bytes = std::min(FileChunk::kBytes, bytes_ - begin);
    chunk.offset = offset_ + begin;
  }
}

FileStorage::~FileStorage() {
  held_.reset();
  for (FileChunk& chunk : chunks_) {
    quietly([&] { store_->await_transfer(chunk); });  // its values are no longer needed
    if (chunk.place != FileChunk::Place::File) {
      store_->forget(chunk);
    }
  }
  store_->release(offset_, bytes_);
}

std::span<FileChunk> FileStorage::chunks_of(const at::Tensor& view) {
  const auto element = static_cast<std::int64_t>(view.element_size());
  const std::int64_t begin = view.storage_offset() * element;
  const std::int64_t end = begin + view.numel() * element;
  const auto first = static_cast<std::size_t>(begin / FileChunk::kBytes);
  const auto last = static_cast<std::size_t>((end + FileChunk::kBytes - 1) / FileChunk::kBytes);
  return std::span(chunks_).subspan(first, last - first);
}

// Keeps chunks in memory while the result lives.
std::shared_ptr<void> FileStorage::used(std::span<FileChunk> chunks) {
  for (FileChunk& chunk : chunks) {
    ++chunk.uses;
  }
  return {this, [chunks](void*) {
            for (FileChunk& chunk : chunks) {
              --chunk.uses;
            }
          }};
}

void FileStorage::read_ahead(const at::Tensor& view) {
  const auto in_use = used(chunks_of(view));  // while room is made for the next
  for (FileChunk& chunk : chunks_of(view)) {
    store_->fetch(chunk);
  }
}

// Overwrite: of all of it.
std::shared_ptr<void> FileStorage::bring(const at::Tensor& view, Access access) {
  const std::span<FileChunk> chunks = chunks_of(view);
  auto in_use = used(chunks);
  for (FileChunk& chunk : chunks) {
    if (access == Access::Overwrite) {
      store_->give_memory(chunk);
    } else {
      store_->fetch(chunk);
    }
  }
  for (FileChunk& chunk : chunks) {
    store_->await_transfer(chunk);
    std::list<FileChunk*>& recent = store_->in_memory_;
    recent.splice(recent.end(), recent, std::ranges::find(recent, &chunk));
    chunk.differs = chunk.differs || access != Access::Read;
  }
  return in_use;
}

std::shared_ptr<void> FileStorage::copy_to_device(const c10::Stream& stream, const at::Tensor& view,
                                                  const at::Tensor& to) {
  auto in_use = bring(view, Access::Read);
  CopyStreams::copy(stream, view, to);
  CopyStreams::synchronize(stream);
  return in_use;
}

void FileStorage::copy_to_host(const c10::Stream& stream, const at::Tensor& from,
                               const at::Tensor& view) {
  const bool is_whole = view.numel() == tensor_.numel();
  const auto in_use = bring(view, is_whole ? Access::Overwrite : Access::Write);
  CopyStreams::copy(stream, from, view);
  CopyStreams::synchronize(stream);
}

void FileStorage::hold(Access access) {
  if (held_ == nullptr) {
    held_ = bring(tensor_, access);
  } else if (access != Access::Read) {
    for (FileChunk& chunk : chunks_) {
      chunk.differs = true;
    }
  }
}

void FileStorage::write_back() {
  if (held_ != nullptr) {
    held_.reset();
    write_back(tensor_);
  }
}

void FileStorage::discard() {
  held_.reset();
  for (FileChunk& chunk : chunks_) {
    store_->await_transfer(chunk);
    if (chunk.place != FileChunk::Place::File && chunk.uses == 0) {
      store_->forget(chunk);
    }
  }
}

void FileStorage::write_back(const at::Tensor& view) {
  for (FileChunk& chunk : chunks_of(view)) {
    store_->write_back(chunk);
  }
}

}  // namespace sherd::detail
