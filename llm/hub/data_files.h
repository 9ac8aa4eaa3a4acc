#pragma once
// Which files of a data set's repository hold what.

#include <string>
#include <vector>

#include "llm/hub/repo.h"

namespace llm::hub {

/// What is wanted of a data set.
struct DataPart {
  std::string config = {};  ///< a folder of the repository; empty: the only one
  std::string split = {};   ///< "train"; empty: all
};

/// Of a repository's files those of this part, in their order: Parquet and JSON lines. A folder of
/// files is a configuration (`data` and the top are "default"), and the name of a file begins with
/// its split: `plain_text/train-00000-of-00001.parquet`; or its folder is named by it:
/// `plain_text/train/0000.parquet`. "validation" is found as "valid", "val" and "dev" too. Throws
/// sherd::Error: BadData where there is no such file at all, or a file of a split is missing; Usage
/// where one of several configurations has to be named; InputMissing, with the names that there
/// are, for a configuration or a split that is not there.
[[nodiscard]] std::vector<std::string> choose_data_files(const Repo& repo,
                                                         const std::vector<std::string>& paths,
                                                         const DataPart& part);

/// The part that a data path names: "ORG/NAME", "ORG/NAME:SPLIT" or "ORG/NAME:CONFIG/SPLIT".
struct NamedData {
  std::string repo;
  DataPart part;
};
[[nodiscard]] NamedData named_data(const std::string& text);

}  // namespace llm::hub
