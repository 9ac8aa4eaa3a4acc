#include "llm/export/export_adapter_gguf.h"

#include <cmath>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <fmt/core.h>

#include "files/folder.h"
#include "llm/adapters/chosen_modules.h"
#include "llm/gguf/architecture.h"
#include "llm/gguf/changes.h"
#include "llm/gguf/gguf_writer.h"
#include "llm/model/adapter_names.h"
#include "sherd/error.h"

namespace llm::exports {

namespace {

namespace fs = std::filesystem;
using sherd::Error;
using sherd::ExitCode;

// One matrix of the file.
struct AdapterTensor {
  gguf::TensorInfo info;
  std::string parameter;
  gguf::Change change = gguf::Change::None;  // of its rows
  double factor = 1;
};

const gguf::Architecture& architecture_of(const ExportSource& source) {
  const std::string type = source.config.family->model_type;
  const gguf::Architecture* found = gguf::architecture_of_model(type);
  if (found == nullptr) {
    throw Error(
        ExitCode::BadData,
        fmt::format("{}/config.json: models of type \"{}\" are not written as GGUF, only {}",
                    source.model, type, gguf::written_model_types()));
  }
  return *found;
}

gguf::TensorType type_of(gguf::FileKind kind) {
  switch (kind) {
    case gguf::FileKind::F32:
      return gguf::TensorType::F32;
    case gguf::FileKind::F16:
      return gguf::TensorType::F16;
    case gguf::FileKind::BF16:
      return gguf::TensorType::BF16;
    case gguf::FileKind::Q8_0:
      break;
  }
  throw Error(ExitCode::Usage,
              "--dtype q8_0 is for models: give f32, f16 or bf16 for an adapter, or --merged");
}

c10::ScalarType dtype_of(gguf::TensorType type) {
  return type == gguf::TensorType::F32   ? c10::kFloat
         : type == gguf::TensorType::F16 ? c10::kHalf
                                         : c10::kBFloat16;
}

void add_module(const ExportSource& source, const gguf::Architecture& architecture,
                const adapters::AdaptedModule& module, gguf::TensorType type,
                std::vector<AdapterTensor>& tensors) {
  gguf::Change change = gguf::Change::None;
  const auto weight = gguf::info_of_parameter(architecture, module.name + ".weight", change);
  if (!weight) {
    throw Error(ExitCode::BadData, "GGUF has no tensor for \"" + module.name + ".weight\"");
  }
  const auto parameters = source.shapes->named_parameters();
  const auto rank = static_cast<double>(module.shape.rank);
  const auto add = [&](std::string_view part, const char* end, gguf::Change rows, double factor) {
    const std::string parameter = module.name + std::string(part);
    gguf::TensorInfo info = *weight;
    info.name += end;
    info.type = type;
    info.shape = parameters[parameter].sizes().vec();
    tensors.push_back({std::move(info), parameter, rows, factor});
  };
  add(model::kLoraA, ".lora_a", gguf::Change::None, 1);
  // The transpose of a weight is no change of the map.
  add(model::kLoraB, ".lora_b", change == gguf::Change::Transposed ? gguf::Change::None : change,
      module.shape.scale() * rank / source.adapter.alpha);
}

std::string file_of(const std::string& out) {
  const fs::path path(out);
  const fs::path file = path.extension() == ".gguf" ? path : path / "adapter.gguf";
  if (fs::exists(file)) {
    throw Error(ExitCode::CannotWrite,
                "--gguf: '" + file.string() + "' exists already. Give another name, or remove it.");
  }
  return file.string();
}

at::Tensor values_of(const ExportSource& source, const AdapterTensor& tensor) {
  at::Tensor values = source.values(tensor.parameter);
  if (tensor.factor != 1) {
    values = values * tensor.factor;
  }
  const gguf::Heads heads{source.config.shape.heads, source.config.shape.key_heads};
  return gguf::to_gguf(values, tensor.change, heads).to(dtype_of(tensor.info.type)).contiguous();
}

}  // namespace

AdapterGguf write_adapter_gguf(const ExportSource& source, const std::string& out,
                               const std::optional<gguf::FileKind>& asked) {
  const gguf::Architecture& architecture = architecture_of(source);
  const gguf::FileKind kind = asked.value_or(gguf::FileKind::F32);
  const gguf::TensorType type = type_of(kind);
  const adapters::ChosenModules chosen = adapters::choose_modules(*source.shapes, source.adapter);
  if (!chosen.whole.empty()) {
    throw Error(
        ExitCode::BadData,
        fmt::format("'{}' is trained whole (adapter.modules_to_save), which an adapter in GGUF "
                    "cannot hold: write the model, with --merged",
                    chosen.whole.front()));
  }
  std::vector<AdapterTensor> tensors;
  for (const adapters::AdaptedModule& module : chosen.adapted) {
    add_module(source, architecture, module, type, tensors);
  }
  std::vector<gguf::TensorInfo> infos;
  for (const AdapterTensor& tensor : tensors) {
    infos.push_back(tensor.info);
  }
  const std::string file = file_of(out);
  sherd::files::make_folder(fs::absolute(file).parent_path().string());
  gguf::GgufWriter writer(file,
                          {{"general.architecture", gguf::text_value(architecture.name)},
                           {"general.type", gguf::text_value("adapter")},
                           {"adapter.type", gguf::text_value("lora")},
                           {"adapter.lora.alpha", gguf::float32_value(source.adapter.alpha)}},
                          infos);
  for (const AdapterTensor& tensor : tensors) {
    const at::Tensor values = values_of(source, tensor);
    writer.write(tensor.info.name, values.const_data_ptr(), values.nbytes());
  }
  writer.finish();
  return {file, std::ssize(tensors), static_cast<std::int64_t>(writer.file_bytes()), kind};
}

}  // namespace llm::exports
