#include "llm/inputs/store_writer.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "files/folder.h"
#include "files/input.h"
#include "files/mapped_file.h"
#include "files/output.h"
#include "files/sha256.h"
#include "sherd/error.h"

namespace llm::inputs {

namespace {

namespace fs = std::filesystem;
namespace files = sherd::files;
using nlohmann::json;

constexpr std::size_t kDigestBytes = std::tuple_size_v<Digest>;

template <class T>
void put(std::string& bytes, std::span<const T> values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// FNV-1a over tokens and marks, with a last mix.
std::uint64_t hash_of(const text::LabelledPrompt& prompt) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (std::size_t i = 0; i < prompt.ids.size(); ++i) {
    const auto token = static_cast<std::uint32_t>(prompt.ids[i]);
    hash = (hash ^ (std::uint64_t{token} << 1U | prompt.supervised[i])) * 0x100000001b3U;
    hash ^= hash >> 29U;
  }
  hash ^= static_cast<std::uint64_t>(prompt.rejected_begin);
  hash = (hash ^ (hash >> 30U)) * 0xbf58476d1ce4e5b9U;
  return hash ^ (hash >> 31U);
}

json to_json(const StoreBlock& block) {
  return {block.offset,  block.bytes,  block.first_sample,
          block.samples, block.tokens, std::string(block.digest.data(), kDigestBytes)};
}

StoreBlock block_of(const json& values) {
  StoreBlock block{values.at(0), values.at(1), values.at(2), values.at(3), values.at(4), {}};
  values.at(5).get<std::string>().copy(block.digest.data(), kDigestBytes);
  return block;
}

// A line of the journal: the digest of what follows, a block, and the caller's state.
struct JournalLine {
  StoreBlock block;
  std::string state;
};

std::string text_of(const JournalLine& line) {
  const std::string body = json{{"block", to_json(line.block)}, {"state", line.state}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
  return files::sha256_of(body) + " " + body + "\n";
}

std::optional<JournalLine> journal_line(const std::string& line) {
  if (line.size() <= kDigestBytes || files::sha256_of(std::string_view(line).substr(
                                         kDigestBytes + 1)) != line.substr(0, kDigestBytes)) {
    return std::nullopt;
  }
  const json body = json::parse(line.begin() + kDigestBytes + 1, line.end());
  return JournalLine{block_of(body.at("block")), body.at("state")};
}

// A finished block.
struct BlockView {
  BlockView(const char* bytes, const StoreBlock& block)
      : BlockView(bytes, BlockLayout(block.samples, block.tokens)) {}

  const std::uint32_t* begins;
  const std::uint8_t* marks;
  const std::int32_t* records;
  const std::int32_t* rejected;

 private:
  BlockView(const char* bytes, const BlockLayout& layout)
      : begins(reinterpret_cast<const std::uint32_t*>(bytes + layout.begins)),
        marks(reinterpret_cast<const std::uint8_t*>(bytes + layout.marks)),
        records(reinterpret_cast<const std::int32_t*>(bytes + layout.records)),
        rejected(reinterpret_cast<const std::int32_t*>(bytes + layout.rejected)) {}
};

}  // namespace

/// The block that is being filled.
struct StoreWriter::Pending {
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint32_t> begins = {0};
  std::vector<std::uint32_t> text_begins = {0};
  std::vector<std::int32_t> records;
  std::vector<std::int32_t> rejected;
  std::vector<text::TokenId> ids;
  std::vector<SampleCut> cuts;
  std::vector<std::uint8_t> marks;
  std::string texts;

  [[nodiscard]] std::size_t bytes() const {
    return BlockLayout(std::ssize(cuts), std::ssize(ids)).texts + texts.size();
  }
  void add(const text::LabelledPrompt& prompt, std::int64_t record, std::string_view text) {
    hashes.push_back(hash_of(prompt));
    records.push_back(static_cast<std::int32_t>(record));
    rejected.push_back(static_cast<std::int32_t>(prompt.rejected_begin));
    ids.insert(ids.end(), prompt.ids.begin(), prompt.ids.end());
    begins.push_back(static_cast<std::uint32_t>(ids.size()));
    cuts.push_back(cut_of(prompt));
    marks.insert(marks.end(), prompt.supervised.begin(), prompt.supervised.end());
    texts += text;
    text_begins.push_back(static_cast<std::uint32_t>(texts.size()));
  }
  [[nodiscard]] std::string to_bytes() const {
    std::string bytes;
    bytes.reserve(this->bytes() + sizeof(std::uint64_t));
    put(bytes, std::span(hashes));
    put(bytes, std::span(begins));
    put(bytes, std::span(text_begins));
    put(bytes, std::span(records));
    put(bytes, std::span(rejected));
    put(bytes, std::span(ids));
    put(bytes, std::span(cuts));
    put(bytes, std::span(marks));
    bytes += texts;
    bytes.resize((bytes.size() + 7) / 8 * 8);
    return bytes;
  }
};

StoreWriter::StoreWriter(fs::path folder, std::size_t block_bytes, AtPoint at_point)
    : folder_(std::move(folder)),
      block_bytes_(block_bytes),
      at_point_(std::move(at_point)),
      pending_(std::make_shared<Pending>()) {
  files::make_folder(folder_.string());
  read_journal();
  const std::string blocks = (folder_ / "blocks").string();
  file_ = std::make_unique<files::AppendedFile>(blocks);
  if (blocks_.empty()) {
    fs::resize_file(blocks, 0);
    file_->append(kStoreMagic);
    end_ = kStoreMagic.size();
  } else {
    fs::resize_file(blocks, static_cast<std::uintmax_t>(end_));  // what was not finished
  }
  std::string kept;
  for (const StoreBlock& block : blocks_) {
    kept += text_of({block, &block == &blocks_.back() ? state_ : ""});
  }
  files::write_file((folder_ / "journal").string(), kept);
  journal_ = std::make_unique<files::AppendedFile>((folder_ / "journal").string());
}

void StoreWriter::read_journal() {
  std::ifstream lines(folder_ / "journal");
  const files::MappedFile blocks((folder_ / "blocks").string());
  if (!blocks.bytes().starts_with(kStoreMagic)) {
    return;
  }
  end_ = kStoreMagic.size();
  for (std::string line; std::getline(lines, line);) {
    const auto next = journal_line(line);
    if (!next || next->block.offset != end_ || next->block.first_sample != samples_ ||
        static_cast<std::size_t>(end_ + next->block.bytes) > blocks.bytes().size() ||
        files::sha256_of(blocks.bytes().substr(static_cast<std::size_t>(end_),
                                               static_cast<std::size_t>(next->block.bytes))) !=
            std::string_view(next->block.digest.data(), kDigestBytes)) {
      break;
    }
    blocks_.push_back(next->block);
    state_ = next->state;
    samples_ += next->block.samples;
    end_ += next->block.bytes;
  }
}

void StoreWriter::add(const text::LabelledPrompt& prompt, std::int64_t record,
                      std::string_view text, const std::function<std::string()>& state) {
  const std::size_t more = prompt.ids.size() * 5 + text.size() + 40;
  if (!pending_->cuts.empty() && pending_->bytes() + more > block_bytes_) {
    finish_block(state());
  }
  pending_->add(prompt, record, text);
  ++samples_;
}

void StoreWriter::finish_block(const std::string& state) {
  const std::string bytes = pending_->to_bytes();
  const auto count = std::ssize(pending_->cuts);
  StoreBlock block{end_, std::ssize(bytes), samples_ - count, count, std::ssize(pending_->ids), {}};
  files::sha256_of(bytes).copy(block.digest.data(), kDigestBytes);
  at_point_("before a block");
  file_->append(std::string_view(bytes).substr(0, bytes.size() / 2));
  at_point_("within a block");
  file_->append(std::string_view(bytes).substr(bytes.size() / 2));
  file_->sync();
  at_point_("after a block");
  journal_->append(text_of({block, state}));
  journal_->sync();
  at_point_("after the journal");
  blocks_.push_back(block);
  end_ += block.bytes;
  *pending_ = Pending();
}

// Another process may have removed the file, or begun it anew.
void StoreWriter::require_blocks(std::string_view mapped) const {
  if (std::ssize(mapped) < end_) {
    throw sherd::Error(
        sherd::ExitCode::StorageIo,
        (folder_ / "blocks").string() + ": another process has changed the file. Start again.");
  }
}

std::int64_t StoreWriter::finish_blocks(const std::string& state) {
  if (!pending_->cuts.empty()) {
    finish_block(state);
  }
  constexpr std::int64_t kHashesAtOnce = std::int64_t{8} << 20;
  const auto passes = static_cast<std::uint64_t>(samples_ / kHashesAtOnce + 1);
  const files::MappedFile file((folder_ / "blocks").string());
  require_blocks(file.bytes());
  std::int64_t duplicates = 0;
  for (std::uint64_t pass = 0; pass < passes; ++pass) {
    std::vector<std::uint64_t> hashes;
    for (const StoreBlock& block : blocks_) {
      const auto* all = reinterpret_cast<const std::uint64_t*>(file.bytes().data() + block.offset);
      std::copy_if(all, all + block.samples, std::back_inserter(hashes),
                   [&](std::uint64_t hash) { return hash % passes == pass; });
    }
    std::sort(hashes.begin(), hashes.end());
    duplicates += hashes.end() - std::unique(hashes.begin(), hashes.end());
  }
  files::require_mapped_files();
  at_point_("after counting duplicates");
  return duplicates;
}

// Its numbers are copied from the blocks one after the other, so that it is there once.
std::string StoreWriter::tail(const std::string& report) const {
  StoreTail head{std::ssize(blocks_), samples_, 0, std::ssize(report)};
  for (const StoreBlock& block : blocks_) {
    head.tokens += block.tokens;
  }
  const files::MappedFile file((folder_ / "blocks").string());
  require_blocks(file.bytes());
  std::string bytes;
  bytes.reserve(sizeof(head) + blocks_.size() * sizeof(StoreBlock) +
                4 * static_cast<std::size_t>(samples_) * sizeof(std::int32_t) + report.size());
  put(bytes, std::span<const StoreTail>(&head, 1));
  put(bytes, std::span<const StoreBlock>(blocks_));
  const auto put_of_blocks = [&](auto&& number_of) {
    for (const StoreBlock& block : blocks_) {
      const BlockView view(file.bytes().data() + block.offset, block);
      for (std::int64_t i = 0; i < block.samples; ++i) {
        const auto number = static_cast<std::int32_t>(number_of(view, i));
        put(bytes, std::span(&number, 1));
      }
    }
  };
  put_of_blocks(
      [](const BlockView& of, std::int64_t i) { return of.begins[i + 1] - of.begins[i]; });
  put_of_blocks([](const BlockView& of, std::int64_t i) {
    return std::count(of.marks + of.begins[i], of.marks + of.begins[i + 1], std::uint8_t{1});
  });
  put_of_blocks([](const BlockView& of, std::int64_t i) { return of.records[i]; });
  put_of_blocks([](const BlockView& of, std::int64_t i) { return of.rejected[i]; });
  files::require_mapped_files();
  return bytes += report;
}

void StoreWriter::publish(const fs::path& path, const std::string& report) {
  const std::string bytes = tail(report);
  StoreFooter footer{end_, std::ssize(bytes), {}};
  files::sha256_of(bytes).copy(footer.digest.data(), kDigestBytes);
  std::string end;
  put(end, std::span<const StoreFooter>(&footer, 1));
  file_->append(bytes);
  at_point_("within the tail");
  file_->append(end);
  file_->sync();
  at_point_("before the name");
  fs::rename(folder_ / "blocks", path);
  files::sync_folder(path.parent_path().string());
  at_point_("after the name");
  files::remove_folder(folder_.string());
}

}  // namespace llm::inputs
