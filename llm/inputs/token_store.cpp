#include "llm/inputs/token_store.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include "files/sha256.h"
#include "sherd/error.h"

namespace llm::inputs {

namespace {

namespace files = sherd::files;

// Hashes bytes of a mapped file and leaves their pages to the system's cache.
std::string digest_of_mapped(std::string_view bytes) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 20;
  files::Sha256 digest;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kAtOnce) {
    const std::string_view some = bytes.substr(begin, kAtOnce);
    digest.add(some.data(), some.size());
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto first = reinterpret_cast<std::uintptr_t>(some.data()) & ~(page - 1);
    const auto end = (reinterpret_cast<std::uintptr_t>(some.data()) + some.size()) & ~(page - 1);
    if (end > first) {
      ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
    }
  }
  return digest.finish();
}

std::string_view view_of(const Digest& digest) {
  return {digest.data(), digest.size()};
}

template <class T>
const T* pointer_at(std::string_view bytes, std::size_t offset) {
  return reinterpret_cast<const T*>(bytes.data() + offset);
}

// Blocks follow one another from the magic to the tail, and so do their samples.
bool are_in_order(std::span<const StoreBlock> blocks, const StoreTail& tail,
                  std::int64_t tail_offset) {
  std::int64_t offset = kStoreMagic.size();
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  for (const StoreBlock& block : blocks) {
    if (block.offset != offset || block.first_sample != samples || block.samples < 1 ||
        block.tokens < 0 || block.bytes < 0 || block.bytes > tail_offset - offset ||
        static_cast<std::size_t>(block.bytes) < BlockLayout(block.samples, block.tokens).texts) {
      return false;
    }
    offset += block.bytes;
    samples += block.samples;
    tokens += block.tokens;
  }
  return offset == tail_offset && samples == tail.samples && tokens == tail.tokens;
}

}  // namespace

TokenStore::TokenStore(const std::filesystem::path& path) : path_(path.string()), file_(path_) {}

std::shared_ptr<const TokenStore> TokenStore::open(const std::filesystem::path& path) {
  const std::shared_ptr<TokenStore> store(new TokenStore(path));
  return store->read_tail() ? store : nullptr;
}

bool TokenStore::read_tail() {
  const std::string_view bytes = file_.bytes();
  StoreFooter footer;
  StoreTail tail;
  if (bytes.size() < kStoreMagic.size() + sizeof tail + sizeof footer ||
      !bytes.starts_with(kStoreMagic)) {
    return false;
  }
  std::memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
  const auto offset = static_cast<std::size_t>(footer.tail_offset);
  if (footer.tail_offset < static_cast<std::int64_t>(kStoreMagic.size()) || offset % 8 != 0 ||
      offset > bytes.size() - sizeof footer - sizeof tail ||
      static_cast<std::size_t>(footer.tail_bytes) != bytes.size() - sizeof footer - offset) {
    return false;
  }
  const std::string_view all = bytes.substr(offset, static_cast<std::size_t>(footer.tail_bytes));
  if (files::sha256_of(all) != view_of(footer.digest)) {
    return false;
  }
  std::memcpy(&tail, all.data(), sizeof tail);
  const auto blocks = static_cast<std::size_t>(tail.blocks);
  const auto samples = static_cast<std::size_t>(tail.samples);
  const auto report = static_cast<std::size_t>(tail.report_bytes);
  const std::size_t lengths = sizeof tail + blocks * sizeof(StoreBlock);
  const std::size_t end = lengths + 4 * sizeof(std::int32_t) * samples;
  if (all.size() != end + report) {
    return false;
  }
  blocks_ = {pointer_at<StoreBlock>(all, sizeof tail), blocks};
  lengths_ = {pointer_at<std::int32_t>(all, lengths), samples};
  supervised_ = {pointer_at<std::int32_t>(all, lengths + 4 * samples), samples};
  records_ = {pointer_at<std::int32_t>(all, lengths + 8 * samples), samples};
  rejected_ = {pointer_at<std::int32_t>(all, lengths + 12 * samples), samples};
  report_ = all.substr(end);
  tokens_ = tail.tokens;
  digest_ = files::sha256_of(all.substr(sizeof tail, end - sizeof tail));
  checked_ = std::make_unique<std::atomic<bool>[]>(blocks);
  return are_in_order(blocks_, tail, footer.tail_offset);
}

const StoreBlock& TokenStore::block_of(std::size_t index) const {
  const auto after = std::upper_bound(
      blocks_.begin(), blocks_.end(), static_cast<std::int64_t>(index),
      [](std::int64_t sample, const StoreBlock& block) { return sample < block.first_sample; });
  const StoreBlock& block = *(after - 1);
  check(block);
  return block;
}

void TokenStore::check(const StoreBlock& block) const {
  std::atomic<bool>& checked = checked_[static_cast<std::size_t>(&block - blocks_.data())];
  if (checked.load(std::memory_order_relaxed)) {
    return;
  }
  const std::string digest = digest_of_mapped(file_.bytes().substr(
      static_cast<std::size_t>(block.offset), static_cast<std::size_t>(block.bytes)));
  files::require_mapped_files();
  if (digest != view_of(block.digest)) {
    std::error_code error;
    std::filesystem::remove(path_, error);
    throw sherd::Error(
        sherd::ExitCode::StorageIo,
        fmt::format("{}: the block at byte {} is damaged: its SHA-256 was {} and is now {}. {}",
                    path_, block.offset, view_of(block.digest), digest,
                    error ? "Remove the file and start the same command again."
                          : "The file was removed; start the same command again to prepare the "
                            "data anew."));
  }
  checked.store(true, std::memory_order_relaxed);
}

Sample TokenStore::at(std::size_t index) const {
  const StoreBlock& block = block_of(index);
  const BlockLayout layout(block.samples, block.tokens);
  const std::string_view bytes = file_.bytes().substr(static_cast<std::size_t>(block.offset));
  const std::size_t place = index - static_cast<std::size_t>(block.first_sample);
  const auto* begins = pointer_at<std::uint32_t>(bytes, layout.begins) + place;
  const std::size_t size = begins[1] - begins[0];
  const Sample sample{{pointer_at<text::TokenId>(bytes, layout.ids) + begins[0], size},
                      {pointer_at<std::uint8_t>(bytes, layout.marks) + begins[0], size},
                      pointer_at<SampleCut>(bytes, layout.cuts)[place],
                      rejected_[index]};
  files::require_mapped_files();  // else all may be zeros
  return sample;
}

std::string_view TokenStore::text(std::size_t index) const {
  const StoreBlock& block = block_of(index);
  const BlockLayout layout(block.samples, block.tokens);
  const std::string_view bytes = file_.bytes().substr(static_cast<std::size_t>(block.offset));
  const auto* begins = pointer_at<std::uint32_t>(bytes, layout.text_begins) + index -
                       static_cast<std::size_t>(block.first_sample);
  const std::string_view text = bytes.substr(layout.texts + begins[0], begins[1] - begins[0]);
  files::require_mapped_files();
  return text;
}

}  // namespace llm::inputs
