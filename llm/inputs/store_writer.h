#pragma once
// Writes a token store block by block, so that a process that is killed loses one block at most.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "files/appended_file.h"
#include "llm/inputs/store_layout.h"
#include "llm/text/prompt.h"

namespace llm::inputs {

/// A store that is being written in a folder of its own: the file `blocks`, and `journal`, which
/// has a line for each finished block. Memory: a block.
class StoreWriter {
 public:
  /// Called at points where a process may be killed, by name.
  using AtPoint = std::function<void(const char* name)>;

  /// Continues what the folder holds: blocks whose line in the journal and whose digest are whole.
  /// Throws sherd::Error: CannotWrite, StorageIo.
  StoreWriter(std::filesystem::path folder, std::size_t block_bytes, AtPoint at_point);

  /// What the caller noted at the end of the last finished block; empty if there is none.
  [[nodiscard]] const std::string& state() const { return state_; }
  [[nodiscard]] std::int64_t samples() const { return samples_; }
  /// Adds a sample of a record. Where it begins a new block, `state` notes where the caller is
  /// before it.
  void add(const text::LabelledPrompt& prompt, std::int64_t record, std::string_view text,
           const std::function<std::string()>& state);
  /// Finishes the last block, noting `state`, and counts samples whose tokens and marks another
  /// sample before them has too. Memory: 64 MiB at most.
  [[nodiscard]] std::int64_t finish_blocks(const std::string& state);
  /// Writes the tail and gives the store its name. Call finish_blocks() before.
  void publish(const std::filesystem::path& path, const std::string& report);

 private:
  struct Pending;
  void read_journal();
  void finish_block(const std::string& state);
  [[nodiscard]] std::string tail(const std::string& report) const;
  void require_blocks(std::string_view mapped) const;

  std::filesystem::path folder_;
  std::size_t block_bytes_;
  AtPoint at_point_;
  std::string state_;
  std::vector<StoreBlock> blocks_;
  std::int64_t samples_ = 0;
  std::int64_t end_ = 0;  // of the last finished block
  std::shared_ptr<Pending> pending_;
  std::unique_ptr<sherd::files::AppendedFile> file_;
  std::unique_ptr<sherd::files::AppendedFile> journal_;
};

}  // namespace llm::inputs
