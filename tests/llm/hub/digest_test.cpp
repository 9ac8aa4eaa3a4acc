#include "llm/hub/digest.h"

#include "files/sha256.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::hub {
namespace {

using sherd::test::TempFolder;

TEST(Digest, OfABlobIsGits) {
  const TempFolder folder;
  // As `git hash-object` says.
  EXPECT_EQ(digest_of_file(folder.write("a", "").string(), Digest::Kind::GitBlob),
            "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(digest_of_file(folder.write("b", "hello\n").string(), Digest::Kind::GitBlob),
            "ce013625030ba8dba906f756967f9e9ca394464a");
}

TEST(Digest, OfALargeFileIsOfAllItsBytes) {
  const TempFolder folder;
  const std::string bytes((std::size_t{3} << 20) + 7, 'x');
  EXPECT_EQ(digest_of_file(folder.write("a", bytes).string(), Digest::Kind::Sha256),
            sherd::files::sha256_of(bytes));
}

TEST(Digest, OfNothingIsAnError) {
  sherd::test::expect_error(
      [] { static_cast<void>(digest_of_file("/no/such", Digest::Kind::Sha256)); },
      sherd::ExitCode::InputMissing, {"/no/such"});
}

}  // namespace
}  // namespace llm::hub
