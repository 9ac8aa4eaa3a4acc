#pragma once
// Where the parameters of a resharded unit point: addresses without access rights.

#include <cstdint>
#include <string>
#include <vector>

namespace sherd::detail {

/// The message for the use of a resharded parameter: what happened, and what to do instead.
[[nodiscard]] std::string explain_use(const std::string& parameter, const std::string& unit);

/// A range of addresses without access rights. A resharded unit's parameters lie there, so that a
/// use outside the unit faults at once, at an address that tells which parameter it was.
class ForbiddenRegion {
 public:
  explicit ForbiddenRegion(int64_t bytes);
  ~ForbiddenRegion();
  ForbiddenRegion(const ForbiddenRegion&) = delete;
  ForbiddenRegion& operator=(const ForbiddenRegion&) = delete;

  [[nodiscard]] void* data() const { return data_; }

  /// Says which parameter lies where, for explain(). Parameters are named in order of address.
  void name_parameter(int64_t end_byte, const std::string& parameter, const std::string& unit);
  /// What a fault at `address` means; null where the region does not hold it. Async-signal-safe.
  [[nodiscard]] const std::string* explain(const void* address) const;

 private:
  struct Name {
    int64_t end_byte;
    std::string message;
  };
  void* data_;
  int64_t bytes_;
  std::vector<Name> names_;
};

}  // namespace sherd::detail
