#pragma once
// Ranks as threads of the test: real communicators, one process.

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "sherd/world.h"

namespace sherd::test {

/// Calls `body(world)` for each rank on a thread of its own and waits for all. The first exception
/// is thrown again, by rank, after all have ended.
inline void run_ranks(int world_size, const std::function<void(World)>& body,
                      std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  std::vector<World> worlds = World::in_process(world_size, timeout);
  std::vector<std::exception_ptr> failures(worlds.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([&, rank, world = std::move(worlds[rank])]() mutable {
      try {
        body(std::move(world));
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
}

}  // namespace sherd::test
