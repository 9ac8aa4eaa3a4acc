// What a hub's refusals mean, and what to do about them.

#include <fmt/core.h>

#include "llm/hub/listing.h"
#include "net/url.h"
#include "sherd/error.h"

namespace llm::hub {
namespace {

using sherd::Error;
using sherd::ExitCode;

std::string how_to_log_in(const HubSettings& settings) {
  return fmt::format("create a token at {} and set it in HF_TOKEN, or run `hf auth login`",
                     shown_place(settings, "/settings/tokens"));
}

std::string page_of(const HubSettings& settings, const Repo& repo) {
  return sherd::net::shown(page_url(settings.endpoint, repo));
}

[[noreturn]] void refuse_gated(const HubSettings& settings, const Repo& repo) {
  const std::string page = page_of(settings, repo);
  throw Error(ExitCode::NotAuthorised,
              settings.token.empty()
                  ? fmt::format("{} is gated, and no token was sent: accept its conditions at {}, "
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
      fmt::format("{} has no {} {}, or it is private and {}. Check the name{}",
                  shown_place(settings), name_of(repo.kind), repo.name,
                  settings.token.empty() ? "needs a token" : "the token's account may not see it",
                  settings.token.empty() ? "; for a private one " + how_to_log_in(settings) : ""));
}

// The hosts of large files know nothing of tokens and repositories.
[[noreturn]] void refuse_by_storage(const Repo& repo, const sherd::net::Response& response) {
  throw Error(ExitCode::Unavailable,
              fmt::format("{}: the hub redirects to this host for a file of {}, and it returned "
                          "status {}. Try again: such links expire soon; what has been fetched is "
                          "kept. A proxy or a firewall may be in between",
                          sherd::net::shown(response.url), repo.name, response.status));
}

std::string in_brackets(int status, const std::string& said) {
  return fmt::format("(status {}{})", status, said.empty() ? "" : ": " + said);
}

}  // namespace

void refuse(const HubSettings& settings, const Repo& repo, const std::string& revision,
            const sherd::net::Response& response) {
  if (sherd::net::origin_of(response.url) != sherd::net::origin_of(settings.endpoint)) {
    refuse_by_storage(repo, response);
  }
  const std::string code = response.header("x-error-code");
  const std::string said = sherd::net::printable(response.header("x-error-message"));
  const bool bad_token = said.find("Invalid credentials") != std::string::npos;
  if (code == "GatedRepo") {
    refuse_gated(settings, repo);
  }
  if (code == "RevisionNotFound") {
    throw Error(ExitCode::InputMissing,
                fmt::format("{} has no revision '{}'. Branches and tags are listed at {}/tree/main",
                            repo.name, revision, page_of(settings, repo)));
  }
  if (code == "EntryNotFound") {
    throw Error(ExitCode::InputMissing,
                fmt::format("{}: the hub lists this file but does not have it. Try again later",
                            sherd::net::shown(response.url)));
  }
  if (code == "RepoNotFound" || response.status == 404 || (response.status == 401 && !bad_token)) {
    refuse_missing(settings, repo);
  }
  const std::string status = in_brackets(response.status, said);
  if (bad_token) {
    throw Error(ExitCode::NotAuthorised,
                fmt::format("{} refuses the token {}. It may have expired: {}",
                            shown_place(settings), status, how_to_log_in(settings)));
  }
  if (response.status == 403) {
    throw Error(
        ExitCode::NotAuthorised,
        fmt::format("{} refuses {} {}. {}", shown_place(settings), repo.name, status,
                    settings.token.empty() ? "With a token it may not: " + how_to_log_in(settings)
                                           : "The token's account, or the token itself, "
                                             "may not have the right to read it"));
  }
  throw Error(
      ExitCode::Unavailable,
      fmt::format("{} answers for {} with status {}{}. {}", shown_place(settings), repo.name,
                  response.status, said.empty() ? "" : ": " + said,
                  response.status == 429 ? "It accepts no more requests for now: wait a few "
                                           "minutes; with a token (HF_TOKEN) it accepts more"
                                         : "Try again later; what has been fetched is kept"));
}

}  // namespace llm::hub
