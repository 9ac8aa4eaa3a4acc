#pragma once
// One repository at one revision, on its way into the cache.

#include <filesystem>
#include <string>
#include <vector>

#include "llm/hub/cache.h"
#include "llm/hub/listing.h"
#include "llm/hub/settings.h"
#include "net/http.h"

namespace llm::hub {

class Transfer {
 public:
  /// Asks the hub what there is. Throws sherd::Error as list_files() and token_of().
  Transfer(const HubSettings& settings, const Repo& repo, std::string revision, const Say& say,
           Grown grown);

  [[nodiscard]] const Listing& listing() const { return listing_; }
  [[nodiscard]] const RepoCache& cache() const { return cache_; }

  /// Throws sherd::Error(CannotWrite) where files that are not in the cache do not fit.
  void require_room(const std::vector<HubFile>& files) const;

  /// Brings a file, unless the cache has it, gives it its name in the snapshot, and returns it
  /// there. A file appears when its hash is what the hub said; what was begun is gone on with, and
  /// a process that fetches the same file is waited for. Throws sherd::Error: CannotWrite, BadData
  /// (other bytes than the hub said), StorageIo, Unavailable, and what refuse() throws.
  std::filesystem::path bring(const HubFile& file);
  /// The same for several, whose names appear when all of them are there: what is in a snapshot is
  /// taken for all that there is of it.
  void bring_all(const std::vector<HubFile>& files);

  /// Notes what the revision is, and returns the folder of the snapshot.
  [[nodiscard]] std::filesystem::path finish() const;

 private:
  [[nodiscard]] bool has(const HubFile& file) const;
  void bring_bytes(const HubFile& file);
  void fetch(const HubFile& file, const std::filesystem::path& part);
  void ask_for(const HubFile& file, const std::filesystem::path& part);
  [[nodiscard]] sherd::net::Progress progress_of(const HubFile& file, std::uint64_t begun) const;
  void refuse_bytes(const HubFile& file, const std::filesystem::path& part,
                    const std::string& found) const;

  HubSettings settings_;
  const Repo& repo_;
  std::string revision_;
  const Say& say_;
  Grown grown_;
  RepoCache cache_;
  sherd::net::Client client_;
  Listing listing_;
};

}  // namespace llm::hub
