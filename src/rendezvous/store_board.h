#pragma once
// A progress board in the store of the rendezvous.

#include <atomic>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/progress_board.h"

namespace sherd::detail {

/// Between processes. To put a report sends one message and waits for no answer. To read takes two
/// exchanges with the store per rank; each has the limit of the store's connection
/// (limit_connections_to()).
class StoreBoard final : public ProgressBoard {
 public:
  StoreBoard(c10::intrusive_ptr<c10d::Store> store, int world_size);
  void put(int rank, const WorkReport& report) override;
  [[nodiscard]] std::vector<WorkReport> reports() override;
  [[nodiscard]] bool is_lost() const override { return is_lost_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  int world_size_;
  std::atomic<bool> is_lost_ = false;
};

}  // namespace sherd::detail
