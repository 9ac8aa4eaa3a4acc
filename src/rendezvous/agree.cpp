#include "rendezvous/agree.h"

#include "sherd/error.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

// How a rank's text begins.
constexpr char kResult = '+';
constexpr char kFault = '-';
constexpr char kNoRoom = '!';

}  // namespace

std::vector<std::string> agree(World& world, const std::string& what,
                               const std::function<std::string()>& work) {
  std::string mine;
  try {
    mine = kResult + own_work(work);
  } catch (const Error& error) {
    const bool no_room = dynamic_cast<const NoRoom*>(&error) != nullptr;
    mine = std::string(1, no_room ? kNoRoom : kFault) +
           std::to_string(static_cast<int>(error.code())) + " " + error.what();
  } catch (const std::exception& error) {
    mine = kFault + std::to_string(static_cast<int>(ExitCode::Internal)) + " " + message_of(error);
  }
  std::vector<std::string> all = world.all_gather(mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (const char kind = all[rank][0]; kind != kResult) {
      const size_t space = all[rank].find(' ');
      const auto code = static_cast<ExitCode>(std::stoi(all[rank].substr(1, space - 1)));
      const std::string where = world.size() == 1 ? "" : ", rank " + std::to_string(rank);
      const std::string message = what + where + ": " + all[rank].substr(space + 1);
      if (kind == kNoRoom) {
        throw NoRoom(code, message);
      }
      throw Error(code, message);
    }
    all[rank].erase(0, 1);
  }
  return all;
}

void on_all_ranks(World& world, const std::string& what, const std::function<void()>& work) {
  static_cast<void>(agree(world, what, [&] {
    work();
    return std::string();
  }));
}

}  // namespace sherd::detail
