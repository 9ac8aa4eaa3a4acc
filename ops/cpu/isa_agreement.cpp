#include "ops/cpu/isa_agreement.h"

#include <algorithm>

#include "ops/cpu/isa.h"
#include "sherd/error.h"

namespace sherd::ops::cpu {

namespace {

constexpr char kRefused = '!';  // precedes the message of a rank without a path

std::string name_or_refusal() {
  try {
    return isa_name();
  } catch (const Error& error) {
    return kRefused + std::string(error.what());
  }
}

}  // namespace

std::string agree_on_isa(World& world) {
  const std::vector<std::string> names = world.all_gather(name_or_refusal());
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (names[rank].front() == kRefused) {
      throw Error(ExitCode::Usage, "rank " + std::to_string(rank) + ": " + names[rank].substr(1));
    }
  }
  use_isa(least_of(names));
  return isa_notice(names);
}

std::string isa_notice(const std::vector<std::string>& names) {
  const std::string least = name_of(least_of(names));
  const auto better = std::find_if(names.begin(), names.end(),
                                   [&](const std::string& name) { return name != least; });
  if (better == names.end()) {
    return {};
  }
  const auto worst = std::find(names.begin(), names.end(), least);
  return "all ranks use the CPU path \"" + least + "\", the best that rank " +
         std::to_string(worst - names.begin()) + " has; rank " +
         std::to_string(better - names.begin()) + " supports \"" + *better + "\"";
}

}  // namespace sherd::ops::cpu
