#include "llm/hub/transfer.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include <fmt/core.h>

#include "files/output.h"
#include "files/system_text.h"
#include "net/url.h"
#include "sherd/error.h"

namespace llm::hub {
namespace {

namespace fs = std::filesystem;
using sherd::Error;
using sherd::ExitCode;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLongestSilence{5'000};
constexpr std::chrono::milliseconds kBetweenCounts{200};

std::string megabytes(std::uint64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6);
}

std::uint64_t size_or_zero(const fs::path& path) {
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

// Without a lock nobody else may write to it.
fs::path incomplete(const fs::path& blob, bool is_locked = true) {
  return blob.string() + ".incomplete" + (is_locked ? "" : "-" + random_suffix());
}

// Removes at its end a file that nobody will go on with.
class PartOfOne {
 public:
  explicit PartOfOne(fs::path path) : path_(std::move(path)) {}
  ~PartOfOne() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  PartOfOne(const PartOfOne&) = delete;
  PartOfOne& operator=(const PartOfOne&) = delete;

 private:
  fs::path path_;
};

std::string escaped_path(const std::string& path) {
  std::string escaped;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    escaped += (begin > 0 ? "/" : "") + sherd::net::escaped(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return escaped;
}

// With the token that may be sent.
HubSettings with_token(HubSettings settings, const Say& say) {
  settings.token = token_of(settings);
  if (!settings.token.empty() && settings.is_open_to_others) {
    settings.token.clear();
    say(
        fmt::format("the token is not sent to {}: the connection is not encrypted. Give an address "
                    "with https in HF_ENDPOINT",
                    shown_place(settings)));
  }
  return settings;
}

}  // namespace

Transfer::Transfer(const HubSettings& settings, const Repo& repo, std::string revision,
                   const Say& say, Grown grown)
    : settings_(with_token(settings, say)),
      repo_(repo),
      revision_(std::move(revision)),
      say_(say),
      grown_(std::move(grown)),
      cache_(settings.cache, repo),
      listing_(list_files(client_, settings_, repo, revision_, say)) {}

void Transfer::require_room(const std::vector<HubFile>& files) const {
  cache_.make_folders();
  std::uint64_t needed = 0;
  for (const HubFile& file : files) {
    const std::uint64_t begun = size_or_zero(incomplete(cache_.blob(file.digest.hex)));
    needed += has(file) || begun > file.size_bytes ? 0 : file.size_bytes - begun;
  }
  std::error_code error;
  const fs::space_info disk = fs::space(settings_.cache, error);
  if (!error && needed > disk.available) {
    throw Error(ExitCode::CannotWrite,
                fmt::format("{} needs {} MB more in {}, where {} MB are free. Make room, or set "
                            "HF_HUB_CACHE to a folder on a larger disk",
                            repo_.name, megabytes(needed), settings_.cache.string(),
                            megabytes(disk.available)));
  }
}

fs::path Transfer::bring(const HubFile& file) {
  bring_bytes(file);
  cache_.link(listing_.commit, file.path, file.digest.hex);
  return cache_.snapshot(listing_.commit) / file.path;
}

void Transfer::bring_all(const std::vector<HubFile>& files) {
  require_room(files);
  for (const HubFile& file : files) {
    bring_bytes(file);
  }
  for (const HubFile& file : files) {
    cache_.link(listing_.commit, file.path, file.digest.hex);
  }
}

void Transfer::bring_bytes(const HubFile& file) {
  cache_.make_folders();
  if (!has(file)) {
    const auto lock = cache_.lock(file.digest.hex, [&] {
      say_(fmt::format("{}: waiting for another process to fetch it", file.path));
    });
    if (!has(file)) {
      const bool is_locked = lock.get() >= 0;
      const fs::path part = incomplete(cache_.blob(file.digest.hex), is_locked);
      const PartOfOne of_one(is_locked ? fs::path() : part);
      fetch(file, part);
    }
  }
}

fs::path Transfer::finish() const {
  cache_.set_commit_of(revision_, listing_.commit);
  return cache_.snapshot(listing_.commit);
}

bool Transfer::has(const HubFile& file) const {
  std::error_code error;
  const std::uint64_t size = fs::file_size(cache_.blob(file.digest.hex), error);
  return !error && size == file.size_bytes;
}

void Transfer::fetch(const HubFile& file, const fs::path& part) {
  const bool was_begun = size_or_zero(part) > 0;
  ask_for(file, part);
  std::string found = digest_of_file(part.string(), file.digest.kind);
  if (was_begun && found != file.digest.hex) {
    say_(fmt::format("{}: the part already there is not its beginning; starting over", file.path));
    std::error_code ignored;
    fs::remove(part, ignored);
    ask_for(file, part);
    found = digest_of_file(part.string(), file.digest.kind);
  }
  if (found != file.digest.hex) {
    refuse_bytes(file, part, found);
  }
  const fs::path blob = cache_.blob(file.digest.hex);
  if (std::rename(part.c_str(), blob.c_str()) != 0) {
    throw Error(ExitCode::StorageIo, fmt::format("{}: cannot be renamed to {}: {}", part.string(),
                                                 blob.string(), sherd::files::errno_text(errno)));
  }
  sherd::files::sync_folder(blob.parent_path().string());
}

void Transfer::ask_for(const HubFile& file, const fs::path& part) {
  const std::uint64_t begun = size_or_zero(part);
  say_(fmt::format("{}: {} MB{}", file.path, megabytes(file.size_bytes),
                   begun > 0 ? fmt::format(", {} of them already there", megabytes(begun)) : ""));
  auto request = request_to(settings_,
                            page_url(settings_.endpoint, repo_) + "/resolve/" + listing_.commit +
                                "/" + escaped_path(file.path),
                            say_);
  request.timeout = std::nullopt;  // as long as bytes come
  const auto response =
      client_.download(request, part.string(), file.size_bytes, progress_of(file, begun));
  if (!response.ok()) {
    refuse(settings_, repo_, revision_, response);
  }
}

// A line now and then, unless somebody counts.
sherd::net::Progress Transfer::progress_of(const HubFile& file, std::uint64_t begun) const {
  return [this, &file, begun, start = Clock::now(), said = Clock::now()](std::uint64_t done,
                                                                         std::uint64_t) mutable {
    const auto now = Clock::now();
    if (now - said < (grown_ ? kBetweenCounts : kLongestSilence)) {
      return;
    }
    said = now;
    if (grown_) {
      grown_(file.path, done, file.size_bytes);
      return;
    }
    const double seconds = std::chrono::duration<double>(now - start).count();
    say_(fmt::format("{}: {} of {} MB, {} MB/s", file.path, megabytes(done),
                     megabytes(file.size_bytes),
                     megabytes(static_cast<std::uint64_t>(
                         static_cast<double>(done - std::min(begun, done)) / seconds))));
  };
}

void Transfer::refuse_bytes(const HubFile& file, const fs::path& part,
                            const std::string& found) const {
  std::error_code ignored;
  fs::remove(part, ignored);
  throw Error(
      ExitCode::BadData,
      fmt::format("{} of {}: the hub lists the {} {}, and the received file has {}. It is not "
                  "kept. Try again; a proxy in between may change files",
                  file.path, repo_.name, name_of(file.digest.kind), file.digest.hex, found));
}

}  // namespace llm::hub
