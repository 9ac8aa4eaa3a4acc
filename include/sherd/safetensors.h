#pragma once
// Reads and writes safetensors files and Hugging Face model folders:
// https://github.com/huggingface/safetensors. Files are untrusted: everything in a header is
// checked before use, in bounded memory.

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

/// One tensor of a safetensors file, as stated in the header.
struct SafetensorsEntry {
  std::string name;  ///< UTF-8, unique in its file
  /// Undefined for a dtype that Sherd does not read, such as the 8-bit floats.
  at::ScalarType dtype;
  std::string_view dtype_name;  ///< the file's spelling; static storage
  std::vector<int64_t> shape;   ///< empty for a scalar
  uint64_t begin_byte;          ///< offset from the beginning of the file's data
  uint64_t end_byte;            ///< one past its last byte

  /// Returns the number of elements; 1 for a scalar.
  [[nodiscard]] int64_t numel() const;
};

/// A safetensors file, open for reading. The constructor reads and checks the header. Tensors are
/// read on demand by pread, never mapped: a file that is truncated meanwhile causes an Error
/// instead of a signal. Several threads may read at once.
///
/// Memory: less than the file's size + 64 MiB while opening; afterwards only the entries. Limits: a
/// header of 100 MB, 131,072 tensors, rank 16, names of 4 KiB without control characters, 16,384
/// entries of metadata, strings of 2 MiB.
class SafetensorsFile {
 public:
  /// Throws Error: InputMissing if `path` cannot be opened; BadData (naming tensor, expected and
  /// found) if it is not a regular file or its header is invalid; StorageIo if reading fails.
  explicit SafetensorsFile(const std::string& path);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  /// Returns the path given to the constructor.
  [[nodiscard]] const std::string& path() const;
  /// Returns the entries in the order of their bytes in the file.
  [[nodiscard]] const std::vector<SafetensorsEntry>& entries() const;
  /// Returns the header's `__metadata__`; empty if there is none.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;
  /// Returns true if there is a tensor of that name, of any dtype.
  [[nodiscard]] bool contains(std::string_view name) const;
  /// Returns the entry of that name, valid as long as this object; null if there is none. Throws
  /// Error(BadData) if Sherd does not read its dtype.
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;

  /// Reads elements [begin, end) of an entry of this file, flattened, into `out` as dtype `as`.
  /// `as` is the entry's dtype, or a float dtype for a float entry (F64, F32, F16, BF16), rounded
  /// to nearest even as `at::Tensor::to` does. Memory: none if the dtypes are equal, else a buffer
  /// of at most 1 MiB. Throws Error: BadData for any other pair of dtypes and for a BOOL byte other
  /// than 0 and 1; Usage if the range is outside the tensor. Throws Error(StorageIo) if reading
  /// fails or the file has become shorter.
  void read_elements(const SafetensorsEntry& entry, int64_t begin, int64_t end, at::ScalarType as,
                     void* out) const;
  /// Asks the system to read these elements into the page cache, without waiting. A reader can use
  /// earlier elements meanwhile. Clips ranges to the tensor. Reports nothing.
  void prefetch(const SafetensorsEntry& entry, int64_t begin, int64_t end) const;
  /// Reads a whole tensor of this file into CPU memory, in its own dtype. Throws as `read_elements`
  /// does.
  [[nodiscard]] at::Tensor read(const SafetensorsEntry& entry) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The file and entry of a tensor in a folder. Valid as long as the SafetensorsFolder.
struct SafetensorsLocation {
  const SafetensorsFile* file;    ///< the file with the tensor; never null
  const SafetensorsEntry* entry;  ///< the entry in that file; never null
};

/// The weights of a Hugging Face model folder: `model.safetensors`, or the shards named by
/// `model.safetensors.index.json`. The index may only name regular files in that folder, or links
/// into the blobs of the hub cache that contains the folder.
class SafetensorsFolder {
 public:
  /// Opens all files of the model. `folder` may also be a single file, by a path that ends in
  /// `.safetensors`. Throws Error: InputMissing if the folder, its model or a shard is missing;
  /// StorageIo; BadData if the index or a file is invalid, or lacks a mapped tensor.
  explicit SafetensorsFolder(const std::string& folder);

  /// Returns the sorted names of all tensors of the model.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Returns the location of a tensor; nothing if the model has none of that name. Throws as
  /// `SafetensorsFile::find` does.
  [[nodiscard]] std::optional<SafetensorsLocation> find(std::string_view name) const;
  /// Returns tensors in the shards that the index omits or maps to another shard. They are not part
  /// of the model.
  [[nodiscard]] std::vector<SafetensorsLocation> unmapped() const;
  /// Returns the open files: one, or the shards.
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> file_of_tensor_;  // index into files_
};

/// A tensor to be written.
struct SafetensorsSpec {
  std::string name;            ///< unique in the file
  at::ScalarType dtype;        ///< dtype in the file
  std::vector<int64_t> shape;  ///< empty for a scalar
};

/// Writes a safetensors file incrementally, under a temporary name (`<path>.tmp-<process id>`)
/// until `finish` renames it. A reader sees either the old file or the complete new one. Several
/// threads may call write_at() at once, but no other method. Layout: by decreasing element size,
/// then in the given order, so that every tensor is aligned.
class SafetensorsWriter {
 public:
  /// Reserves the disk space of the whole file. Throws Error(CannotWrite) if the file cannot be
  /// created or does not fit. Throws Error(Usage) for a tensor that a safetensors file cannot hold:
  /// a duplicate name, the name `__metadata__`, or a name that is not UTF-8. The dtype must be one
  /// of F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL.
  SafetensorsWriter(const std::string& path, const std::vector<SafetensorsSpec>& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  /// Removes the temporary file if `finish` was not called or failed.
  ~SafetensorsWriter();

  /// Appends the next `bytes` bytes of a tensor. Tensors may be written in any order and
  /// interleaved; the given order is fastest. Throws Error: StorageIo if writing fails, Usage for
  /// an unknown name and for more bytes than the tensor has.
  void write(std::string_view name, const void* data, uint64_t bytes);
  /// Writes `bytes` bytes of a tensor at offset `first_byte` and starts their transfer to the disk.
  /// Each byte must be written once, and write() must not have begun the tensor. Safe from several
  /// threads. Throws as write() does, and Error(Usage) for bytes outside the tensor.
  void write_at(std::string_view name, uint64_t first_byte, const void* data, uint64_t bytes);
  /// Makes the bytes written so far durable, so that `finish` has little left to wait for: for
  /// files of many GB. Throws Error(StorageIo).
  void sync();
  /// Makes the file durable and renames it: fsync, rename, fsync of the folder. Must be called
  /// once. Throws Error: StorageIo, or Usage, naming the first incomplete tensor.
  void finish();
  /// Returns the size of the finished file.
  [[nodiscard]] uint64_t file_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
