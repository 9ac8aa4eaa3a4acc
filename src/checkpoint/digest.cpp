#include "checkpoint/digest.h"

#include <array>

#include <c10/util/Exception.h>
#include <openssl/evp.h>

namespace sherd::detail {

struct Sha256::Context {
  EVP_MD_CTX* value = EVP_MD_CTX_new();
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(value); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  TORCH_INTERNAL_ASSERT(EVP_DigestInit_ex(context_->value, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::add(const void* data, std::size_t bytes) {
  TORCH_INTERNAL_ASSERT(EVP_DigestUpdate(context_->value, data, bytes) == 1);
}

std::string Sha256::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  TORCH_INTERNAL_ASSERT(EVP_DigestFinal_ex(context_->value, digest.data(), &size) == 1);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4U];
    text += kDigits[digest[i] & 15U];
  }
  return text;
}

}  // namespace sherd::detail
