#include <algorithm>
#include <utility>

#include "comm/rank_place.h"
#include "rendezvous/backends.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

// Groups of the part are groups of the whole: everything is done by the back end of the whole.
class SubsetWorld final : public Backend {
 public:
  SubsetWorld(std::shared_ptr<Backend> whole, const RankGroup& ranks)
      : whole_(std::move(whole)),
        ranks_(ranks),
        rank_(ranks.index_of(whole_->rank())),
        control_(whole_->make_communicator(ranks)) {
    find_local_ranks();
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return ranks_.size; }
  [[nodiscard]] int local_rank() const override { return local_rank_; }
  [[nodiscard]] int local_size() const override { return local_size_; }
  [[nodiscard]] c10::Device device() const override { return whole_->device(); }
  [[nodiscard]] c10::DeviceType device_type() const override { return whole_->device_type(); }
  [[nodiscard]] std::optional<Wait> waiting() const override { return whole_->waiting(); }
  void report_progress(const std::string& what, std::chrono::milliseconds limit) override {
    whole_->report_progress(what, limit);
  }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group) override {
    return whole_->make_communicator(
        {ranks_.rank_at(group.first), ranks_.stride * group.stride, group.size});
  }
  [[nodiscard]] Communicator& control() override { return *control_; }

 private:
  void find_local_ranks() {
    const RankPlace mine = RankPlace::of_this_process();
    const std::vector<std::string> places = whole_->all_gather(mine.to_text());
    local_size_ = 0;
    for (int member = 0; member < ranks_.size; ++member) {
      const auto& text = places[static_cast<size_t>(ranks_.rank_at(member))];
      if (member == rank_ || RankPlace::from_text(text).shares_host_with(mine)) {
        local_rank_ = member == rank_ ? local_size_ : local_rank_;
        ++local_size_;
      }
    }
  }

  std::shared_ptr<Backend> whole_;
  RankGroup ranks_;  ///< of the whole
  int rank_;
  int local_rank_ = 0;
  int local_size_ = 1;
  std::unique_ptr<Communicator> control_;
};

bool is_group_of(const RankGroup& ranks, const Backend& whole) {
  const int offset = whole.rank() - ranks.first;
  return ranks.first >= 0 && ranks.stride >= 1 && ranks.size >= 1 && ranks.size <= whole.size() &&
         ranks.stride <= whole.size() &&
         ranks.first + static_cast<int64_t>(ranks.size - 1) * ranks.stride < whole.size() &&
         offset >= 0 && offset % ranks.stride == 0 && offset / ranks.stride < ranks.size;
}

}  // namespace

std::shared_ptr<Backend> make_subset_world(std::shared_ptr<Backend> whole, const RankGroup& ranks) {
  if (!is_group_of(ranks, *whole)) {
    throw Error(ExitCode::Usage, "[World::subset] rank " + std::to_string(whole->rank()) + " of " +
                                     std::to_string(whole->size()) +
                                     " is not in a group of the world with first rank " +
                                     std::to_string(ranks.first) + ", stride " +
                                     std::to_string(ranks.stride) + " and size " +
                                     std::to_string(ranks.size) +
                                     ": each rank passes the group that it is in.");
  }
  return std::make_shared<SubsetWorld>(std::move(whole), ranks);
}

}  // namespace sherd::detail
