#pragma once
// Where each rank was when an exchange failed.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/progress_board.h"
#include "comm/wait_board.h"
#include "sherd/world.h"

namespace sherd::detail {

/// How an exchange fails.
enum class Failure {
  Lost,      ///< a connection broke, or a message made no sense: a rank is gone or elsewhere
  TimedOut,  ///< all ranks seem to be there, and one is silent
};

/// What the ranks of a world show each other.
struct RankBoards {
  std::shared_ptr<WaitBoard> waits;                   ///< what this rank waits for
  std::shared_ptr<ProgressBoard> progress = nullptr;  ///< of all ranks; null where there is none
  std::chrono::milliseconds timeout{0};               ///< of a wait without progress
  /// Limits each exchange with the store from now on.
  std::function<void(std::chrono::milliseconds)> limit_store = [](std::chrono::milliseconds) {};
};

/// A failed exchange says that a rank is missing, not which. So each rank whose exchange fails
/// notes in the store where it was, and reads what the others of its group noted.
class Roster {
 public:
  /// `patience`: how long to wait for the notes of others, who may have begun to wait later.
  Roster(c10::intrusive_ptr<c10d::Store> store, RankGroup group, int rank,
         std::chrono::milliseconds patience, RankBoards boards)
      : store_(std::move(store)),
        group_(group),
        rank_(rank),
        patience_(patience),
        boards_(std::move(boards)) {}

  /// What the others say.
  struct Report {
    std::string text;  ///< a sentence; empty where the store is gone as well
    Failure failure;   ///< how it began: TimedOut if it was so on any rank
  };
  /// Notes that this rank failed at `what`, and returns what is known of the others. `cause`: what
  /// this rank was told, in one line, for the others to read.
  [[nodiscard]] Report report(const std::string& what, Failure failure,
                              const std::string& cause = "") const;
  /// For a wait that timed out and already knows which rank is missing: what the others waited in,
  /// and whether the store answers.
  [[nodiscard]] std::string elsewhere(const std::string& what) const;
  /// Notes that this rank lost another at `what`, for the others to read, and waits for nobody.
  void note(const std::string& what) const;
  /// Whose it is.
  [[nodiscard]] int rank() const { return rank_; }
  /// The ranks it is for.
  [[nodiscard]] const RankGroup& group() const { return group_; }
  /// Where this rank shows what it waits for.
  [[nodiscard]] WaitBoard& board() const { return *boards_.waits; }
  /// How long a wait without progress lasts.
  [[nodiscard]] std::chrono::milliseconds timeout() const { return boards_.timeout; }
  /// A wait that begins now.
  [[nodiscard]] Patience patience() const { return {boards_.progress.get(), boards_.timeout}; }

 private:
  struct Notes {
    std::string missing;            ///< ranks without one
    std::string store;              ///< a sentence if it does not answer
    std::string elsewhere;          ///< a sentence for each rank that waited in something else
    std::string causes;             ///< a sentence for each other rank that was told one
    std::string last_work;          ///< a sentence for each missing rank that had reported work
    bool others_timed_out = false;  ///< one of them at least
  };
  [[nodiscard]] Notes read_notes(const std::string& what, Failure failure,
                                 const std::string& cause = "") const;
  void wait_for_notes(Failure failure) const;
  [[nodiscard]] std::vector<int> without_note() const;
  [[nodiscard]] bool store_is_lost() const {
    return boards_.progress != nullptr && boards_.progress->is_lost();
  }

  c10::intrusive_ptr<c10d::Store> store_;
  RankGroup group_;
  int rank_;
  std::chrono::milliseconds patience_;
  RankBoards boards_;
};

}  // namespace sherd::detail
