#include "llm/io/weight_files.h"

#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/output.h"

namespace llm::io {

namespace {

constexpr std::int64_t kMostUnsyncedBytes = std::int64_t{2} << 30;

std::int64_t bytes_of(const sherd::SafetensorsSpec& tensor) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
  for (const std::int64_t size : tensor.shape) {
    bytes *= size;
  }
  return bytes;
}

// By file.
std::vector<std::vector<sherd::SafetensorsSpec>> cut(
    const std::vector<sherd::SafetensorsSpec>& tensors, std::int64_t max_file_bytes) {
  std::vector<std::vector<sherd::SafetensorsSpec>> files(1);
  std::int64_t bytes = 0;
  for (const sherd::SafetensorsSpec& tensor : tensors) {
    if (!files.back().empty() && bytes + bytes_of(tensor) > max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(tensor);
    bytes += bytes_of(tensor);
  }
  return files;
}

}  // namespace

WeightFiles::WeightFiles(std::string folder, const std::vector<sherd::SafetensorsSpec>& tensors,
                         std::int64_t max_file_bytes, std::string stem)
    : folder_(std::move(folder)), stem_(std::move(stem)) {
  const auto files = cut(tensors, max_file_bytes);
  for (std::size_t i = 0; i < files.size(); ++i) {
    names_.push_back(files.size() == 1 ? stem_ + ".safetensors"
                                       : fmt::format("{}-{:05}-of-{:05}.safetensors", stem_, i + 1,
                                                     files.size()));
    files_.emplace_back(folder_ + "/" + names_.back(), files[i],
                        std::map<std::string, std::string>{{"format", "pt"}});
    for (const sherd::SafetensorsSpec& tensor : files[i]) {
      file_of_tensor_[tensor.name] = i;
      tensor_bytes_ += bytes_of(tensor);
    }
  }
}

void WeightFiles::write(const std::string& name, const at::Tensor& values) {
  sherd::SafetensorsWriter& file = files_[file_of_tensor_.at(name)];
  file.write(name, values.const_data_ptr(), values.nbytes());
  unsynced_bytes_ += static_cast<std::int64_t>(values.nbytes());
  if (unsynced_bytes_ >= kMostUnsyncedBytes) {
    file.sync();
    unsynced_bytes_ = 0;
  }
}

void WeightFiles::finish() {
  for (sherd::SafetensorsWriter& file : files_) {
    file.finish();
  }
  if (files_.size() == 1) {
    return;
  }
  nlohmann::json index = {{"metadata", {{"total_size", tensor_bytes_}}}};
  for (const auto& [tensor, file] : file_of_tensor_) {
    index["weight_map"][tensor] = names_[file];
  }
  sherd::files::write_file(fmt::format("{}/{}.safetensors.index.json", folder_, stem_),
                           index.dump(2) + "\n");
}

std::int64_t WeightFiles::file_bytes() const {
  std::int64_t bytes = 0;
  for (const sherd::SafetensorsWriter& file : files_) {
    bytes += static_cast<std::int64_t>(file.file_bytes());
  }
  return bytes;
}

}  // namespace llm::io
