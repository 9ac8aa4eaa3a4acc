#include "llm/hub/cache.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <set>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "files/hex.h"
#include "files/input.h"
#include "files/output.h"
#include "files/system_text.h"
#include "llm/hub/weight_index.h"
#include "sherd/error.h"

namespace llm::hub {
namespace {

namespace fs = std::filesystem;
using sherd::Error;
using sherd::ExitCode;

[[noreturn]] void cannot_write(const fs::path& path, const std::string& why) {
  throw Error(
      ExitCode::CannotWrite,
      fmt::format("{}: cannot be created: {}. HF_HUB_CACHE (or HF_HOME) can name another cache",
                  path.string(), why));
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    cannot_write(folder, error.message());
  }
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);  // what a link leads to
}

// True if all files named by the index of a model's weights exist.
bool has_all_shards(const fs::path& snapshot) {
  if (!is_file(snapshot / kWeightIndex)) {
    return false;
  }
  try {
    const std::set<std::string> files = weight_files(snapshot / kWeightIndex);
    return std::all_of(files.begin(), files.end(),
                       [&](const std::string& file) { return is_file(snapshot / file); });
  } catch (const Error&) {
    return false;
  }
}

// Whether a lock's file is still the one of its name: who cleans a cache may remove it.
bool is_at(const sherd::files::FileDescriptor& file, const fs::path& path) {
  struct stat opened = {};
  struct stat named = {};
  return ::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

std::string random_suffix() {
  std::random_device device;  // of the kernel
  const std::array<unsigned int, 2> bits{device(), device()};
  return sherd::files::hex_of(bits.data(), sizeof bits);
}

RepoCache::RepoCache(fs::path cache, const Repo& repo)
    : cache_(std::move(cache)), folder_(cache_ / folder_name(repo)) {}

fs::path RepoCache::blob(const std::string& digest) const {
  return folder_ / "blobs" / digest;
}

fs::path RepoCache::snapshot(const std::string& commit) const {
  return folder_ / "snapshots" / commit;
}

std::optional<std::string> RepoCache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) {
    return revision;
  }
  const fs::path ref = folder_ / "refs" / revision;
  if (!is_file(ref)) {
    return std::nullopt;
  }
  constexpr std::uint64_t kMaxRefBytes = 256;
  std::string commit = sherd::files::read_file(ref.string(), kMaxRefBytes);
  commit.erase(commit.find_last_not_of(" \r\n") + 1);
  return is_commit(commit) ? std::optional(commit) : std::nullopt;
}

std::optional<fs::path> RepoCache::whole_model(const std::string& revision) const {
  const auto commit = commit_of(revision);
  if (!commit) {
    return std::nullopt;
  }
  fs::path folder = snapshot(*commit);
  const bool is_whole = is_file(folder / "config.json") && is_file(folder / "tokenizer.json") &&
                        (is_file(folder / "model.safetensors") || has_all_shards(folder));
  return is_whole ? std::optional(std::move(folder)) : std::nullopt;
}

void RepoCache::make_folders() const {
  for (const char* const part : {"blobs", "refs", "snapshots"}) {
    make_folder(folder_ / part);
  }
}

void RepoCache::link(const std::string& commit, const std::string& path,
                     const std::string& digest) const {
  const fs::path link = snapshot(commit) / path;
  make_folder(link.parent_path());
  const fs::path target = fs::relative(blob(digest), link.parent_path());
  std::error_code error;
  if (fs::is_symlink(link, error) && fs::read_symlink(link, error) == target) {
    return;
  }
  const fs::path temporary = link.string() + ".tmp-" + random_suffix();
  fs::create_symlink(target, temporary, error);
  if (error) {
    cannot_write(link, error.message());
  }
  fs::rename(temporary, link, error);  // at once, whatever was there
  if (error) {
    cannot_write(link, error.message());
  }
  sherd::files::sync_folder(link.parent_path().string());
}

void RepoCache::set_commit_of(const std::string& revision, const std::string& commit) const {
  if (is_commit(revision) || commit_of(revision) == commit) {
    return;
  }
  const fs::path ref = folder_ / "refs" / revision;
  make_folder(ref.parent_path());
  sherd::files::write_file(ref.string(), commit);
}

sherd::files::FileDescriptor RepoCache::lock(const std::string& name,
                                             const std::function<void()>& on_wait) const {
  const fs::path folder = cache_ / ".locks" / folder_.filename();
  make_folder(folder);
  const fs::path path = folder / (name + ".lock");
  for (bool waits = false;;) {
    sherd::files::FileDescriptor file(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0664));
    if (file.get() < 0) {
      cannot_write(path, sherd::files::errno_text(errno));
    }
    while (::flock(file.get(), LOCK_EX | (waits ? 0 : LOCK_NB)) != 0) {
      if (errno == EWOULDBLOCK) {
        waits = true;
        on_wait();
      } else if (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK) {
        return {};
      } else if (errno != EINTR) {
        cannot_write(path, sherd::files::errno_text(errno));
      }
    }
    if (is_at(file, path)) {
      return file;
    }
  }
}

}  // namespace llm::hub
