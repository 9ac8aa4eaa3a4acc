#pragma once
// Selects the files of a data set's repository.

#include <string>
#include <vector>

#include "llm/hub/repo.h"

namespace llm::hub {

/// The requested part of a data set.
struct DataPart {
  std::string config = {};  ///< a folder of the repository; empty: the only one
  std::string split = {};   ///< "train"; empty: all
};

/// Returns the files of this part in their order: Parquet and JSON lines. A folder of files is a
/// configuration (`data` and the top are "default"). A split's name begins the file's name,
/// `plain_text/train-00000-of-00001.parquet`, or names its folder, `plain_text/train/0000.parquet`.
/// "validation" is also found as "valid", "val" and "dev". Throws sherd::Error: BadData if there is
/// no such file at all, or if a file of a split is missing; Usage if one of several configurations
/// has to be named; InputMissing, with the existing names, for an unknown configuration or split.
[[nodiscard]] std::vector<std::string> choose_data_files(const Repo& repo,
                                                         const std::vector<std::string>& paths,
                                                         const DataPart& part);

/// Returns the part that a data path names: "ORG/NAME", "ORG/NAME:SPLIT" or
/// "ORG/NAME:CONFIG/SPLIT".
struct NamedData {
  std::string repo;
  DataPart part;
};
[[nodiscard]] NamedData named_data(const std::string& text);

}  // namespace llm::hub
