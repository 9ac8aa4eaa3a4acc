#include "comm/progress_board.h"

#include <algorithm>

namespace sherd::detail {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestReportInterval{1000};
constexpr int kReportsPerTimeout = 40;
constexpr int kLooksPerTimeout = 10;
constexpr size_t kRanksInAMessage = 8;

}  // namespace

OwnReports::OwnReports(std::shared_ptr<ProgressBoard> board, int rank, milliseconds timeout)
    : board_(std::move(board)),
      rank_(rank),
      interval_(std::min(kLongestReportInterval, timeout / kReportsPerTimeout)) {}

void OwnReports::put(const std::string& what, milliseconds limit) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (last_.number > 0 && limit == last_.limit && now - put_at_ < interval_) {
    return;
  }
  last_ = {last_.number + 1, limit, what};
  put_at_ = now;
  board_->put(rank_, last_);
}

Patience::Patience(ProgressBoard* board, milliseconds timeout)
    : board_(board),
      timeout_(timeout),
      longest_limit_(timeout),
      next_look_(timeout / kLooksPerTimeout) {}

// What was reported before the wait is no news, so the first look only remembers it.
void Patience::look() {
  std::vector<WorkReport> reports = board_->reports();
  if (reports.empty()) {
    return;
  }
  longest_limit_ = timeout_;
  for (const WorkReport& report : reports) {
    longest_limit_ = std::max(longest_limit_, report.limit);
  }
  const bool is_first = reports_.empty();
  const bool is_news = !is_first && reports != reports_;
  reports_ = std::move(reports);
  if (is_news) {
    silence_.restart();
    next_look_ = {};
  }
}

bool Patience::is_over() {
  const auto silence = silence_.tick();
  if (board_ == nullptr) {
    return silence >= timeout_;
  }
  if (silence < next_look_ && silence < longest_limit_) {
    return false;
  }
  look();
  const auto since_news = silence_.tick();
  next_look_ = since_news + timeout_ / kLooksPerTimeout;
  return board_->is_lost() || since_news >= longest_limit_;
}

std::string last_work_of(const std::vector<WorkReport>& reports, const std::vector<int>& ranks) {
  std::string text;
  size_t named = 0;
  for (const int rank : ranks) {
    const auto index = static_cast<size_t>(rank);
    if (index < reports.size() && reports[index].number > 0 && named < kRanksInAMessage) {
      ++named;
      text += " Rank " + std::to_string(rank) + " last reported: " + reports[index].what + ".";
    }
  }
  return text;
}

}  // namespace sherd::detail
