#pragma once
// The download of one repository at one revision into the cache.

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
  /// Asks the hub for the list of files. Throws sherd::Error as list_files() and token_of().
  Transfer(const HubSettings& settings, const Repo& repo, std::string revision, const Say& say,
           Grown grown);

  [[nodiscard]] const Listing& listing() const { return listing_; }
  [[nodiscard]] const RepoCache& cache() const { return cache_; }

  /// Throws sherd::Error(CannotWrite) if the missing files do not fit on the disk.
  void require_room(const std::vector<HubFile>& files) const;

  /// Downloads a file unless the cache has it, links it into the snapshot, and returns its path
  /// there. A file appears when its hash matches the hub's. Resumes an interrupted download, and
  /// waits for another process that fetches the same file. Throws sherd::Error: CannotWrite,
  /// BadData (a wrong hash), StorageIo, Unavailable, and the errors of refuse().
  std::filesystem::path bring(const HubFile& file);
  /// The same for several files. They are linked when all are complete, since readers take the
  /// files in a snapshot as all of its files.
  void bring_all(const std::vector<HubFile>& files);

  /// Records the commit of the revision, and returns the folder of the snapshot.
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
