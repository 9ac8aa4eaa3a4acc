#pragma once
// A model as a GGUF file.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "llm/gguf/architecture.h"
#include "llm/gguf/changes.h"
#include "llm/gguf/gguf_writer.h"
#include "sherd/safetensors.h"

namespace llm::gguf {

/// In which type matrices are written. Vectors are F32; rows that are no multiple of 32 stay F16 in
/// a file of Q8_0.
enum class FileKind { F32, F16, BF16, Q8_0 };

/// A tensor of the file, and where its values come from.
struct PlannedTensor {
  TensorInfo info = {};
  std::string parameter = {};  ///< empty: `values` holds them
  Change change = Change::None;
  at::Tensor values = {};
};

/// Everything of a file but the values of its parameters.
struct ModelPlan {
  std::vector<KeyValue> keys = {};
  std::vector<PlannedTensor> tensors = {};
  Heads heads = {};
  std::vector<std::string> stop_tokens = {};
};

/// Plans the file of a model. `folder`: its tokenizer. `parameters`: names and shapes. `name`: the
/// model's, in the file. Throws sherd::Error: BadData, naming what llama.cpp cannot compute or
/// tokenize; InputMissing.
[[nodiscard]] ModelPlan plan_model(const SourceModel& model, const std::string& folder,
                                   const std::vector<sherd::SafetensorsSpec>& parameters,
                                   FileKind kind, const std::string& name);

/// Writes tensor by tensor. Memory: twice the largest tensor in fp32.
class ModelWriter {
 public:
  /// Throws as GgufWriter.
  ModelWriter(const std::string& path, ModelPlan plan);

  [[nodiscard]] const ModelPlan& plan() const { return plan_; }
  /// Writes a tensor of the plan from the values of its parameter, fp32 and of any shape; undefined
  /// for one that has no parameter. Throws sherd::Error: BadData for a finite value that becomes
  /// infinite in the file's type, StorageIo.
  void write(const PlannedTensor& tensor, const at::Tensor& values);
  /// Throws sherd::Error(StorageIo).
  void finish() { file_.finish(); }
  [[nodiscard]] std::uint64_t file_bytes() const { return file_.file_bytes(); }

 private:
  ModelPlan plan_;
  GgufWriter file_;
};

}  // namespace llm::gguf
