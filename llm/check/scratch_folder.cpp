#include "llm/check/scratch_folder.h"

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include <fmt/format.h>

#include "files/system_text.h"
#include "llm/train/agreement.h"
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

void remove_folder(const fs::path& folder) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

}  // namespace

ScratchFolder::ScratchFolder(
    const fs::path& output, sherd::World& world,
    const std::function<void(std::function<void()>)>& before_an_end_at_once) {
  path_ = train::from_first_rank(world, [&] {
    std::string name = (folder_above(output) / ".sherd-check-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw sherd::Error(
          sherd::ExitCode::CannotWrite,
          fmt::format("cannot make a folder {}: {}. A check saves a checkpoint where "
                      "the run would: make room there, or set train.output.",
                      name, sherd::files::errno_text(errno)));
    }
    return name;
  });
  if (world.rank() == 0) {
    removes_ = std::shared_ptr<void>(nullptr, [path = path_](void*) { remove_folder(path); });
    before_an_end_at_once([path = path_] { remove_folder(path); });
  }
}

}  // namespace llm::check
