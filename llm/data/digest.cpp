#include "llm/data/digest.h"

#include <array>

#include <openssl/sha.h>

#include "llm/text/json_file.h"

namespace llm::data {

std::string sha256(std::string_view bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  std::string text;
  for (const unsigned char byte : digest) {
    text += "0123456789abcdef"[byte >> 4U];
    text += "0123456789abcdef"[byte & 15U];
  }
  return text;
}

std::string sha256_of_file(const std::filesystem::path& path) {
  return sha256(text::read_file(path));
}

}  // namespace llm::data
