#pragma once
// The hub's list of the files of a repository at a revision.

#include <cstdint>
#include <string>
#include <vector>

#include "llm/hub/digest.h"
#include "llm/hub/repo.h"
#include "llm/hub/settings.h"
#include "net/http.h"

namespace llm::hub {

struct HubFile {
  std::string path;  ///< relative, inside the repository
  std::uint64_t size_bytes = 0;
  Digest digest;
};

struct Listing {
  std::string commit;
  std::vector<HubFile> files;
};

/// Asks the hub with the token of the settings. Throws sherd::Error: Unavailable if the hub cannot
/// be reached, the errors of `refuse` for refusals, BadData for an invalid answer, for a file
/// outside the repository, or for a commit other than the requested one.
[[nodiscard]] Listing list_files(sherd::net::Client& client, const HubSettings& settings,
                                 const Repo& repo, const std::string& revision, const Say& say);

/// Sends a GET with `settings.token`, with some retries; reports pauses through `say`.
[[nodiscard]] sherd::net::Request request_to(const HubSettings& settings, const std::string& url,
                                             const Say& say);

/// Throws the error for a refusal by the hub, sherd::Error: NotAuthorised (gated, or
/// a token that is not valid), InputMissing (no such repository, revision or file), Unavailable.
[[noreturn]] void refuse(const HubSettings& settings, const Repo& repo, const std::string& revision,
                         const sherd::net::Response& response);

}  // namespace llm::hub
