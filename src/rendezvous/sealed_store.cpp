#include "rendezvous/sealed_store.h"

#include <array>
#include <cstdint>
#include <utility>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "files/hex.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

constexpr size_t kSealBytes = 32;
using Seal = std::array<uint8_t, kSealBytes>;

Seal seal_of(const std::string& secret, const std::string& key, const std::vector<uint8_t>& value) {
  std::vector<uint8_t> text(key.begin(), key.end());
  text.push_back(0);  // no key holds one
  text.insert(text.end(), value.begin(), value.end());
  Seal seal{};
  unsigned length = 0;
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), text.data(), text.size(),
           seal.data(), &length) == nullptr) {
    throw Error(ExitCode::Internal, "HMAC-SHA-256 failed.");
  }
  return seal;
}

std::string prefix_from(const std::string& secret) {
  const Seal seal = seal_of(secret, "prefix", {});
  return "sherd-" + files::hex_of(seal.data(), seal.size()) + "/";
}

}  // namespace

SealedStore::SealedStore(c10::intrusive_ptr<c10d::Store> store, std::string secret)
    : store_(std::move(store)), secret_(std::move(secret)), prefix_(prefix_from(secret_)) {}

std::string SealedStore::fingerprint_of(const std::string& secret) {
  const Seal seal = seal_of(secret, "fingerprint", {});
  return files::hex_of(seal.data(), seal.size());
}

std::vector<std::string> SealedStore::places_of(const std::vector<std::string>& keys) const {
  std::vector<std::string> places;
  for (const std::string& key : keys) {
    places.push_back(place_of(key));
  }
  return places;
}

std::vector<uint8_t> SealedStore::sealed(const std::string& key,
                                         const std::vector<uint8_t>& value) const {
  const Seal seal = seal_of(secret_, key, value);
  std::vector<uint8_t> all(seal.begin(), seal.end());
  all.insert(all.end(), value.begin(), value.end());
  return all;
}

std::vector<uint8_t> SealedStore::opened(const std::string& key,
                                         const std::vector<uint8_t>& found) const {
  if (found.size() >= kSealBytes) {
    std::vector<uint8_t> value(found.begin() + kSealBytes, found.end());
    const Seal seal = seal_of(secret_, key, value);
    if (CRYPTO_memcmp(seal.data(), found.data(), kSealBytes) == 0) {
      return value;
    }
  }
  throw Error(ExitCode::Unavailable,
              "the store of the rendezvous holds under '" + key + "' " +
                  std::to_string(found.size()) +
                  " bytes that no rank of this job has written. Another program uses its port: "
                  "set MASTER_PORT to another one, in a network that you trust.");
}

std::vector<uint8_t> SealedStore::compareSet(const std::string& key,
                                             const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& desired) {
  return opened(
      key, store_->compareSet(place_of(key),
                              expected.empty() ? std::vector<uint8_t>{} : sealed(key, expected),
                              sealed(key, desired)));
}

}  // namespace sherd::detail
