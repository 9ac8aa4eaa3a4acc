#include "tests/fake_device/accesses.h"

#include <algorithm>
#include <utility>

namespace sherd::fake {

std::uint64_t Clock::of(int stream) const {
  const auto at = static_cast<std::size_t>(stream);
  return at < ticks_.size() ? ticks_[at] : 0;
}

void Clock::advance(int stream) {
  const auto at = static_cast<std::size_t>(stream);
  ticks_.resize(std::max(ticks_.size(), at + 1));
  ++ticks_[at];
}

bool Clock::knows(const Clock& other) const {
  for (std::size_t stream = 0; stream < other.ticks_.size(); ++stream) {
    if (of(static_cast<int>(stream)) < other.ticks_[stream]) {
      return false;
    }
  }
  return true;
}

void Clock::join(const Clock& other) {
  ticks_.resize(std::max(ticks_.size(), other.ticks_.size()));
  for (std::size_t i = 0; i < other.ticks_.size(); ++i) {
    ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
  }
}

void Accesses::split_at(std::uintptr_t at) {
  auto after = parts_.upper_bound(at);
  if (after == parts_.begin()) {
    return;
  }
  auto part = std::prev(after);
  if (part->first < at && at < part->second.end) {
    Last rest = part->second;
    part->second.end = at;
    parts_.emplace(at, std::move(rest));
  }
}

// Parts that are the range, without gaps. Returns the first.
Accesses::Parts::iterator Accesses::cover(const Range& range) {
  split_at(range.begin);
  split_at(range.end);
  std::uintptr_t at = range.begin;
  while (at < range.end) {
    const auto part = parts_.lower_bound(at);
    if (part != parts_.end() && part->first == at) {
      at = part->second.end;
      continue;
    }
    const std::uintptr_t end = part == parts_.end() ? range.end : std::min(range.end, part->first);
    parts_[at].end = end;
    at = end;
  }
  return parts_.lower_bound(range.begin);
}

void Accesses::expect_after(const Operation& earlier, const char* earlier_did,
                            const std::string& later, const Clock& clock) {
  if (earlier.tick <= clock.of(earlier.stream)) {
    return;
  }
  const std::string fault = later + " may come before " + earlier.name + " of stream " +
                            std::to_string(earlier.stream) + " has " + earlier_did + " the memory";
  if (std::find(faults_.begin(), faults_.end(), fault) == faults_.end()) {
    faults_.push_back(fault);
  }
}

void Accesses::note(const Range& range, bool writes, const Operation& operation,
                    const Clock& clock) {
  if (range.begin == range.end) {
    return;
  }
  const std::lock_guard lock(mutex_);
  const std::string who = operation.name + " of stream " + std::to_string(operation.stream) +
                          (writes ? " writes and" : " reads and");
  for (auto part = cover(range); part != parts_.end() && part->first < range.end; ++part) {
    Last& last = part->second;
    expect_after(last.write, "written", who, clock);
    if (writes) {
      for (const auto& [stream, read] : last.reads) {
        expect_after(read, "read", who, clock);
      }
      last.reads.clear();
      last.write = operation;
    } else {
      last.reads[operation.stream] = operation;
    }
  }
}

void Accesses::forget(const Range& range, const Clock& clock) {
  const std::lock_guard lock(mutex_);
  if (range.begin == range.end) {
    return;
  }
  const std::string who = "memory is given back that is used again and";
  auto part = cover(range);
  while (part != parts_.end() && part->first < range.end) {
    expect_after(part->second.write, "written", who, clock);
    for (const auto& [stream, read] : part->second.reads) {
      expect_after(read, "read", who, clock);
    }
    part = parts_.erase(part);
  }
}

void Accesses::forget(const Range& range) {
  const std::lock_guard lock(mutex_);
  if (range.begin != range.end) {
    auto part = cover(range);
    while (part != parts_.end() && part->first < range.end) {
      part = parts_.erase(part);
    }
  }
}

void Accesses::note_fault(std::string description) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(std::move(description));
}

std::vector<std::string> Accesses::take_faults() {
  const std::lock_guard lock(mutex_);
  return std::exchange(faults_, {});
}

}  // namespace sherd::fake
