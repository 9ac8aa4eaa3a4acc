#include "llm/inputs/source.h"

#include <chrono>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/core.h>
#include <sys/stat.h>

#include "files/input.h"
#include "files/output.h"
#include "files/sha256.h"
#include "sherd/error.h"

namespace llm::inputs {

namespace {

namespace fs = std::filesystem;
namespace files = sherd::files;

constexpr std::int64_t kNanoseconds = 1'000'000'000;

std::int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * kNanoseconds + time.tv_nsec;
}

struct Stamped {
  FileStamp stamp;
  std::int64_t changed = 0;  // nanoseconds since 1970
};

Stamped stamp_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return {};
  }
  return {{status.st_size, fmt::format("{} {} {} {}", status.st_dev, status.st_ino,
                                       nanoseconds(status.st_mtim), nanoseconds(status.st_ctim))},
          nanoseconds(status.st_ctim)};
}

std::string digest_of_file(const std::string& path) {
  constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 20;
  const files::InputFile input = files::open_input(path);
  std::string bytes(kAtOnce, '\0');
  files::Sha256 digest;
  for (std::uint64_t begin = 0; begin < input.size_bytes; begin += kAtOnce) {
    const auto size = static_cast<std::size_t>(std::min(kAtOnce, input.size_bytes - begin));
    files::read_exactly(input.descriptor.get(), path, begin, bytes.data(), size);
    digest.add(bytes.data(), size);
  }
  return digest.finish();
}

std::string note_of(const FileStamp& stamp) {
  return fmt::format("{} {}", stamp.bytes, stamp.identity);
}

std::optional<std::string> noted_digest(const fs::path& note, const FileStamp& stamp) {
  std::ifstream in(note);
  std::string digest;
  std::string of;
  if (!std::getline(in, digest) || !std::getline(in, of) || of != note_of(stamp)) {
    return std::nullopt;
  }
  return digest;
}

// A file that was changed just now may change again within the same tick of its clock.
bool is_settled(const Stamped& stamped) {
  constexpr std::int64_t kTick = 2 * kNanoseconds;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now) - stamped.changed > kTick;
}

std::string digest_of(const std::string& path, const fs::path& digests) {
  const Stamped before = stamp_of(path);
  std::error_code error;
  const fs::path note =
      digests.empty() ? fs::path() : digests / files::sha256_of(fs::absolute(path, error).string());
  if (!note.empty()) {
    if (const auto noted = noted_digest(note, before.stamp)) {
      return *noted;
    }
  }
  std::string digest = digest_of_file(path);
  if (!note.empty() && is_settled(before) && stamp_of(path).stamp == before.stamp) {
    fs::create_directories(digests, error);
    try {
      files::write_file(note.string(), digest + "\n" + note_of(before.stamp) + "\n");
    } catch (const sherd::Error&) {
      // It is taken again at the next start.
    }
  }
  return digest;
}

}  // namespace

Source open_source(const fs::path& path, const FileReading& reading, const fs::path& digests) {
  Source source{find_data_file(path, reading), {}};
  std::string joined;
  for (const NamedBytes& file : source.file.files) {
    source.stamps.push_back(stamp_of(file.name).stamp);
    joined += digest_of(file.name, digests);
  }
  source.file.sha256 = source.stamps.size() > 1 ? files::sha256_of(joined) : joined;
  return source;
}

DataFile whole_file(const Source& source) {
  DataFile file = read_data_file(source.file.name, source.file.reading);
  if (file.sha256 != source.file.sha256) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       fmt::format("{}: changed while it was read. Start again.", file.name));
  }
  return file;
}

void require_unchanged(const Source& source) {
  for (std::size_t i = 0; i < source.stamps.size(); ++i) {
    if (stamp_of(source.file.files[i].name).stamp != source.stamps[i]) {
      throw sherd::Error(
          sherd::ExitCode::BadData,
          fmt::format("{}: changed while it was read. Start again.", source.file.files[i].name));
    }
  }
}

}  // namespace llm::inputs
