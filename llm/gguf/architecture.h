#pragma once
// llama.cpp's architectures: how a family's models are written as GGUF, and read back.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "llm/gguf/gguf_file.h"
#include "llm/gguf/gguf_value.h"
#include "llm/model/decoder_config.h"

namespace llm::gguf {

/// What becomes of a parameter's values on their way into a GGUF file.
enum class Change {
  None,
  QueryRows,   ///< row h · H/2 + i of each head becomes row 2 i + h
  KeyRows,     ///< the same, by the heads of keys
  PlusOne,     ///< a norm's weight w is written as 1 + w
  Transposed,  ///< [in, out] becomes [out, in]
  HeadsLast    ///< rows q, k, v of head 0, of head 1 … become all of q, all of k, all of v
};

/// A module's name there and here, without ".weight" and ".bias"; "{}" is the layer.
struct TensorName {
  const char* gguf;
  const char* module;
  Change change = Change::None;
};

/// A model to be written.
struct SourceModel {
  std::string model_type;         ///< Hugging Face's
  model::DecoderConfig shape;     ///< as its config.json says
  nlohmann::ordered_json config;  ///< config.json itself
  std::string place;              ///< its path, for messages

  /// Throws sherd::Error(BadData): GGUF cannot express `what`.
  [[noreturn]] void refuse(const std::string& what) const;
};

/// The keys of an architecture in the making.
class KeyWriter {
 public:
  explicit KeyWriter(const char* architecture);
  void whole(const std::string& key, std::int64_t value);
  void number(const std::string& key, double value);
  void text(const std::string& key, const std::string& value);
  [[nodiscard]] std::vector<KeyValue>& keys() { return keys_; }

 private:
  std::string prefix_;
  std::vector<KeyValue> keys_;
};

/// The keys of an architecture in a file. Throws sherd::Error(BadData), naming the key.
class KeyReader {
 public:
  KeyReader(const GgufFile& file, const char* architecture);
  /// A whole number of at least 1.
  [[nodiscard]] std::int64_t whole(const std::string& key) const;
  [[nodiscard]] std::int64_t whole(const std::string& key, std::int64_t fallback) const;
  [[nodiscard]] double number(const std::string& key) const;
  [[nodiscard]] double number(const std::string& key, double fallback) const;
  [[nodiscard]] std::optional<std::string> text(const std::string& key) const;
  [[nodiscard]] bool has(const std::string& key) const;
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;
  [[nodiscard]] const GgufFile& file() const { return file_; }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

struct Architecture {
  const char* name;                      ///< llama.cpp's
  std::vector<const char*> model_types;  ///< that are written so; the first is read
  const char* model_class;               ///< of transformers, for the first
  std::vector<TensorName> tensors;
  std::vector<const char*> keys;               ///< that are read, without the architecture's name
  std::vector<const char*> rope_tensors = {};  ///< that `read_keys` reads: no parameters
  /// Throws sherd::Error(BadData) for what llama.cpp computes otherwise.
  void (*write_keys)(const SourceModel& model, KeyWriter& keys);
  void (*read_keys)(const KeyReader& keys, nlohmann::ordered_json& config);
};

/// The one that models of this type are written in; null if there is none.
[[nodiscard]] const Architecture* architecture_of_model(const std::string& model_type);
/// The one of this name; null if it is not read.
[[nodiscard]] const Architecture* architecture_named(const std::string& name);
/// "llama, mistral, …": the types of models that can be written.
[[nodiscard]] std::string written_model_types();
/// "llama, qwen2, …"
[[nodiscard]] std::string read_architectures();

/// A tensor's name in the file with its change; nothing for a parameter that has none.
[[nodiscard]] std::optional<TensorInfo> info_of_parameter(const Architecture& architecture,
                                                          const std::string& parameter,
                                                          Change& change);
/// The other way: the parameter of a tensor.
[[nodiscard]] std::optional<std::string> parameter_of_tensor(const Architecture& architecture,
                                                             const std::string& tensor,
                                                             Change& change);

}  // namespace llm::gguf
