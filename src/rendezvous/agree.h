#pragma once
// Work that may fail on one rank and must then fail on all.

#include <functional>
#include <string>
#include <vector>

#include "sherd/world.h"

namespace sherd::detail {

/// Runs `work` on every rank and returns what each returned, by rank. If it throws on one, every
/// rank throws that rank's Error (or NoRoom). Collective.
[[nodiscard]] std::vector<std::string> agree(World& world, const std::string& what,
                                             const std::function<std::string()>& work);
/// The same for work that returns nothing. Collective.
void on_all_ranks(World& world, const std::string& what, const std::function<void()>& work);

}  // namespace sherd::detail
