#include "llm/check/scratch_folder.h"

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include <fmt/format.h>

#include "files/system_text.h"
#include "llm/setup/agreement.h"
#include "llm/train/output_folder.h"
#include "sherd/error.h"

namespace llm::check {

namespace {

namespace fs = std::filesystem;

// The nearest folder above the output that is there.
fs::path folder_above(const fs::path& output) {
  fs::path folder = (fs::absolute(output) / "").parent_path().parent_path();
  while (!fs::is_directory(folder) && folder != folder.parent_path()) {
    folder = folder.parent_path();
  }
  return folder;
}

std::string make_folder(const fs::path& above) {
  std::string name = (above / ".sherd-check-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw sherd::Error(sherd::ExitCode::CannotWrite,
                       fmt::format("cannot make a folder {}: {}. A check saves a checkpoint where "
                                   "the run would: make room there, or set train.output.",
                                   name, sherd::files::errno_text(errno)));
  }
  return name;
}

// Under another name first, so that what a rank still writes there finds no folder.
void remove_folder(const fs::path& folder) {
  std::error_code ignored;
  const fs::path gone = folder.string() + ".gone";
  fs::rename(folder, gone, ignored);
  fs::remove_all(gone, ignored);
  fs::remove_all(folder, ignored);
}

}  // namespace

ScratchFolder::ScratchFolder(const fs::path& output, sherd::World& world,
                             const BeginsToBeUndone& begin) {
  path_ = setup::from_rank_0(world, [&] {
    const auto name = std::make_shared<std::string>();
    begin([&] { *name = make_folder(folder_above(output)); }, [name] { remove_folder(*name); });
    removes_ = std::shared_ptr<void>(nullptr, [name](void*) { remove_folder(*name); });
    return *name;
  });
  train::require_seen_by_all(path_, world);
}

}  // namespace llm::check
