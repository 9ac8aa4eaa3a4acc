#include "llm/hub/fetch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "files/output.h"
#include "files/system_text.h"
#include "llm/hub/cache.h"
#include "llm/hub/choice.h"
#include "llm/hub/listing.h"
#include "net/url.h"
#include "sherd/error.h"

namespace llm::hub {
namespace {

namespace fs = std::filesystem;
using sherd::Error;
using sherd::ExitCode;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLongestSilence{5};

std::string megabytes(std::uint64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6);
}

std::uint64_t size_or_zero(const fs::path& path) {
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

fs::path incomplete(const fs::path& blob) {
  return blob.string() + ".incomplete";
}

// One repository at one revision, on its way into the cache.
class Fetch {
 public:
  Fetch(const HubSettings& settings, const Repo& repo, std::string revision, const Say& say)
      : settings_(settings),
        repo_(repo),
        revision_(std::move(revision)),
        say_(say),
        cache_(settings.cache, repo) {}

  fs::path run() {
    const Listing listing = list_files(client_, settings_, repo_, revision_);
    const Choice choice = choose_model_files(repo_, listing.files);
    if (!choice.pickles.empty()) {
      say_(fmt::format("left out, since pickles can run code when read: {}",
                       fmt::join(choice.pickles, ", ")));
    }
    cache_.make_folders();
    require_room(choice.files);
    for (const HubFile& file : choice.files) {
      bring(file, listing.commit);
      cache_.link(listing.commit, file.path, file.digest.hex);
    }
    cache_.set_commit_of(revision_, listing.commit);
    return cache_.snapshot(listing.commit);
  }

 private:
  [[nodiscard]] bool has(const HubFile& file) const {
    std::error_code error;
    const std::uint64_t size = fs::file_size(cache_.blob(file.digest.hex), error);
    return !error && size == file.size_bytes;
  }

  void require_room(const std::vector<HubFile>& files) const {
    std::uint64_t needed = 0;
    for (const HubFile& file : files) {
      const std::uint64_t begun = size_or_zero(incomplete(cache_.blob(file.digest.hex)));
      needed += has(file) || begun > file.size_bytes ? 0 : file.size_bytes - begun;
    }
    std::error_code error;
    const fs::space_info disk = fs::space(settings_.cache, error);
    if (!error && needed > disk.available) {
      throw Error(ExitCode::CannotWrite,
                  fmt::format("{} needs {} MB more in {}, where {} MB are free. Make room, or let "
                              "HF_HUB_CACHE name a folder of a larger disk",
                              repo_.name, megabytes(needed), settings_.cache.string(),
                              megabytes(disk.available)));
    }
  }

  void bring(const HubFile& file, const std::string& commit) {
    if (has(file)) {
      return;
    }
    const auto lock = cache_.lock(file.digest.hex, [&] {
      say_(fmt::format("{}: waiting for another process that fetches it", file.path));
    });
    if (has(file)) {
      return;
    }
    const fs::path part = incomplete(cache_.blob(file.digest.hex));
    std::error_code ignored;
    if (size_or_zero(part) > file.size_bytes) {
      fs::remove(part, ignored);
    }
    const bool was_begun = size_or_zero(part) > 0;
    transfer(file, commit, part);
    if (was_begun && !is_right(file, part)) {
      say_(fmt::format("{}: what was there of it is not its beginning; once more", file.path));
      fs::remove(part, ignored);
      transfer(file, commit, part);
    }
    require_right(file, part);
    const fs::path blob = cache_.blob(file.digest.hex);
    if (std::rename(part.c_str(), blob.c_str()) != 0) {
      throw Error(ExitCode::StorageIo, fmt::format("{}: cannot be renamed to {}: {}", part.string(),
                                                   blob.string(), sherd::files::errno_text(errno)));
    }
    sherd::files::sync_folder(blob.parent_path().string());
  }

  void transfer(const HubFile& file, const std::string& commit, const fs::path& part) {
    const std::uint64_t begun = size_or_zero(part);
    say_(fmt::format("{}: {} MB{}", file.path, megabytes(file.size_bytes),
                     begun > 0 ? fmt::format(", {} of them are there", megabytes(begun)) : ""));
    if (begun == file.size_bytes && begun > 0) {
      return;
    }
    auto request = request_to(settings_, page_url(settings_.endpoint, repo_) + "/resolve/" +
                                             commit + "/" + escaped_path(file.path));
    request.timeout = std::nullopt;  // as long as bytes come
    const auto response = client_.download(request, part.string(), progress_of(file, begun));
    if (!response.ok()) {
      refuse(settings_, repo_, revision_, response);
    }
  }

  static std::string escaped_path(const std::string& path) {
    std::string escaped;
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      escaped += (begin > 0 ? "/" : "") + sherd::net::escaped(path.substr(begin, end - begin));
      begin = end + 1;
    }
    return escaped;
  }

  // A line now and then; ends a transfer that brings more than the file has.
  sherd::net::Progress progress_of(const HubFile& file, std::uint64_t begun) {
    return [this, &file, begun, start = Clock::now(), said = Clock::now()](std::uint64_t done,
                                                                           std::uint64_t) mutable {
      if (done > file.size_bytes) {
        throw Error(ExitCode::BadData,
                    fmt::format("{}: more bytes come than the {} that the hub said", file.path,
                                file.size_bytes));
      }
      const auto now = Clock::now();
      if (now - said < kLongestSilence) {
        return;
      }
      said = now;
      const double seconds = std::chrono::duration<double>(now - start).count();
      say_(fmt::format("{}: {} of {} MB, {} MB/s", file.path, megabytes(done),
                       megabytes(file.size_bytes),
                       megabytes(static_cast<std::uint64_t>(
                           static_cast<double>(done - std::min(begun, done)) / seconds))));
    };
  }

  [[nodiscard]] static bool is_right(const HubFile& file, const fs::path& part) {
    return size_or_zero(part) == file.size_bytes &&
           digest_of_file(part.string(), file.digest.kind) == file.digest.hex;
  }

  void require_right(const HubFile& file, const fs::path& part) const {
    if (is_right(file, part)) {
      return;
    }
    const std::string found = digest_of_file(part.string(), file.digest.kind);
    const std::uint64_t size = size_or_zero(part);
    std::error_code ignored;
    fs::remove(part, ignored);
    throw Error(
        ExitCode::BadData,
        fmt::format("{} of {}: the hub says {} bytes and the {} {}, and what came has {} bytes and "
                    "{}. It is not kept. Try again; a proxy in between may change files",
                    file.path, repo_.name, file.size_bytes, name_of(file.digest.kind),
                    file.digest.hex, size, found));
  }

  const HubSettings& settings_;
  const Repo& repo_;
  std::string revision_;
  const Say& say_;
  RepoCache cache_;
  sherd::net::Client client_;
};

}  // namespace

void refuse_uncached(const HubSettings& settings, const Repo& repo, const std::string& why) {
  throw Error(ExitCode::InputMissing,
              fmt::format("{} is not whole in the cache {}, and {}. Fetch it where there is a "
                          "network: sherd fetch {}",
                          repo.name, settings.cache.string(), why, repo.name));
}

fs::path fetch_model(const HubSettings& settings, const Repo& repo, const std::string& revision,
                     const Say& say) {
  check_revision(revision);
  if (settings.offline || is_commit(revision)) {
    if (const auto folder = RepoCache(settings.cache, repo).whole_model(revision)) {
      return *folder;
    }
  }
  if (settings.offline) {
    refuse_uncached(settings, repo, "HF_HUB_OFFLINE is set");
  }
  return Fetch(settings, repo, revision, say).run();
}

fs::path cached_or_fetched(const HubSettings& settings, const Repo& repo,
                           const std::string& revision, const Say& say) {
  const RepoCache cache(settings.cache, repo);
  if (const auto folder = cache.whole_model(revision)) {
    return *folder;
  }
  if (settings.offline) {
    refuse_uncached(settings, repo, "HF_HUB_OFFLINE is set");
  }
  const auto lock = cache.lock("sherd", [] {});
  if (const auto folder = cache.whole_model(revision)) {
    return *folder;
  }
  return fetch_model(settings, repo, revision, say);
}

}  // namespace llm::hub
