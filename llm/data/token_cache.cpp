#include "llm/data/token_cache.h"

#include <array>
#include <cstring>
#include <iterator>
#include <span>
#include <string_view>
#include <system_error>

#include <fmt/core.h>

#include "files/cache_folder.h"
#include "files/mapped_file.h"
#include "files/output.h"
#include "files/sha256.h"
#include "sherd/error.h"

namespace llm::data {
namespace {

namespace fs = std::filesystem;
namespace files = sherd::files;

// Changes with what a prompt is, and with the layout below.
constexpr std::string_view kRule = "sherd tokens 6";

// How a file begins; the arrays of Samples follow, and after the first of them the indices of
// `unfit`. All in the machine's byte order: the cache stays where it was written.
struct Header {
  std::array<char, 64> digest;  // of all that follows
  std::array<char, 16> rule;
  std::int64_t records;
  std::int64_t skipped;
  std::int64_t samples;
  std::int64_t tokens;
  std::int64_t supervised_tokens;
  std::int64_t longest_tokens;
  std::int64_t contexts_cut;
  std::int64_t answers_cut;
  std::int64_t answers_outside;
  std::int64_t max_length_tokens;
  std::int64_t max_answer_tokens;
  std::int64_t unfit;
};
static_assert(sizeof(Header) % sizeof(std::int64_t) == 0);
static_assert(sizeof(SampleCut) == 12 && alignof(SampleCut) <= sizeof(text::TokenId));

Header header_of(const TokenizedFile& file) {
  const DatasetReport& r = file.report;
  Header header{{},
                {},
                r.records ? 1 : 0,
                r.skipped,
                r.samples,
                r.tokens,
                r.supervised_tokens,
                r.longest_tokens,
                r.contexts_cut,
                r.answers_cut,
                r.answers_outside,
                r.limits.max_length_tokens,
                r.limits.max_answer_tokens,
                std::ssize(r.unfit)};
  kRule.copy(header.rule.data(), header.rule.size());
  return header;
}

DatasetReport report_of(const Header& h, const std::string& name) {
  return {name,
          h.records == 1,
          h.samples,
          h.skipped,
          h.tokens,
          h.supervised_tokens,
          h.longest_tokens,
          h.contexts_cut,
          h.answers_cut,
          h.answers_outside,
          {h.max_length_tokens, h.max_answer_tokens},
          {}};
}

template <class T>
void append(std::string& bytes, std::span<const T> values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

std::string bytes_of(const TokenizedFile& file) {
  Header header = header_of(file);
  std::string bytes;
  append(bytes, std::span<const Header>(&header, 1));
  append(bytes, file.samples.arrays().begins);
  append(bytes, std::span<const std::int64_t>(file.report.unfit));
  append(bytes, file.samples.arrays().ids);
  append(bytes, file.samples.arrays().cuts);
  append(bytes, file.samples.arrays().supervised);
  const std::string digest = files::sha256_of(std::string_view(bytes).substr(sizeof header.digest));
  bytes.replace(0, digest.size(), digest);
  return bytes;
}

bool is_sound(const Header& header, std::string_view bytes) {
  const std::string_view rule(header.rule.data(), kRule.size());
  const std::string_view digest(header.digest.data(), header.digest.size());
  if (rule != kRule || digest != files::sha256_of(bytes.substr(sizeof header.digest))) {
    return false;  // its numbers may be anything
  }
  const std::int64_t size = static_cast<std::int64_t>(sizeof header) +
                            8 * (header.samples + 1 + header.unfit) + 5 * header.tokens +
                            std::int64_t{sizeof(SampleCut)} * header.samples;
  return static_cast<std::size_t>(size) == bytes.size();
}

Samples::Arrays arrays_of(const Header& header, const char* body) {
  const auto samples = static_cast<std::size_t>(header.samples);
  const auto* numbers = reinterpret_cast<const std::int64_t*>(body);
  const auto tokens = static_cast<std::size_t>(header.tokens);
  const auto* ids = reinterpret_cast<const text::TokenId*>(numbers + samples + 1 + header.unfit);
  const auto* cuts = reinterpret_cast<const SampleCut*>(ids + tokens);
  const auto* supervised = reinterpret_cast<const std::uint8_t*>(cuts + samples);
  return {{numbers, samples + 1}, {ids, tokens}, {supervised, tokens}, {cuts, samples}};
}

fs::path folder_of(const std::string& setting) {
  if (setting == "none") {
    return {};
  }
  if (!setting.empty()) {
    return setting;
  }
  return sherd::files::cache_folder("tokens");
}

}  // namespace

std::string token_key(const DataFile& file, const text::PromptEncoder& encoder,
                      const Limit& limit) {
  const text::Tokenizer& tokenizer = encoder.tokenizer();
  std::string what(kRule);
  what += " " + file.sha256 + " " + tokenizer.sha256();
  const text::PromptLimits& limits = encoder.limits();
  for (const std::int64_t number : {limits.max_length_tokens, limits.max_answer_tokens,
                                    limit.samples, std::int64_t{tokenizer.end_id()}}) {
    what += fmt::format(" {}", number);
  }
  if (limit.samples > 0 && limit.random) {
    what += fmt::format(" drawn by {}", limit.seed);
  }
  what += encoder.key();
  const FileReading& reading = file.reading;
  if (reading.side != Side::All) {
    what += fmt::format(" side {} of {}", static_cast<int>(reading.side), reading.held_out);
  }
  if (reading.format != config::DataFormat::Squad) {
    what += fmt::format(" format {}", static_cast<int>(reading.format));
    for (const std::string& column : {reading.columns.prompt, reading.columns.completion}) {
      what += fmt::format(" {} {}", column.size(), column);
    }
    const text::Columns usual;
    for (const auto& [name, column] : {std::pair(usual.messages, reading.columns.messages),
                                       std::pair(usual.text, reading.columns.text)}) {
      if (column != name) {
        what += fmt::format(" {} for {}", column, name);
      }
    }
  }
  return files::sha256_of(what);
}

TokenCache::TokenCache(const std::string& setting) : folder_(folder_of(setting)) {}

std::optional<TokenizedFile> TokenCache::find(const std::string& key,
                                              const std::string& name) const {
  if (folder_.empty()) {
    return std::nullopt;
  }
  const auto mapping = std::make_shared<const files::MappedFile>(folder_ / (key + ".tokens"));
  const std::string_view bytes = mapping->bytes();
  Header header{};
  if (bytes.size() < sizeof header) {
    return std::nullopt;
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (!is_sound(header, bytes)) {
    return std::nullopt;
  }
  const char* body = bytes.data() + sizeof header;
  TokenizedFile found{Samples(mapping, arrays_of(header, body)), report_of(header, name)};
  const auto* unfit = reinterpret_cast<const std::int64_t*>(body) + header.samples + 1;
  found.report.unfit.assign(unfit, unfit + header.unfit);
  files::require_mapped_files();
  return found;
}

std::string TokenCache::write(const std::string& key, const TokenizedFile& tokenized) const {
  if (folder_.empty()) {
    return "";
  }
  try {
    std::error_code error;  // reported below
    fs::create_directories(folder_, error);
    files::write_file((folder_ / (key + ".tokens")).string(), bytes_of(tokenized));
    return "";
  } catch (const sherd::Error& error) {
    return folder_.string() + " cannot be written to: " + error.what();
  }
}

}  // namespace llm::data
