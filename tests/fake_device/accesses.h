#pragma once
// Who read and wrote which memory of the fake device, and whether one access is known to come after
// another: happens-before by vector clocks. Model: torch/cuda/_sanitizer.py.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace sherd::fake {

/// By stream: how many of its operations are known to have ended. What is not there is 0.
class Clock {
 public:
  [[nodiscard]] std::uint64_t of(int stream) const;
  void advance(int stream);
  /// What either knows.
  void join(const Clock& other);
  /// Whether it knows all that another does.
  [[nodiscard]] bool knows(const Clock& other) const;

 private:
  std::vector<std::uint64_t> ticks_;
};

struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

/// An operation of a stream, in the order in which they were issued.
struct Operation {
  int stream = 0;
  std::uint64_t tick = 0;
  std::string name;
};

/// The accesses to all memory of the device. Any thread.
class Accesses {
 public:
  /// Notes an access of `operation`, whose stream's clock is `clock`; a fault where it is not
  /// ordered after another stream's write to the same bytes, or a write after another's read.
  void note(const Range& range, bool writes, const Operation& operation, const Clock& clock);
  /// The memory is given back, to be used by what the stream with this clock issues next.
  void forget(const Range& range, const Clock& clock);
  /// The memory is given back by the host, which has waited for all that used it.
  void forget(const Range& range);
  /// Another fault than of an access.
  void note_fault(std::string description);
  /// Descriptions of the faults so far, once each; they are forgotten.
  [[nodiscard]] std::vector<std::string> take_faults();

 private:
  struct Last {
    std::uintptr_t end = 0;
    Operation write;                 // tick 0: none
    std::map<int, Operation> reads;  // since then, by stream
  };
  using Parts = std::map<std::uintptr_t, Last>;  // by begin
  void split_at(std::uintptr_t at);
  Parts::iterator cover(const Range& range);
  void expect_after(const Operation& earlier, const char* earlier_did, const std::string& later,
                    const Clock& clock);

  std::mutex mutex_;
  Parts parts_;
  std::vector<std::string> faults_;
};

}  // namespace sherd::fake
