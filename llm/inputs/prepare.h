#pragma once
// Makes the token store of a data source before it is used.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llm/inputs/dataset.h"
#include "llm/inputs/source.h"
#include "llm/inputs/store_layout.h"
#include "llm/inputs/token_store.h"
#include "llm/text/prompt.h"

namespace llm::inputs {

/// Encodes one record to the samples that it yields. Called by several threads. Throws
/// sherd::Error(BadData) for a record that fits in no sample.
using EncodeRecord = std::function<std::vector<text::LabelledPrompt>(
    const text::QuestionFile& records, std::size_t index)>;

/// The rule of training: a record with its first answer is one sample.
[[nodiscard]] EncodeRecord record_encoder(const text::PromptEncoder& encoder);

/// How a store is made.
struct PrepareOptions {
  std::filesystem::path folder = {};  ///< of stores; empty: a temporary file that no other run uses
  Limit limit = {};                   ///< of records
  bool keeps_records = false;         ///< beside the samples, for evaluation
  std::int64_t memory_bytes = std::int64_t{1} << 30;  ///< `data.prepare_memory`
  std::size_t threads = 0;                            ///< 0: one per core
  std::size_t block_bytes = kBlockBytes;
  /// Called now and then with what has been encoded; `unit` is "samples", or "KB" of the source.
  std::function<void(std::int64_t done, std::int64_t total, const std::string& unit)> on_progress =
      {};
  /// Called while another process prepares the same store.
  std::function<void(const std::string& progress)> on_wait = {};
  /// Called at points where a process may be killed: tests.
  std::function<void(const char* point)> at_point = {};
};

/// A source in tokens.
struct Prepared {
  std::shared_ptr<const TokenStore> store;
  DatasetReport report;
  std::vector<text::BadSample> skipped;
  std::string not_kept;   ///< why the next run has to prepare again; empty: it has not
  bool was_made = false;  ///< by this process, now
};

/// What the store depends on, as a SHA-256.
[[nodiscard]] std::string store_key(const Source& source, const text::PromptEncoder& encoder,
                                    const PrepareOptions& options);

/// Returns the store of the source. Makes it if there is none: records are read in order and
/// encoded on all cores, in bounded memory. A process that is killed loses one block at most. Of
/// several processes one makes the store, and the others wait. Throws sherd::Error as
/// load_dataset().
[[nodiscard]] Prepared prepare(const Source& source, const text::PromptEncoder& encoder,
                               const PrepareOptions& options);

/// The folder that a value of data.cache means; empty: none.
[[nodiscard]] std::filesystem::path store_folder(const std::string& setting);
/// Where digests of sources are kept, if stores are: `sherd/sources` beside the default folder of
/// stores; empty: nowhere.
[[nodiscard]] std::filesystem::path digest_folder(const std::filesystem::path& stores);

/// The records of a store that keeps them, one for each sample.
[[nodiscard]] text::QuestionFile records_in(const TokenStore& store);

}  // namespace llm::inputs
