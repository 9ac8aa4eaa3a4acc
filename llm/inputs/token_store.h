#pragma once
// The samples of a data source in a mapped file, each block checked when it is first read.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "files/mapped_file.h"
#include "llm/inputs/samples.h"
#include "llm/inputs/store_layout.h"

namespace llm::inputs {

/// A finished store. May be read by several threads at once. Memory: the pages that were read,
/// which all processes of a host share.
class TokenStore final : public SampleSource {
 public:
  /// Maps the file and checks its tail. Null if there is no store at the path, or a damaged one.
  [[nodiscard]] static std::shared_ptr<const TokenStore> open(const std::filesystem::path& path);

  [[nodiscard]] std::size_t size() const override { return lengths_.size(); }
  /// Checks the block's digest when the block is first read. Throws sherd::Error(StorageIo) if it
  /// does not match, and removes the file, so that the next start makes it anew.
  [[nodiscard]] Sample at(std::size_t index) const override;
  [[nodiscard]] std::int64_t length(std::size_t index) const override { return lengths_[index]; }
  [[nodiscard]] std::int64_t supervised(std::size_t index) const override {
    return supervised_[index];
  }
  [[nodiscard]] std::int64_t rejected_begin(std::size_t index) const override {
    return rejected_[index];
  }
  [[nodiscard]] std::int64_t tokens() const override { return tokens_; }
  /// The number of the sample's record among the good ones of the source, from 0. A conversation
  /// may make several samples, which follow one another.
  [[nodiscard]] std::int64_t record(std::size_t index) const { return records_[index]; }
  /// What was kept beside the sample: its record, or nothing. Checks as at().
  [[nodiscard]] std::string_view text(std::size_t index) const;
  /// JSON.
  [[nodiscard]] std::string_view report() const { return report_; }
  /// SHA-256 of all that samples are. Equal where other hosts know the source's files by other
  /// names.
  [[nodiscard]] const std::string& digest() const { return digest_; }

 private:
  explicit TokenStore(const std::filesystem::path& path);
  [[nodiscard]] bool read_tail();
  [[nodiscard]] const StoreBlock& block_of(std::size_t index) const;
  void check(const StoreBlock& block) const;

  std::string path_;
  sherd::files::MappedFile file_;
  std::span<const StoreBlock> blocks_;
  std::span<const std::int32_t> lengths_;
  std::span<const std::int32_t> supervised_;
  std::span<const std::int32_t> records_;
  std::span<const std::int32_t> rejected_;
  std::int64_t tokens_ = 0;
  std::string_view report_;
  std::string digest_;
  std::unique_ptr<std::atomic<bool>[]> checked_;  // [blocks]
};

}  // namespace llm::inputs
