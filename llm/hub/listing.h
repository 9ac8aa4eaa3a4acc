#pragma once
// What a repository holds at a revision, as its hub tells it.

#include <cstdint>
#include <string>
#include <vector>

#include "llm/hub/digest.h"
#include "llm/hub/repo.h"
#include "llm/hub/settings.h"
#include "net/http.h"

namespace llm::hub {

struct HubFile {
  std::string path;  ///< relative, and not leading out of the repository
  std::uint64_t size_bytes = 0;
  Digest digest;
};

struct Listing {
  std::string commit;
  std::vector<HubFile> files;
};

/// Asks the hub, as the token of the settings may. Throws sherd::Error: Unavailable if it cannot be
/// reached, what `refuse` throws for its refusals, BadData for an answer that cannot be right,
/// names a file outside of the repository, or is of another commit than was asked for.
[[nodiscard]] Listing list_files(sherd::net::Client& client, const HubSettings& settings,
                                 const Repo& repo, const std::string& revision, const Say& say);

/// A GET with `settings.token`, tried some times; `say` is told of pauses.
[[nodiscard]] sherd::net::Request request_to(const HubSettings& settings, const std::string& url,
                                             const Say& say);

/// Says why the hub did not give what was asked for. Throws sherd::Error: NotAuthorised (gated, or
/// a token that is not valid), InputMissing (no such repository, revision or file), Unavailable.
[[noreturn]] void refuse(const HubSettings& settings, const Repo& repo, const std::string& revision,
                         const sherd::net::Response& response);

}  // namespace llm::hub
