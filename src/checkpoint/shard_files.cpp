#include "checkpoint/shard_files.h"

#include <algorithm>
#include <vector>

#include "files/sha256.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

constexpr int64_t kHashedElements = int64_t{1} << 18;  // at a time: 1 MiB of fp32

[[noreturn]] void damaged(const SafetensorsFile& file, const std::string& name,
                          const std::string& how) {
  throw Error(ExitCode::BadData, file.path() + ": tensor '" + name + "' " + how +
                                     ". The checkpoint is damaged; resume from an older one.");
}

std::string digest_of(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  const auto element = static_cast<int64_t>(c10::elementSize(entry.dtype));
  std::vector<char> bytes(static_cast<size_t>(std::min(kHashedElements, entry.numel()) * element));
  files::Sha256 digest;
  for (int64_t begin = 0; begin < entry.numel(); begin += kHashedElements) {
    const int64_t end = std::min(begin + kHashedElements, entry.numel());
    file.read_elements(entry, begin, end, entry.dtype, bytes.data());
    digest.add(bytes.data(), static_cast<size_t>((end - begin) * element));
  }
  return digest.finish();
}

}  // namespace

const SafetensorsFile& ShardFiles::open(const std::string& name) {
  auto& file = files_[name];
  if (!file) {
    file = std::make_unique<SafetensorsFile>(folder_ + "/" + name);
  }
  return *file;
}

const SafetensorsEntry& ShardFiles::verified(const CheckpointPiece& piece, const std::string& kind,
                                             const std::string& parameter) {
  const SafetensorsFile& file = open(piece.file);
  const std::string name = kind + "/" + parameter;
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr || entry->numel() != piece.end - piece.begin ||
      piece.sha256.count(kind) == 0) {
    damaged(file, name, "is not there as the manifest says");
  }
  if (verified_.insert(piece.file + "/" + name).second &&
      digest_of(file, *entry) != piece.sha256.at(kind)) {
    damaged(file, name, "has another digest than the manifest says");
  }
  return *entry;
}

void ShardFiles::check_all_verified() const {
  for (const auto& [name, file] : files_) {
    for (const SafetensorsEntry& entry : file->entries()) {
      if (verified_.count(name + "/" + entry.name) == 0) {
        damaged(*file, entry.name, "is not in the manifest");
      }
    }
  }
}

}  // namespace sherd::detail
