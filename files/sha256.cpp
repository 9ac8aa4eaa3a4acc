#include "files/sha256.h"

#include <array>

#include <openssl/evp.h>

#include "files/hex.h"
#include "sherd/error.h"

namespace sherd::files {

namespace {

void check_digest(int status) {
  if (status != 1) {
    throw Error(ExitCode::Internal, "OpenSSL cannot compute SHA-256");
  }
}

}  // namespace

struct Sha256::Context {
  EVP_MD_CTX* value = EVP_MD_CTX_new();
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(value); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  check_digest(EVP_DigestInit_ex(context_->value, EVP_sha256(), nullptr));
}

Sha256::~Sha256() = default;

void Sha256::add(const void* data, std::size_t bytes) {
  check_digest(EVP_DigestUpdate(context_->value, data, bytes));
}

std::string Sha256::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  check_digest(EVP_DigestFinal_ex(context_->value, digest.data(), &size));
  return hex_of(digest.data(), size);
}

std::string sha256_of(std::string_view bytes) {
  Sha256 digest;
  digest.add(bytes.data(), bytes.size());
  return digest.finish();
}

}  // namespace sherd::files
