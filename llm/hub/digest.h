#pragma once
// The hash by which a hub knows a file.

#include <string>

namespace llm::hub {

/// The hub's digest of a file.
struct Digest {
  enum class Kind {
    Sha256,   ///< of large files
    GitBlob,  ///< of others: SHA-1 of "blob SIZE", a NUL and the bytes
  };
  Kind kind = Kind::Sha256;
  std::string hex;
};

/// "SHA-256" or "git blob SHA-1".
[[nodiscard]] std::string name_of(Digest::Kind kind);

/// Returns the hash of a file's bytes in lower-case digits. Throws sherd::Error as files/input.h
/// does.
[[nodiscard]] std::string digest_of_file(const std::string& path, Digest::Kind kind);

}  // namespace llm::hub
