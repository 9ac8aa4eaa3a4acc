#pragma once
// Reading and writing safetensors files and Hugging Face model folders:
// https://github.com/huggingface/safetensors. Files are untrusted: everything that a header says is
// checked before it is used, in bounded memory.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace sherd {

/// One tensor of a safetensors file, as its header states it.
struct SafetensorsEntry {
  std::string name;  ///< UTF-8, unique in its file
  at::ScalarType
      dtype;  ///< Undefined for a dtype that Sherd does not read (the 8-bit floats, for instance)
  std::string_view dtype_name;  ///< as the file spells it; static storage
  std::vector<int64_t> shape;   ///< empty for a scalar
  uint64_t begin_byte;          ///< from the beginning of the file's data
  uint64_t end_byte;            ///< one past its last byte

  /// The number of elements; 1 for a scalar.
  [[nodiscard]] int64_t numel() const;
};

/// A safetensors file, opened for reading. The header is read and checked at once, tensors when
/// asked for, by pread (never mapped: a file that is cut meanwhile is an Error, not a signal).
/// Reading is safe from several threads.
/// Memory: less than the file's size + 64 MiB while opening; afterwards the entries alone.
/// Limits: a header of 100 MB, 131,072 tensors, rank 16, names of 4 KiB without control characters,
/// 16,384 entries of metadata, strings of 2 MiB.
class SafetensorsFile {
 public:
  /// Throws Error: InputMissing if `path` cannot be opened, BadData (naming tensor, expected and
  /// found) if it is not a regular file or its header cannot be right, StorageIo if reading fails.
  explicit SafetensorsFile(const std::string& path);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  /// The path it was opened by.
  [[nodiscard]] const std::string& path() const;
  /// In the order of their bytes in the file.
  [[nodiscard]] const std::vector<SafetensorsEntry>& entries() const;
  /// The header's `__metadata__`; empty if it has none.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;
  /// Whether there is a tensor of that name, of whatever dtype.
  [[nodiscard]] bool contains(std::string_view name) const;
  /// The entry of that name, valid as long as this object; null if there is none.
  /// Throws Error(BadData) if its dtype is one that Sherd does not read.
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;

  /// Reads elements [begin, end) of an entry of this file, flattened, into `out` as dtype `as`:
  /// that of the entry, or a float from a float (F64, F32, F16, BF16), rounded to nearest even as
  /// `at::Tensor::to` does. Memory: none if the dtypes are equal, else a buffer of at most 1 MiB.
  /// Throws Error: BadData for any other pair of dtypes and for a BOOL byte that is neither 0 nor
  /// 1, StorageIo if reading fails or the file has become shorter, Usage if the range is not within
  /// the tensor.
  void read_elements(const SafetensorsEntry& entry, int64_t begin, int64_t end, at::ScalarType as,
                     void* out) const;
  /// Asks the system to read these elements into the page cache, without waiting: for a reader that
  /// works on earlier ones meanwhile. Ranges beyond the tensor are cut off. Reports nothing.
  void prefetch(const SafetensorsEntry& entry, int64_t begin, int64_t end) const;
  /// Reads a whole tensor of this file into CPU memory, in its own dtype. Throws as
  /// `read_elements`.
  [[nodiscard]] at::Tensor read(const SafetensorsEntry& entry) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Where a tensor of a folder is. Valid as long as the SafetensorsFolder.
struct SafetensorsLocation {
  const SafetensorsFile* file;    ///< that holds it; never null
  const SafetensorsEntry* entry;  ///< in that file; never null
};

/// The weights of a Hugging Face model folder: `model.safetensors`, else the shards that
/// `model.safetensors.index.json` names. The index may name only regular files in that folder (or
/// links into the blobs of the hub cache that the folder is part of).
class SafetensorsFolder {
 public:
  /// Opens all files of the model. Throws Error: InputMissing if there is no folder, no model in
  /// it, or a shard is missing; BadData if the index or a file cannot be right, or a mapped tensor
  /// is not in the file named; StorageIo.
  explicit SafetensorsFolder(const std::string& folder);

  /// The names of all tensors of the model, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Where a tensor of the model is; nothing if it has none of that name. Throws as
  /// `SafetensorsFile::find`.
  [[nodiscard]] std::optional<SafetensorsLocation> find(std::string_view name) const;
  /// Tensors that lie in the shards and that the index leaves out or takes from another shard. They
  /// are not part of the model.
  [[nodiscard]] std::vector<SafetensorsLocation> unmapped() const;
  /// The opened files: one, or the shards.
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> file_of_tensor_;  // index into files_
};

/// A tensor that is going to be written.
struct SafetensorsSpec {
  std::string name;            ///< unique in the file
  at::ScalarType dtype;        ///< in which it is written
  std::vector<int64_t> shape;  ///< empty for a scalar
};

/// Writes a safetensors file piece by piece, under a temporary name (`<path>.tmp-<process id>`)
/// until `finish` puts it in its place: a reader sees the old file or the whole new one. Only
/// write_at() may be called by several threads at once. Layout: by falling element size, else in
/// the given order, so that every tensor is aligned.
class SafetensorsWriter {
 public:
  /// Reserves the disk space of the whole file. Throws Error(CannotWrite) if the file cannot be
  /// created or does not fit; Error(Usage) for a tensor that a safetensors file cannot hold: two of
  /// one name, one called `__metadata__`, a name that is not UTF-8, a dtype other than F64 F32
  /// F16 BF16 I64 I32 I16 I8 U8 BOOL.
  SafetensorsWriter(const std::string& path, const std::vector<SafetensorsSpec>& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  /// Removes the temporary file if `finish` has not been called, or has failed.
  ~SafetensorsWriter();

  /// Appends the next `bytes` bytes of a tensor. Tensors may be written in any order, and by turns;
  /// fastest is the given one. Throws Error: StorageIo if writing fails, Usage for an
  /// unknown name and for more bytes than the tensor has.
  void write(std::string_view name, const void* data, uint64_t bytes);
  /// Writes `bytes` bytes of a tensor from its byte `first_byte` on, each byte once, and has the
  /// system begin to write them to the disk. Not for a
  /// tensor that write() has begun. Safe from several threads. Throws as write(), and Error(Usage)
  /// for bytes that lie outside the tensor.
  void write_at(std::string_view name, uint64_t first_byte, const void* data, uint64_t bytes);
  /// Makes what has been written durable, so that little is left for `finish` to wait for: for
  /// files of many GB. Throws Error(StorageIo).
  void sync();
  /// Makes the file durable and gives it its name: fsync, rename, fsync of the folder. Call once.
  /// Throws Error: StorageIo, or Usage, naming the first tensor that has not been written in
  /// full.
  void finish();
  /// The size of the finished file.
  [[nodiscard]] uint64_t file_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
