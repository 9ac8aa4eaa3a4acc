#pragma once
// Names on a hub, ORG/NAME, in place of paths.

#include <optional>
#include <string>
#include <vector>

#include "app/rank.h"
#include "llm/config/run_config.h"
#include "llm/hub/settings.h"
#include "llm/setup/agreement.h"
#include "llm/track/progress.h"
#include "sherd/world.h"

namespace app {

struct HubNameOptions {
  bool may_fetch = true;             ///< false: look only into the cache
  bool data_may_be_missing = false;  ///< prints a message and keeps the name
  bool json_on_stdout = false;       ///< lines for people go to standard error
  /// Prints those lines and counts downloaded bytes; may be null.
  llm::track::Progress* progress = nullptr;
};

/// True if `path` names a model on a hub: neither the path nor its parent exists.
[[nodiscard]] bool is_name_on_hub(const std::string& path);
/// The same for a data set.
[[nodiscard]] bool is_data_on_hub(const std::string& path);

/// Returns a counter of downloaded bytes for llm::hub; null if `progress` is null.
[[nodiscard]] llm::hub::Grown counted_in_megabytes(llm::track::Progress* progress);

/// Replaces names on a hub by paths in the hub's cache. A path that exists, or whose parent exists,
/// is not such a name. Throws sherd::Error: InputMissing for a name that may not be fetched, and
/// the errors of llm::hub::cached_or_fetched_model() and _data(). Ranks call this before they meet
/// each other: one process per host fetches, and the others wait. An error is reported by the
/// process that tried, or else by the host's first; the others throw
/// llm::setup::ReportedElsewhere.
class HubNames {
 public:
  /// `rank`: null in a program without ranks.
  explicit HubNames(const HubNameOptions& options, const Rank* rank = nullptr);

  /// Replaces names in model.path, data.train and data.eval.
  void resolve(llm::config::RunConfig& config);
  /// Replaces the name of a model; `key` is its flag or key, for messages. `revision`: a branch,
  /// tag or commit; empty: the main branch.
  void resolve_model(std::string& path, const std::string& key, const std::string& revision = "");
  /// Replaces the name of a data set: ORG/NAME, ORG/NAME:SPLIT or ORG/NAME:CONFIG/SPLIT. Several
  /// files of a split become one path with a `*`.
  void resolve_data(std::string& path, const std::string& key);

  /// Throws RanksDisagree if ranks have different commits of a model. Collective.
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
  llm::setup::Settings commits_;
};

}  // namespace app
