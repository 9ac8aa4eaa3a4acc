#include "rendezvous/store_board.h"

#include <exception>
#include <sstream>
#include <utility>

namespace sherd::detail {

namespace {

std::string progress_key(int rank) {
  return "progress/" + std::to_string(rank);
}

std::vector<uint8_t> bytes_of_report(const WorkReport& report) {
  const std::string text = std::to_string(report.number) + " " +
                           std::to_string(report.limit.count()) + " " + report.what;
  return {text.begin(), text.end()};
}

WorkReport report_from(const std::vector<uint8_t>& bytes) {
  std::istringstream text(std::string(bytes.begin(), bytes.end()));
  WorkReport report;
  int64_t limit_ms = 0;
  text >> report.number >> limit_ms;
  text.get();  // the space
  std::getline(text, report.what, '\0');
  report.limit = std::chrono::milliseconds(limit_ms);
  return report;
}

}  // namespace

StoreBoard::StoreBoard(c10::intrusive_ptr<c10d::Store> store, int world_size)
    : store_(std::move(store)), world_size_(world_size) {}

void StoreBoard::put(int rank, const WorkReport& report) {
  if (is_lost_) {
    return;
  }
  try {
    store_->set(progress_key(rank), bytes_of_report(report));
  } catch (const std::exception&) {
    is_lost_ = true;
  }
}

std::vector<WorkReport> StoreBoard::reports() {
  std::vector<WorkReport> all(static_cast<size_t>(world_size_));
  try {
    for (int rank = 0; rank < world_size_ && !is_lost_; ++rank) {
      if (store_->check({progress_key(rank)})) {
        all[static_cast<size_t>(rank)] = report_from(store_->get(progress_key(rank)));
      }
    }
  } catch (const std::exception&) {
    is_lost_ = true;
  }
  return is_lost_ ? std::vector<WorkReport>() : all;
}

}  // namespace sherd::detail
