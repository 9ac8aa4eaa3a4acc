#pragma once
// Reads GGUF files, versions 2 and 3. Files are untrusted: everything is checked before use, in
// bounded memory.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "files/input.h"
#include "llm/gguf/gguf_value.h"

namespace llm::gguf {

/// A GGUF file, open for reading. The constructor reads and checks keys and tensors; values are
/// read on demand. Limits: 256 MiB before the tensors, 131,072 tensors, 65,536 keys, 16,777,216
/// items of arrays.
class GgufFile {
 public:
  /// Throws sherd::Error: InputMissing; BadData, naming place, expected and found, for what is no
  /// GGUF, is cut short, contradicts itself, or holds a type that is not read; StorageIo.
  explicit GgufFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::vector<KeyValue>& keys() const { return keys_; }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }

  /// The tensor of a name; null if there is none.
  [[nodiscard]] const TensorInfo* find_tensor(const std::string& name) const;
  /// The value of a key; null if there is none.
  [[nodiscard]] const Value* find(std::string_view key) const;
  /// The value of a key that must have this kind; nothing if there is no such key. Throws
  /// sherd::Error(BadData), naming the key.
  [[nodiscard]] std::optional<std::string> text(const std::string& key) const;
  [[nodiscard]] std::optional<std::int64_t> whole(const std::string& key) const;
  [[nodiscard]] std::optional<bool> flag(const std::string& key) const;
  /// A Float32 as the shortest decimal that means it: 1e-05, not 9.999999747378752e-06.
  [[nodiscard]] std::optional<double> number(const std::string& key) const;
  [[nodiscard]] const std::vector<std::string>& texts(const std::string& key) const;
  [[nodiscard]] const std::vector<std::int64_t>& wholes(const std::string& key) const;
  [[nodiscard]] const std::vector<double>& numbers(const std::string& key) const;

  /// Reads a whole tensor: F16 and BF16 in their own dtype, all others in fp32. Memory: the tensor
  /// and at most 1 MiB. Throws sherd::Error(StorageIo), also where the file has become shorter.
  [[nodiscard]] at::Tensor read(const TensorInfo& tensor) const;

  /// Reads a tensor's numbers, each as the shortest decimal that means it. Throws sherd::Error:
  /// BadData for one that is not finite; StorageIo.
  [[nodiscard]] std::vector<double> decimals(const TensorInfo& tensor) const;

  /// Throws sherd::Error(BadData): "<file>: <what>".
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  template <class Content>
  [[nodiscard]] const Content* content_of(const std::string& key, const char* kind) const;
  template <class Content>
  [[nodiscard]] const Content& need(const std::string& key, const char* kind) const;
  void index_keys();
  void check_tensors(std::uint64_t data_bytes) const;

  std::string path_;
  sherd::files::InputFile file_;
  std::vector<KeyValue> keys_;
  std::unordered_map<std::string_view, std::size_t> place_of_key_;
  std::vector<TensorInfo> tensors_;
  std::uint64_t data_begin_ = 0;
  std::uint64_t alignment_ = kDefaultAlignment;
};

}  // namespace llm::gguf
