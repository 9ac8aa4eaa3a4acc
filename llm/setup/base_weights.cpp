#include "llm/setup/base_weights.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "files/sha256.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"

namespace llm::setup {

namespace {

constexpr std::int64_t kHashedBytes = std::int64_t{64} << 20;  // by one digest
constexpr std::int64_t kReadBytes = std::int64_t{1} << 20;     // at a time
constexpr std::size_t kDigitsOfDigest = 12;                    // in messages

// Of a link, the file that it leads to.
WeightFile weight_file_of(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    throw sherd::Error(sherd::ExitCode::StorageIo, path + ": " + std::strerror(errno));
  }
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return {std::filesystem::path(path).filename().string(), status.st_size,
          status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
}

// A range of a tensor that has a digest of its own.
struct HashedBlock {
  const sherd::SafetensorsFile* file;
  const sherd::SafetensorsEntry* entry;
  std::int64_t begin;  // elements
  std::int64_t end;
  std::string sha256 = {};
};

void hash_block(HashedBlock& block) {
  const auto element = static_cast<std::int64_t>(c10::elementSize(block.entry->dtype));
  const auto buffer = std::make_unique_for_overwrite<char[]>(kReadBytes);
  sherd::files::Sha256 digest;
  const std::int64_t at_a_time = kReadBytes / element;
  for (std::int64_t first = block.begin; first < block.end; first += at_a_time) {
    const std::int64_t end = std::min(first + at_a_time, block.end);
    block.file->prefetch(*block.entry, end, std::min(end + 4 * at_a_time, block.end));
    block.file->read_elements(*block.entry, first, end, block.entry->dtype, buffer.get());
    digest.add(buffer.get(), static_cast<std::size_t>((end - first) * element));
  }
  block.sha256 = digest.finish();
}

struct HashedTensor {
  const sherd::SafetensorsFile* file;
  const sherd::SafetensorsEntry* entry;
};

std::vector<HashedTensor> tensors_by_name(const sherd::SafetensorsFolder& weights) {
  std::vector<HashedTensor> tensors;
  for (const sherd::SafetensorsFile& file : weights.files()) {
    for (const sherd::SafetensorsEntry& entry : file.entries()) {
      tensors.push_back({&file, &entry});
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const HashedTensor& one, const HashedTensor& other) {
    return one.entry->name < other.entry->name;
  });
  return tensors;
}

// Of a dtype that is not read the header counts: where it is needed it is refused.
std::vector<HashedBlock> blocks_of(const std::vector<HashedTensor>& tensors) {
  std::vector<HashedBlock> blocks;
  for (const auto& [file, entry] : tensors) {
    if (entry->dtype == at::ScalarType::Undefined) {
      continue;
    }
    const std::int64_t at_a_time =
        kHashedBytes / static_cast<std::int64_t>(c10::elementSize(entry->dtype));
    for (std::int64_t first = 0; first < entry->numel(); first += at_a_time) {
      blocks.push_back({file, entry, first, std::min(first + at_a_time, entry->numel())});
    }
  }
  return blocks;
}

std::string digest_of_weights(const sherd::SafetensorsFolder& weights) {
  const std::vector<HashedTensor> tensors = tensors_by_name(weights);
  std::vector<HashedBlock> blocks = blocks_of(tensors);
  at::parallel_for(0, std::ssize(blocks), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      hash_block(blocks[static_cast<std::size_t>(i)]);
    }
  });
  std::string content;
  for (const HashedTensor& tensor : tensors) {
    content += fmt::format("{} {} {}\n", tensor.entry->name, tensor.entry->dtype_name,
                           fmt::join(tensor.entry->shape, "x"));
  }
  for (const HashedBlock& block : blocks) {
    content += block.sha256 + "\n";
  }
  return sherd::files::sha256_of(content);
}

std::string shown(const BaseWeights& base) {
  return base.sha256.substr(0, kDigitsOfDigest) + "…";
}

}  // namespace

BaseWeights base_weights(const std::string& folder, const BaseWeights& known) {
  const sherd::SafetensorsFolder weights(folder);
  BaseWeights found{.folder = std::filesystem::weakly_canonical(folder).string()};
  for (const sherd::SafetensorsFile& file : weights.files()) {
    found.files.push_back(weight_file_of(file.path()));
  }
  std::sort(found.files.begin(), found.files.end(),
            [](const WeightFile& one, const WeightFile& other) { return one.name < other.name; });
  // Siblings may have the same shape, and a packer may have given all files one time.
  const bool is_known =
      !known.empty() && known.folder == found.folder && known.files == found.files;
  found.sha256 = is_known ? known.sha256 : digest_of_weights(weights);
  return found;
}

void require_base(const std::string& folder, const BaseWeights& base, const std::string& checkpoint,
                  const std::string& advice) {
  if (base.empty()) {
    return;
  }
  const BaseWeights found = base_weights(folder, base);
  if (found.sha256 != base.sha256) {
    throw sherd::Error(
        sherd::ExitCode::BadData,
        fmt::format("the checkpoint in '{}' holds only the parameters that were trained, over a "
                    "base whose weights have the SHA-256 {}, and the weights in '{}' have {}: they "
                    "are another base. {}",
                    checkpoint, shown(base), folder, shown(found), advice));
  }
}

}  // namespace llm::setup
