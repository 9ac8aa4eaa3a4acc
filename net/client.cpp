#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include "files/file_descriptor.h"
#include "files/system_text.h"
#include "net/exchange.h"
#include "net/http.h"
#include "net/url.h"
#include "sherd/error.h"

namespace sherd::net {
namespace {

constexpr int kMostFutileTries = 8;
constexpr std::chrono::milliseconds kFirstPause{250};  // doubled each time

// A file that is grown by what arrives.
class GrowingFile {
 public:
  explicit GrowingFile(const std::string& path)
      : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
    struct stat status = {};
    if (descriptor_.get() < 0 || ::fstat(descriptor_.get(), &status) != 0) {
      throw Error(ExitCode::CannotWrite, path + ": cannot be created: " + files::errno_text(errno));
    }
    size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  }

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }

  void append(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t put =
          ::pwrite(descriptor_.get(), bytes.data(), bytes.size(), static_cast<off_t>(size_bytes_));
      if (put < 0 && errno == EINTR) {
        continue;
      }
      if (put <= 0) {
        fail("writing", put < 0 ? errno : ENOSPC);
      }
      size_bytes_ += static_cast<std::uint64_t>(put);
      bytes.remove_prefix(static_cast<std::size_t>(put));
    }
  }
  void start_over() {
    if (::ftruncate(descriptor_.get(), 0) != 0) {
      fail("emptying it", errno);
    }
    size_bytes_ = 0;
  }
  void sync() {
    if (::fsync(descriptor_.get()) != 0) {
      fail("fsync", errno);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what, int error) const {
    throw Error(ExitCode::StorageIo, path_ + ": " + what + " failed: " + files::errno_text(error));
  }

  std::string path_;
  files::FileDescriptor descriptor_;
  std::uint64_t size_bytes_ = 0;
};

// A number in `text` after `mark`; 0 without one.
std::uint64_t number_after(const std::string& text, const std::string& mark) {
  const std::size_t at = text.find(mark);
  std::uint64_t number = 0;
  if (at != std::string::npos) {
    std::from_chars(text.data() + at + mark.size(), text.data() + text.size(), number);
  }
  return number;
}

// What arrives, on its way into the file.
class Arrival {
 public:
  Arrival(GrowingFile& file, const Progress& progress) : file_(file), progress_(progress) {}

  /// Before each try.
  void begin() {
    asked_from_ = file_.size_bytes();
    total_bytes_ = 0;
    begun_ = false;
  }
  bool take(const Response& response, std::string_view piece) {
    if (!response.ok()) {
      return false;
    }
    place(response);
    file_.append(piece);
    if (progress_) {
      progress_(file_.size_bytes(), total_bytes_);
    }
    return true;
  }
  /// An answer may have no body at all.
  void end(const Response& response) { place(response); }
  [[nodiscard]] bool grew() const { return begun_ && file_.size_bytes() != asked_from_; }

 private:
  void place(const Response& response) {
    if (std::exchange(begun_, true)) {
      return;
    }
    const std::string range = response.header("content-range");
    const bool goes_on = response.status == 206 && number_after(range, "bytes ") == asked_from_;
    if (response.status == 206 && !goes_on) {
      throw Error(ExitCode::Unavailable, "the server was asked for bytes from " +
                                             std::to_string(asked_from_) + " on, and sent '" +
                                             range + "'");
    }
    if (!goes_on && file_.size_bytes() > 0) {
      file_.start_over();
    }
    total_bytes_ =
        goes_on ? number_after(range, "/") : number_after(response.header("content-length"), "");
  }

  GrowingFile& file_;
  const Progress& progress_;
  std::uint64_t asked_from_ = 0;
  std::uint64_t total_bytes_ = 0;
  bool begun_ = false;
};

bool is_worth_another_try(const Exchange& done) {
  constexpr std::array kBroken{
      CURLE_PARTIAL_FILE, CURLE_RECV_ERROR,   CURLE_SEND_ERROR,      CURLE_GOT_NOTHING,
      CURLE_HTTP2,        CURLE_HTTP2_STREAM, CURLE_COULDNT_CONNECT, CURLE_OPERATION_TIMEDOUT};
  const int status = done.response.status;
  return done.result == CURLE_OK
             ? status == 429 || status == 500 || (status >= 502 && status <= 504)
             : std::find(kBroken.begin(), kBroken.end(), done.result) != kBroken.end();
}

}  // namespace

Client::Client() : handle_(std::make_unique<Handle>()) {
  if (handle_->curl == nullptr) {
    throw Error(ExitCode::Internal, "libcurl could not be initialised");
  }
}
Client::~Client() = default;

Response Client::send(const Request& request) {
  Exchange done = exchange(handle_->curl.get(), request, 0, {});
  require_answer(request, done);
  return std::move(done.response);
}

Response Client::download(const Request& request, const std::string& path,
                          const Progress& progress) {
  GrowingFile file(path);
  Arrival arrival(file, progress);
  const TakePiece take = [&](const Response& response, std::string_view piece) {
    return arrival.take(response, piece);
  };
  for (int futile_tries = 0;;) {
    arrival.begin();
    Exchange done = exchange(handle_->curl.get(), request, file.size_bytes(), take);
    if (done.result == CURLE_OK && done.response.ok()) {
      arrival.end(done.response);
      file.sync();
      return std::move(done.response);
    }
    if (done.result == CURLE_OK && done.response.status == 416 && file.size_bytes() > 0) {
      file.start_over();  // what is there cannot be the file's beginning
      continue;
    }
    futile_tries = arrival.grew() ? 0 : futile_tries + 1;
    if (!is_worth_another_try(done) || futile_tries == kMostFutileTries) {
      require_answer(request, done);
      return std::move(done.response);
    }
    std::this_thread::sleep_for(kFirstPause * (1 << std::max(0, futile_tries - 1)));
  }
}

}  // namespace sherd::net
