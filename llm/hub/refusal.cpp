// What a hub's refusals mean, and what to do about them.

#include <fmt/core.h>

#include "llm/hub/listing.h"
#include "sherd/error.h"

namespace llm::hub {
namespace {

using sherd::Error;
using sherd::ExitCode;

std::string how_to_log_in(const HubSettings& settings) {
  return fmt::format(
      "make a token at {}/settings/tokens and give it in HF_TOKEN, or by `hf auth login`",
      settings.endpoint);
}

[[noreturn]] void refuse_gated(const HubSettings& settings, const Repo& repo) {
  const std::string page = page_url(settings.endpoint, repo);
  throw Error(ExitCode::NotAuthorised,
              settings.token.empty()
                  ? fmt::format("{} is gated, and no token was given: accept its conditions at {}, "
                                "then {}",
                                repo.name, page, how_to_log_in(settings))
                  : fmt::format("{} is gated, and the token's account has no access: accept its "
                                "conditions at {} with that account, and wait where its owners "
                                "decide; a fine-grained token needs the right to read gated "
                                "repositories",
                                repo.name, page));
}

[[noreturn]] void refuse_missing(const HubSettings& settings, const Repo& repo) {
  throw Error(
      ExitCode::InputMissing,
      fmt::format("{} has no {} {}, or a private one that {}. Check the name{}", settings.endpoint,
                  repo.kind == RepoKind::Model ? "model" : "data set", repo.name,
                  settings.token.empty() ? "wants a token" : "the token's account may not see",
                  settings.token.empty() ? "; for a private one " + how_to_log_in(settings) : ""));
}

}  // namespace

void refuse(const HubSettings& settings, const Repo& repo, const std::string& revision,
            const sherd::net::Response& response) {
  const std::string code = response.header("x-error-code");
  const std::string said = response.header("x-error-message");
  const bool bad_token = said.find("Invalid credentials") != std::string::npos;
  if (code == "GatedRepo") {
    refuse_gated(settings, repo);
  }
  if (code == "RevisionNotFound") {
    throw Error(ExitCode::InputMissing,
                fmt::format("{} has no revision '{}'. Branches and tags are listed at {}/tree/main",
                            repo.name, revision, page_url(settings.endpoint, repo)));
  }
  if (code == "RepoNotFound" || response.status == 404 || (response.status == 401 && !bad_token)) {
    refuse_missing(settings, repo);
  }
  if (response.status == 401 || response.status == 403) {
    throw Error(ExitCode::NotAuthorised,
                fmt::format("{} refuses {} (status {}{}). The token may have expired: {}",
                            settings.endpoint, repo.name, response.status,
                            said.empty() ? "" : ": " + said, how_to_log_in(settings)));
  }
  throw Error(ExitCode::Unavailable,
              fmt::format("{} answers for {} with status {}{}. {}", settings.endpoint, repo.name,
                          response.status, said.empty() ? "" : ": " + said,
                          response.status == 429
                              ? "It takes no more requests for now: wait some minutes; with a "
                                "token (HF_TOKEN) it takes more"
                              : "Try again later; what has been fetched is kept"));
}

}  // namespace llm::hub
