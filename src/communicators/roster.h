#pragma once
// Who is where, when an exchange has failed.

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "sherd/world.h"

namespace sherd::detail {

/// A failed exchange tells that somebody is missing, not who. So each rank whose exchange fails
/// notes in the store where it was, and reads what the others of its group noted.
class Roster {
 public:
  /// `patience`: how long to wait for the notes of others, who may have begun to wait later.
  Roster(c10::intrusive_ptr<c10d::Store> store, RankGroup group, int rank,
         std::chrono::milliseconds patience)
      : store_(std::move(store)), group_(group), rank_(rank), patience_(patience) {}

  /// Notes that this rank failed at `what`, and answers a sentence about the others; empty where
  /// the store is gone as well.
  [[nodiscard]] std::string report(const std::string& what) const;
  /// The same, where it is known already who is missing: only what the others waited in.
  [[nodiscard]] std::string elsewhere(const std::string& what) const;
  /// Notes that this rank failed at `what`, for the others to read, and waits for nobody.
  void note(const std::string& what) const;

 private:
  struct Notes {
    std::string missing;    ///< ranks without one
    std::string elsewhere;  ///< a sentence for each rank that waited in something else
  };
  [[nodiscard]] Notes read_notes(const std::string& what) const;
  [[nodiscard]] std::string key_of(int rank) const;

  c10::intrusive_ptr<c10d::Store> store_;
  RankGroup group_;
  int rank_;
  std::chrono::milliseconds patience_;
};

}  // namespace sherd::detail
