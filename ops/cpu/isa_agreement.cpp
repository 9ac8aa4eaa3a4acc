#include "ops/cpu/isa_agreement.h"

#include <algorithm>

#include "ops/cpu/isa.h"

namespace sherd::ops::cpu {

std::string agree_on_isa(World& world) {
  const std::vector<std::string> names = world.all_gather(isa_name());
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
  return "all ranks compute on the path \"" + least + "\" of the processor, the best that rank " +
         std::to_string(worst - names.begin()) + " has; rank " +
         std::to_string(better - names.begin()) + " could do \"" + *better + "\"";
}

}  // namespace sherd::ops::cpu
