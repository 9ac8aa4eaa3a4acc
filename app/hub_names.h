#pragma once
// Names on a hub, ORG/NAME, where a path is expected.

#include <optional>
#include <string>
#include <vector>

#include "app/rank.h"
#include "llm/config/run_config.h"
#include "llm/hub/settings.h"
#include "llm/track/progress.h"
#include "llm/train/agreement.h"
#include "sherd/world.h"

namespace app {

struct HubNameOptions {
  bool may_fetch = true;             ///< else only the cache is looked into
  bool data_may_be_missing = false;  ///< says so, and leaves the name where it is
  bool json_on_stdout = false;       ///< lines for people go to standard error
  /// Through which they go, and which counts what comes; null: none is there.
  llm::track::Progress* progress = nullptr;
};

/// Whether a path stands for a model on a hub: it is no path that is there, nor is its parent.
[[nodiscard]] bool is_name_on_hub(const std::string& path);
/// The same of a data set.
[[nodiscard]] bool is_data_on_hub(const std::string& path);

/// Counts what comes of files, for llm::hub; null: nobody does.
[[nodiscard]] llm::hub::Grown counted_in_megabytes(llm::track::Progress* progress);

/// Puts paths of the hub's cache in the place of names. A path that is there, or whose parent is,
/// is no such name. Throws sherd::Error: InputMissing for a name that may not be fetched, and as
/// llm::hub::cached_or_fetched_model() and _data(). On a rank, before it meets the others: of a
/// host's processes one fetches, while the others wait for it. The one that tried, or else the
/// first of the host, speaks for all there: the others throw llm::train::ReportedElsewhere.
class HubNames {
 public:
  /// `rank`: null in a program that is alone.
  explicit HubNames(const HubNameOptions& options, const Rank* rank = nullptr);

  /// model.path, data.train and data.eval of a configuration.
  void resolve(llm::config::RunConfig& config);
  /// A model's folder; `key` is the flag or key that it was given by.
  void resolve_model(std::string& path, const std::string& key);
  /// A data set: ORG/NAME, ORG/NAME:SPLIT or ORG/NAME:CONFIG/SPLIT. Several files of a split become
  /// one path with a `*`.
  void resolve_data(std::string& path, const std::string& key);

  /// Throws RanksDisagree where a name stands for different commits of a model on the ranks.
  /// Collective.
  void require_same(sherd::World& world) const;

 private:
  void resolve_list(std::vector<llm::config::DataSet>& sets, const std::string& key, bool trains);
  [[nodiscard]] std::string path_of_split(const std::string& name, const std::string& key,
                                          const char* usual_split);
  [[nodiscard]] std::vector<std::string> data_files(const std::string& name, const std::string& key,
                                                    const char* usual_split);
  template <class Work>
  auto for_all(const std::string& key, const std::string& name, const char* what, const Work& work);
  void tell(const std::string& line) const;

  HubNameOptions options_;
  const Rank* rank_;
  bool tried_ = false;
  llm::train::Settings commits_;
};

}  // namespace app
