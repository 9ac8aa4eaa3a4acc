#include "llm/hub/repo.h"

#include "tests/support/expect_error.h"

namespace llm::hub {
namespace {

using sherd::test::expect_error;

TEST(RepoName, IsAnOrganisationAndAName) {
  for (const char* const name :
       {"HuggingFaceTB/SmolLM2-135M-Instruct", "meta-llama/Llama-3.1-8B", "a/b", "x_1/y.z"}) {
    EXPECT_TRUE(is_repo_name(name)) << name;
  }
  for (const char* const name :
       {"", "gpt2", "a/b/c", "/a", "a/", "./b", "../b", "a/..", "a--b/c", "a/b..c", "a b/c", "a/-b",
        "a/b.git", "https://huggingface.co/a/b", "models/mine", "a/b\n"}) {
    EXPECT_FALSE(is_repo_name(name)) << name;
  }
  EXPECT_FALSE(is_repo_name("a/" + std::string(97, 'x')));
}

TEST(RepoName, LeadsToItsFolderAndPages) {
  const Repo model = repo_of(RepoKind::Model, "org/name");
  const Repo data = repo_of(RepoKind::Dataset, "org/name");
  EXPECT_EQ(folder_name(model), "models--org--name");
  EXPECT_EQ(folder_name(data), "datasets--org--name");
  EXPECT_EQ(api_url("http://hub", data), "http://hub/api/datasets/org/name");
  EXPECT_EQ(page_url("http://hub", model), "http://hub/org/name");
  expect_error(
      [] { static_cast<void>(repo_of(RepoKind::Model, "gpt2")); }, sherd::ExitCode::Usage,
      {"'gpt2' is not a name on a hub: give one like HuggingFaceTB/SmolLM2-135M-Instruct"});
}

TEST(HubPath, StaysInItsFolder) {
  for (const char* const path : {"config.json", "a/b.json", "..a", "a..b/c", "é"}) {
    EXPECT_TRUE(is_safe_path(path)) << path;
  }
  for (const char* const path :
       {"", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/../b", "./a", "a\\b", "a\nb"}) {
    EXPECT_FALSE(is_safe_path(path)) << path;
  }
}

TEST(Revision, IsABranchATagOrACommit) {
  for (const char* const revision : {"main", "v1.0", "refs/pr/1"}) {
    check_revision(revision);
    EXPECT_FALSE(is_commit(revision));
  }
  EXPECT_TRUE(is_commit(std::string(40, 'a')));
  for (const char* const revision : {"", "../x", "/x", "a b", "main~1"}) {
    expect_error([&] { check_revision(revision); }, sherd::ExitCode::Usage, {"is not a revision"});
  }
}

}  // namespace
}  // namespace llm::hub
