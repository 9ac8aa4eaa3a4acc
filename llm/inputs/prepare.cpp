#include "llm/inputs/prepare.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "files/cache_folder.h"
#include "files/folder.h"
#include "files/output.h"
#include "files/sha256.h"
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

Prepared prepared(std::shared_ptr<const TokenStore> store, const Source& source) {
  const json report = json::parse(store->report());
  Prepared found{std::move(store), report_of(report.at("report")),
                 bad_samples_of(report.at("skipped"), source.file), "", false};
  found.report.name = source.file.name;
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
  try {
    EncodingPass pass(source, encoder, options, folder, lock);
    pass.run();
    pass.publish(path);
  } catch (const std::exception&) {
    if (lock != nullptr) {
      lock->require_held();  // who took it over removed what was written here
    }
    throw;
  }
}

// Why a process refused the data: those that waited for it would find the same. A note of a start
// before this one is not believed.
class Refusal {
 public:
  Refusal(fs::path path, const Source& source)
      : path_(std::move(path)),
        policy_{source.file.reading.bad.skip, source.file.reading.bad.most_skipped},
        before_(note()) {}

  /// Throws what another process was refused with meanwhile.
  void throw_new() const {
    const json found = note();
    if (found != before_ && found.is_object() && found.at("policy") == policy_) {
      throw sherd::Error(sherd::ExitCode::BadData, found.at("message").get<std::string>());
    }
  }
  void write(const std::string& message) const {
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    try {
      files::write_file(
          path_.string(),
          dumped(
              {{"policy", policy_}, {"message", message}, {"time", now}, {"process", ::getpid()}}));
    } catch (const sherd::Error&) {
      // The others find out by themselves.
    }
  }

 private:
  [[nodiscard]] json note() const {
    std::ifstream file(path_);
    return file ? json::parse(file, nullptr, false) : json();
  }

  fs::path path_;
  json policy_;
  json before_;
};

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
    return prepared(store, source);
  }
  const Refusal refusal(partial / "refused", source);
  fs::create_directories(folder, error);
  const auto waits = [&](const std::string& progress) {
    if (options.on_wait) {
      options.on_wait(progress);
    }
  };
  StoreLock lock(lock_path, is_done, waits);
  const bool makes = lock.is_held() && !is_done();
  if (makes) {
    refusal.throw_new();
  }
  if (lock.is_held() && (lock.was_taken_over() || !makes)) {
    files::remove_folder(partial.string());  // a killed writer left it, or one that may still live
  }
  if (makes) {
    try {
      make(source, encoder, options, partial, path, &lock);
    } catch (const sherd::Error& refused) {
      if (refused.code() == sherd::ExitCode::BadData) {
        refusal.write(refused.what());
      }
      throw;
    }
    store = TokenStore::open(path);
  }
  Prepared found = prepared(store, source);
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
  Prepared found = prepared(TokenStore::open(folder / "store"), source);
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
    what.insert(what.end(), {columns.prompt, columns.completion, columns.messages, columns.text,
                             columns.chosen, columns.rejected});
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

Dataset dataset_of(Prepared found, const Source& source) {
  return {Samples(found.store), std::move(found.report), std::move(found.skipped),
          [store = found.store, files = source.file.files](std::size_t sample) {
            text::Question record = question_of(store->text(sample));
            record.id = place_of(record, files);
            return record;
          },
          found.store->digest()};
}

}  // namespace llm::inputs
