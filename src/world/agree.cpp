#include "world/agree.h"

#include "base/own_work.h"
#include "sherd/error.h"

namespace sherd::detail {

std::vector<std::string> agree(World& world, const std::string& what,
                               const std::function<std::string()>& work) {
  std::string mine;
  try {
    mine = "+" + own_work(work);
  } catch (const Error& error) {
    mine = "-" + std::to_string(static_cast<int>(error.code())) + " " + error.what();
  } catch (const std::exception& error) {
    mine = "-" + std::to_string(static_cast<int>(ExitCode::Internal)) + " " + message_of(error);
  }
  std::vector<std::string> all = world.all_gather(mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] == '-') {
      const size_t space = all[rank].find(' ');
      const int code = std::stoi(all[rank].substr(1, space - 1));
      const std::string where = world.size() == 1 ? "" : ", rank " + std::to_string(rank);
      throw Error(static_cast<ExitCode>(code), what + where + ": " + all[rank].substr(space + 1));
    }
    all[rank].erase(0, 1);
  }
  return all;
}

}  // namespace sherd::detail
