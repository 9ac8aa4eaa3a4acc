#include "files/folder.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>

#include "files/output.h"
#include "files/system_text.h"
#include "sherd/error.h"

namespace sherd::files {

namespace fs = std::filesystem;

namespace {

std::string parent_of(const std::string& path) {
  return fs::absolute(path).lexically_normal().parent_path().string();
}

[[noreturn]] void rename_failed(const std::string& from, const std::string& to) {
  throw_errno(ExitCode::StorageIo, "renaming '" + from + "' to '" + to + "' failed", errno);
}

void rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    rename_failed(from, to);
  }
}

bool is_within(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

}  // namespace

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  const std::string failure = "cannot create the folder '" + folder + "'";
  if (error == std::errc::no_space_on_device || error.value() == EDQUOT) {
    throw_errno(ExitCode::CannotWrite, failure, error.value());
  }
  if (error || !fs::is_directory(folder)) {
    throw Error(ExitCode::CannotWrite,
                failure + ": " + (error ? error.message() : "a file of that name is there") +
                    ". Choose another output folder, or make this one writable.");
  }
}

void remove_folder(const std::string& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error && error != std::errc::not_a_directory) {  // then it is not there: a file is above it
    throw Error(ExitCode::StorageIo, "cannot remove '" + folder + "': " + error.message());
  }
}

void replace_folder(const std::string& from, const std::string& to) {
  struct stat status = {};
  if (::lstat(to.c_str(), &status) != 0) {
    rename_path(from, to);
    sync_folder(parent_of(to));
    return;
  }
  const bool exchanged =
      ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0;
  const std::string old = exchanged ? from : to + ".old";
  if (!exchanged) {
    remove_folder(old);
    rename_path(to, old);
    rename_path(from, to);
  }
  sync_folder(parent_of(to));
  remove_folder(old);
}

void check_link(const std::string& folder, const std::string& file) {
  std::error_code error;
  const fs::path target = fs::canonical(file, error);
  if (error) {
    return;
  }
  const fs::path home = fs::canonical(folder, error);
  const bool is_snapshot = home.parent_path().filename() == "snapshots";
  const fs::path blobs = home.parent_path().parent_path() / "blobs";
  if (!is_within(target, home) && !(is_snapshot && is_within(target, blobs))) {
    throw Error(
        ExitCode::BadData,
        file + ": links to " + target.string() +
            ", outside of its folder: copy the file there, or name the folder it points to");
  }
}

}  // namespace sherd::files
