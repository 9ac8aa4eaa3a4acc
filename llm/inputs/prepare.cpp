#include "llm/inputs/prepare.h"

#include <atomic>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "files/cache_folder.h"
#include "files/folder.h"
#include "files/sha256.h"
#include "launch/spinning.h"
#include "llm/inputs/encoding_pass.h"
#include "llm/inputs/store_lock.h"
#include "llm/inputs/store_report.h"
#include "llm/inputs/store_writer.h"
#include "llm/inputs/subset.h"
#include "sherd/error.h"

namespace llm::inputs {

namespace {

namespace fs = std::filesystem;
namespace files = sherd::files;
using nlohmann::json;

Prepared prepared(std::shared_ptr<const TokenStore> store, const std::string& name) {
  const json report = json::parse(store->report());
  Prepared found{std::move(store), report_of(report.at("report")),
                 bad_samples_of(report.at("skipped")), "", false};
  found.report.name = name;
  return found;
}

// Bad samples may be in the store, and be refused now.
void require_allowed(const Prepared& found, const Source& source) {
  text::BadSamples bad(source.file.name, source.file.reading.bad);
  for (const text::BadSample& sample : found.skipped) {
    bad.add(sample, sample.content);
  }
  static_cast<void>(std::move(bad).skipped());
}

// Makes the store in `folder`, and gives it the name `path`.
void make(const Source& source, const text::PromptEncoder& encoder, const PrepareOptions& options,
          const fs::path& folder, const fs::path& path, StoreLock* lock) {
  EncodingPass pass(source, encoder, options, folder, lock);
  pass.run();
  if (lock != nullptr) {
    lock->require_held();
  }
  pass.publish(path);
}

Prepared made_in(const fs::path& folder, const Source& source, const text::PromptEncoder& encoder,
                 const PrepareOptions& options, const std::string& key) {
  const fs::path path = folder / (key + ".store");
  const fs::path partial = folder / (key + ".partial");
  std::shared_ptr<const TokenStore> store;
  const auto is_done = [&] {
    store = TokenStore::open(path);
    return store != nullptr;
  };
  std::error_code error;  // told by the lock
  const fs::path lock_path = folder / (key + ".lock");
  const bool is_clean = !fs::exists(partial, error) && !fs::exists(lock_path, error);
  if (is_done() && is_clean) {
    return prepared(store, source.file.name);
  }
  fs::create_directories(folder, error);
  const auto waits = [&](const std::string& progress) {
    if (options.on_wait) {
      options.on_wait(progress);
    }
  };
  StoreLock lock(lock_path, is_done, waits);
  const bool makes = lock.is_held() && !is_done();
  if (lock.is_held() && (lock.was_taken_over() || !makes)) {
    files::remove_folder(partial.string());  // a killed writer left it, or one that may still live
  }
  if (makes) {
    make(source, encoder, options, partial, path, &lock);
    store = TokenStore::open(path);
  }
  Prepared found = prepared(store, source.file.name);
  found.was_made = makes;
  return found;
}

// A store for this process alone, whose file has no name.
Prepared made_for_this_process(const Source& source, const text::PromptEncoder& encoder,
                               const PrepareOptions& options) {
  std::string name = (fs::temp_directory_path() / "sherd-tokens-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw sherd::Error(sherd::ExitCode::CannotWrite,
                       fmt::format("{}: no folder for tokens can be made there; set TMPDIR",
                                   fs::temp_directory_path().string()));
  }
  const fs::path folder = name;
  const std::shared_ptr<void> removed(nullptr, [&folder](void* /*none*/) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  });
  make(source, encoder, options, folder / "partial", folder / "store", nullptr);
  Prepared found = prepared(TokenStore::open(folder / "store"), source.file.name);
  found.was_made = true;
  return found;
}

}  // namespace

EncodeRecord record_encoder(const text::PromptEncoder& encoder) {
  return [&encoder](const text::QuestionFile& records, std::size_t index) {
    return encode_samples(records, index, encoder);
  };
}

std::string store_key(const Source& source, const text::PromptEncoder& encoder,
                      const PrepareOptions& options) {
  const text::Tokenizer& tokenizer = encoder.tokenizer();
  const text::PromptLimits& limits = encoder.limits();
  const FileReading& reading = source.file.reading;
  json what = {kStoreMagic,
               source.file.sha256,
               tokenizer.sha256(),
               limits.max_length_tokens,
               limits.max_answer_tokens,
               tokenizer.end_id(),
               tokenizer.stop_ids(),
               encoder.key(),
               options.keeps_records,
               options.limit.samples,
               static_cast<int>(reading.format),
               static_cast<int>(reading.side),
               reading.side == Side::All ? 0 : reading.held_out};
  if (options.limit.samples > 0 && options.limit.random) {
    what.push_back(options.limit.seed);
  }
  if (reading.format != config::DataFormat::Squad) {
    for (const NamedBytes& file : source.file.files) {  // the same bytes may be CSV or TSV
      what.push_back(static_cast<int>(record_reading_of({file.name}, reading).container));
    }
    const text::Columns& columns = reading.columns;
    what.insert(what.end(), {columns.prompt, columns.completion, columns.messages, columns.text});
  }
  return files::sha256_of(dumped(what));
}

Prepared prepare(const Source& source, const text::PromptEncoder& encoder,
                 const PrepareOptions& options) {
  std::string not_kept;
  if (!options.folder.empty()) {
    try {
      Prepared found =
          made_in(options.folder, source, encoder, options, store_key(source, encoder, options));
      require_allowed(found, source);
      return found;
    } catch (const sherd::Error& error) {
      if (error.code() != sherd::ExitCode::CannotWrite) {
        throw;
      }
      not_kept = options.folder.string() + " cannot be written to: " + error.what();
    }
  }
  Prepared found = made_for_this_process(source, encoder, options);
  found.not_kept = not_kept;
  return found;
}

fs::path store_folder(const std::string& setting) {
  if (setting == "none") {
    return {};
  }
  return setting.empty() || setting == "auto" ? files::cache_folder("tokens") : fs::path(setting);
}

fs::path digest_folder(const fs::path& stores) {
  return stores.empty() ? fs::path() : files::cache_folder("sources");
}

text::QuestionFile records_in(const TokenStore& store) {
  text::QuestionFile records;
  records.contexts.emplace_back();
  for (std::size_t i = 0; i < store.size(); ++i) {
    records.questions.push_back(question_of(store.text(i)));
  }
  return records;
}

}  // namespace llm::inputs
