#pragma once
// SHA-256 of a stream of bytes.

#include <cstddef>
#include <memory>
#include <string>

namespace sherd::detail {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(const void* data, std::size_t bytes);
  /// The digest of what was added, in hexadecimal. Once.
  [[nodiscard]] std::string finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace sherd::detail
