// Whether hosts reach each other; between real ones: e2e/hosts_test.cpp.

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "rendezvous/rendezvous.h"
#include "sherd/error.h"

namespace sherd::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

/// The fault that this rank reports; none where all is well.
std::optional<std::string> check_as(c10d::Store& store, int rank, const std::string& address,
                                    milliseconds timeout = milliseconds(20'000)) {
  launch::RankEnvironment environment;
  environment.rank = rank;
  environment.world_size = 3;
  environment.local_rank = rank == 2 ? 1 : 0;  // two hosts, of which the second has two ranks
  try {
    detail::check_reachable(store, environment, address, timeout);
    return std::nullopt;
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
}

/// What each of these ranks reports.
std::vector<std::optional<std::string>> check(const std::vector<int>& ranks,
                                              const std::string& address_of_1,
                                              milliseconds timeout = milliseconds(20'000)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::future<std::optional<std::string>>> under_way;
  for (const int rank : ranks) {
    under_way.push_back(std::async(std::launch::async, [&, rank] {
      return check_as(*store, rank, rank == 1 ? address_of_1 : "127.0.0.1", timeout);
    }));
  }
  std::vector<std::optional<std::string>> faults;
  for (auto& one : under_way) {
    faults.push_back(one.get());
  }
  return faults;
}

TEST(Reachability, IsSilentWhereAllReachAll) {
  for (const auto& fault : check({0, 1, 2}, "127.0.0.2")) {
    EXPECT_EQ(fault, std::nullopt);
  }
}

// One that cannot even listen tells the others, which would wait for a minute.
TEST(Reachability, ARankThatCannotGoOnEndsAllAlike) {
  const auto start = std::chrono::steady_clock::now();
  for (const auto& fault : check({0, 1, 2}, "192.0.2.1")) {
    EXPECT_THAT(fault.value_or(""), HasSubstr("69 cannot listen on 192.0.2.1:0"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
}

TEST(Reachability, RankZeroTellsTheOthersWhoIsSilent) {
  const auto faults = check({0, 2}, "127.0.0.1", milliseconds(500));
  for (const auto& fault : faults) {
    EXPECT_THAT(fault.value_or(""), HasSubstr("76 [World] rank 1 came and then did not say"));
  }
}

}  // namespace
}  // namespace sherd::test
