#include "state/shard_files.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "files/sha256.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;
// Chunks that the disk reads while one is hashed: threads that share a file look random to the
// kernel's own readahead.
constexpr int64_t kAhead = 4;

[[noreturn]] void damaged(const SafetensorsFile& file, const std::string& name,
                          const std::string& how) {
  throw Error(ExitCode::BadData, file.path() + ": tensor '" + name + "' " + how +
                                     ". The checkpoint is damaged; resume from an older one.");
}

int64_t element_bytes(const SafetensorsEntry& entry) {
  return static_cast<int64_t>(c10::elementSize(entry.dtype));
}

Range common(const Range& a, const Range& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// Has the chunks `skipped` to kAhead after the element `next` read ahead, within the block.
void prefetch(const ShardBlock& block, int64_t skipped, int64_t next, int64_t chunk) {
  block.file->prefetch(*block.entry, std::min(next + skipped * chunk, block.elements.end),
                       std::min(next + (kAhead + 1) * chunk, block.elements.end));
}

}  // namespace

int64_t blocks_in(int64_t bytes, int64_t block_bytes) {
  return block_bytes == 0 ? 1 : (bytes + block_bytes - 1) / block_bytes;
}

void read_verified(const ShardBlock& block, const Range& wanted, const at::Tensor& out) {
  const at::NoGradGuard no_grad;
  const SafetensorsEntry& entry = *block.entry;
  const int64_t at_a_time = kChunkBytes / element_bytes(entry);
  const auto buffer = std::make_unique_for_overwrite<double[]>(kChunkBytes / sizeof(double));
  files::Sha256 digest;
  for (int64_t first = block.elements.begin; first < block.elements.end; first += at_a_time) {
    const Range chunk{first, std::min(first + at_a_time, block.elements.end)};
    prefetch(block, first == block.elements.begin ? 0 : kAhead, chunk.end, at_a_time);
    block.file->read_elements(entry, chunk.begin, chunk.end, entry.dtype, buffer.get());
    digest.add(buffer.get(), static_cast<size_t>(chunk.size() * element_bytes(entry)));
    const Range copied = common(chunk, wanted);
    if (copied.size() > 0) {
      const at::Tensor read = at::from_blob(buffer.get(), {chunk.size()}, entry.dtype);
      out.narrow(0, copied.begin - wanted.begin, copied.size())
          .copy_(read.narrow(0, copied.begin - chunk.begin, copied.size()));
    }
  }
  if (digest.finish() != block.sha256) {
    damaged(*block.file, entry.name,
            "has a different digest from that in the manifest for its elements " +
                std::to_string(block.elements.begin) + " to " + std::to_string(block.elements.end));
  }
}

const SafetensorsFile& ShardFiles::open(const std::string& name) {
  auto& file = files_[name];
  if (!file) {
    file = std::make_unique<SafetensorsFile>(folder_ + "/" + name);
  }
  return *file;
}

std::vector<ShardBlock> ShardFiles::blocks(const CheckpointPiece& piece, const std::string& kind,
                                           const std::string& parameter, int64_t block_bytes,
                                           const Range& wanted) {
  const SafetensorsFile& file = open(piece.file);
  const std::string name = kind + "/" + parameter;
  const SafetensorsEntry* entry = file.find(name);
  const auto digests = piece.sha256.find(kind);
  if (entry == nullptr || entry->numel() != piece.end - piece.begin ||
      digests == piece.sha256.end() ||
      static_cast<int64_t>(digests->second.size()) !=
          blocks_in(entry->numel() * element_bytes(*entry), block_bytes)) {
    damaged(file, name, "does not match the manifest");
  }
  named_.insert(piece.file + "/" + name);
  std::vector<ShardBlock> found;
  const int64_t at_a_time = block_bytes == 0 ? entry->numel() : block_bytes / element_bytes(*entry);
  for (int64_t i = wanted.begin / at_a_time; i * at_a_time < wanted.end; ++i) {
    const Range elements{i * at_a_time, std::min((i + 1) * at_a_time, entry->numel())};
    found.push_back({&file, entry, elements, digests->second[static_cast<size_t>(i)]});
  }
  return found;
}

void ShardFiles::check_all_named() const {
  for (const auto& [name, file] : files_) {
    for (const SafetensorsEntry& entry : file->entries()) {
      if (named_.count(name + "/" + entry.name) == 0) {
        damaged(*file, entry.name, "is not in the manifest");
      }
    }
  }
}

}  // namespace sherd::detail
