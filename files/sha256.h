#pragma once
// SHA-256, by OpenSSL, which uses the processor's own instructions.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace sherd::files {

/// The digest of a stream of bytes.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(const void* data, std::size_t bytes);
  /// The digest of what was added, as 64 hexadecimal digits. Once.
  [[nodiscard]] std::string finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// The digest of these bytes, as 64 hexadecimal digits.
[[nodiscard]] std::string sha256_of(std::string_view bytes);

}  // namespace sherd::files
