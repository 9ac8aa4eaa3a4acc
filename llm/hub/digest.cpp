#include "llm/hub/digest.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include <openssl/evp.h>

#include "files/hex.h"
#include "files/input.h"
#include "sherd/error.h"

namespace llm::hub {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

void require(bool done) {
  if (!done) {
    throw sherd::Error(sherd::ExitCode::Internal, "OpenSSL cannot compute a digest");
  }
}

}  // namespace

std::string name_of(Digest::Kind kind) {
  return kind == Digest::Kind::Sha256 ? "SHA-256" : "git blob SHA-1";
}

std::string digest_of_file(const std::string& path, Digest::Kind kind) {
  const sherd::files::InputFile file = sherd::files::open_input(path);
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  const EVP_MD* method = kind == Digest::Kind::Sha256 ? EVP_sha256() : EVP_sha1();
  require(EVP_DigestInit_ex(context.get(), method, nullptr) == 1);
  if (kind == Digest::Kind::GitBlob) {
    const std::string head = "blob " + std::to_string(file.size_bytes);
    require(EVP_DigestUpdate(context.get(), head.c_str(), head.size() + 1) == 1);
  }
  std::vector<char> piece(std::min(kPieceBytes, file.size_bytes));
  for (std::uint64_t at = 0; at < file.size_bytes; at += kPieceBytes) {
    const auto bytes = static_cast<std::size_t>(std::min(kPieceBytes, file.size_bytes - at));
    sherd::files::read_exactly(file.descriptor.get(), path, at, piece.data(), bytes);
    require(EVP_DigestUpdate(context.get(), piece.data(), bytes) == 1);
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  require(EVP_DigestFinal_ex(context.get(), digest.data(), &size) == 1);
  return sherd::files::hex_of(digest.data(), size);
}

}  // namespace llm::hub
