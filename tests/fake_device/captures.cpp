#include "tests/fake_device/captures.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <c10/util/Exception.h>

namespace sherd::fake {

namespace {

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

Capture::Capture(const c10::Stream& origin) : number_(next_number()), launched_on_(origin) {
  lanes_.push_back({origin, {}, origin});
}

// What lies in tensors of the capture is given back as from the streams that it was made on.
Capture::~Capture() {
  const Moment launched = fake::record(launched_on_);
  for (const Lane& lane : lanes_) {
    wait_for(lane.captured, launched);
  }
  for (std::size_t lane = 1; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].runs_on != lanes_[lane].captured) {
      give_back_stream(lanes_[lane].runs_on);
    }
  }
}

std::size_t Capture::lane_of(const c10::Stream& stream) {
  const auto found = std::find_if(lanes_.begin(), lanes_.end(),
                                  [&](const Lane& lane) { return lane.captured == stream; });
  if (found != lanes_.end()) {
    return static_cast<std::size_t>(found - lanes_.begin());
  }
  lanes_.push_back({stream, {}, stream});
  return lanes_.size() - 1;
}

void Capture::add(const c10::Stream& stream, const std::string& name, TouchedRanges touched,
                  std::function<void()> work) {
  const std::size_t lane = lane_of(stream);
  lanes_[lane].clock.advance(static_cast<int>(lane));
  nodes_.push_back({lane, name, std::move(touched), std::move(work)});
}

void Capture::record(const c10::Stream& stream, Moment& moment) {
  const std::size_t lane = lane_of(stream);
  moment.capture = number_;
  moment.mark = marks_++;
  moment.clock = lanes_[lane].clock;
  const auto before = std::find_if(nodes_.rbegin(), nodes_.rend(), [&](const Node& node) {
    return node.lane == lane && node.work != nullptr;
  });
  moment.after = before == nodes_.rend() ? "" : before->name;
  nodes_.push_back({.lane = lane, .mark = moment.mark});
}

bool Capture::orders(const c10::Stream& stream, const Moment& moment) const {
  const auto found = std::find_if(lanes_.begin(), lanes_.end(),
                                  [&](const Lane& lane) { return lane.captured == stream; });
  return found == lanes_.end() || !found->clock.knows(moment.clock);
}

void Capture::wait(const c10::Stream& stream, const Moment& moment) {
  const std::size_t lanes_before = lanes_.size();
  const std::size_t lane = lane_of(stream);
  lanes_[lane].clock.join(moment.clock);
  if (lane == lanes_before) {
    lanes_[lane].clock.advance(static_cast<int>(lane));  // a fork is to be joined, with or without
  }
  nodes_.push_back({.lane = lane, .mark = moment.mark, .waits = true});
}

bool Capture::owns(const TouchedRanges& touched) const {
  return std::all_of(touched.writes.begin(), touched.writes.end(), [&](const Range& written) {
    return std::any_of(owned_.begin(), owned_.end(), [&](const Range& range) {
      return range.begin <= written.begin && written.end <= range.end;
    });
  });
}

void Capture::end() {
  for (Lane& lane : lanes_) {
    TORCH_CHECK(lanes_[0].clock.knows(lane.clock),
                "[fake device] a stream was forked from a captured one and not joined");
  }
  for (std::size_t lane = 1; lane < lanes_.size(); ++lane) {
    lanes_[lane].runs_on = take_stream(lanes_[lane].captured.device());
  }
}

void Capture::launch(const c10::Stream& stream) {
  count_launch(stream.device_index());
  launched_on_ = stream;
  lanes_[0].runs_on = stream;
  std::vector<Moment> moments(marks_);
  for (const Node& node : nodes_) {
    const c10::Stream& on = lanes_[node.lane].runs_on;
    if (node.work != nullptr) {
      repeat(on, node.name, node.touched, node.work);
    } else if (node.waits) {
      wait_for(on, moments[node.mark]);
    } else {
      moments[node.mark] = fake::record(on);
    }
  }
}

namespace {

std::shared_ptr<void> capture_begins(const std::shared_ptr<void>& /*beside*/) {
  const c10::Stream stream = current_stream({kDevice, current_device()});
  auto capture = std::make_shared<Capture>(stream);
  begin_capture(stream, capture);
  return capture;
}

void capture_ends(void* graph) {
  end_capture(current_device());
  static_cast<Capture*>(graph)->end();
}

void launch_capture(void* graph) {
  static_cast<Capture*>(graph)->launch(current_stream({kDevice, current_device()}));
}

std::uint64_t number_of(const c10::Stream& stream) {
  const auto capture = capture_with(stream);
  return capture == nullptr ? 0 : capture->number();
}

}  // namespace

detail::DeviceFunctions capture_functions() {
  return {.begin_capture = &capture_begins,
          .end_capture = &capture_ends,
          .launch = &launch_capture,
          .capture_of = &number_of};
}

}  // namespace sherd::fake
