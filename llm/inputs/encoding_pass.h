#pragma once
// One pass over a source that encodes its records into a store.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llm/inputs/ordered_work.h"
#include "llm/inputs/prepare.h"
#include "llm/inputs/record_source.h"
#include "llm/inputs/store_lock.h"
#include "llm/inputs/store_writer.h"
#include "llm/text/bad_sample.h"

namespace llm::inputs {

/// A batch of records, encoded.
struct EncodedBatch {
  /// A sample, or why a record yields none.
  struct Item {
    std::int64_t record = 0;  ///< of the batch's good ones
    text::LabelledPrompt prompt = {};
    std::string text = {};
    ConversationFigures chat = {};  ///< of a record with its first sample
    std::optional<text::BadSample> unfit = {};
  };
  Cursor cursor;
  std::int64_t done = 0;
  std::int64_t good = 0;     ///< records without faults
  std::int64_t others = 0;   ///< records of the other side
  bool are_records = false;  ///< else questions about contexts
  std::vector<text::BadSample> skipped;
  text::UnreadFields unread;
  std::vector<Item> items;
};

/// Which of a source's good records are used where they are drawn.
class DrawnRecords {
 public:
  /// Reads the source where records are drawn: which ones depends on how many there are.
  DrawnRecords(const Source& source, const Limit& limit, std::size_t threads);
  [[nodiscard]] bool has(const Cursor& cursor, std::int64_t record_of_batch) const;

 private:
  std::vector<bool> drawn_;           // [records]; empty: all
  std::vector<std::int64_t> before_;  // records before each batch
};

/// Encodes a source from where an earlier pass ended. One thread runs it.
class EncodingPass {
 public:
  EncodingPass(const Source& source, const text::PromptEncoder& encoder,
               const PrepareOptions& options, const std::filesystem::path& folder, StoreLock* lock);
  /// Encodes what is left. Throws sherd::Error.
  void run();
  /// Gives the store its name. Call after run().
  void publish(const std::filesystem::path& path);

 private:
  void resume();
  void encode_all();
  [[nodiscard]] EncodedBatch encoded(const RecordBatch& batch, const DrawnRecords& drawn) const;
  void consume(EncodedBatch batch);
  void add_faults(EncodedBatch& batch);
  void add_unfit(const EncodedBatch::Item& item);
  void refuse_faults_of_file();
  void require_samples();
  /// Where the pass is: before item `next` of the batch at `cursor`.
  [[nodiscard]] std::string state(const Cursor& cursor, std::int64_t next) const;

  const Source& source_;
  EncodeRecord encode_;
  const text::PromptEncoder& encoder_;
  const PrepareOptions& options_;
  StoreLock* lock_;  // null: nobody else makes this store
  StoreWriter writer_;
  std::size_t threads_;
  Cursor begin_;                           // of the batch to continue with
  std::int64_t next_item_ = 0;             // of that batch
  bool continues_ = false;                 // in a batch whose faults are counted
  bool is_complete_ = false;               // an earlier pass has encoded everything
  std::int64_t most_records_;              // the first so many are used, if none are drawn
  std::int64_t good_ = 0;                  // records without faults, with the batch's
  std::int64_t others_ = 0;                // the same, of the other side
  std::atomic<bool> parses_only_ = false;  // the data will be refused, or enough is encoded
  DatasetReport report_;
  text::BadSamples bad_;
  std::unique_ptr<text::BadSamples> faults_;  // of a file, which may not be skipped
  std::int64_t file_ = 0;                     // of the newest batch
};

}  // namespace llm::inputs
