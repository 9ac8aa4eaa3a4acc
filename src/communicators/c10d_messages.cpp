#include "communicators/c10d_messages.h"

#include <utility>

#include <ATen/ops/from_blob.h>

namespace sherd::detail {

namespace {

// Of the 31 bits of a tag the highest tells identities from the rest. Counters come round again
// long after their messages have been received.
constexpr int kOfParts = 1 << 30;
constexpr int kCounted = 1 << 14;
constexpr unsigned kHistoryShift = 48;  // its 16 highest bits

std::vector<at::Tensor> as_message(void* data, int64_t bytes) {
  return {at::from_blob(data, {bytes}, at::kByte)};
}

}  // namespace

int MessageTags::take(int count) {
  const int first = next_;
  next_ = (next_ + count) % kOfParts;
  return first;
}

C10dMessages::C10dMessages(c10::intrusive_ptr<c10d::Backend> group, int tag, const Identity& mine)
    : group_(std::move(group)),
      tag_(tag),
      identities_(static_cast<size_t>(group_->getSize()), mine) {}

int C10dMessages::tag_of_part(int part) const {
  const auto history = static_cast<int>(
      identities_[static_cast<size_t>(group_->getRank())].history >> kHistoryShift);
  return kOfParts + history * kCounted + (tag_ + 1 + part) % kCounted;
}

void C10dMessages::exchange_identities() {
  const int rank = group_->getRank();
  for (int peer = 0; peer < group_->getSize(); ++peer) {
    if (peer != rank) {
      auto mine = as_message(&identities_[static_cast<size_t>(rank)], sizeof(Identity));
      auto theirs = as_message(&identities_[static_cast<size_t>(peer)], sizeof(Identity));
      sent_.push_back(group_->send(mine, peer, tag_));
      received_identities_.push_back(group_->recv(theirs, peer, tag_));
    }
  }
}

void C10dMessages::send(const void* data, int64_t bytes, int peer, int part) {
  // A send takes its tensor as one that may be written to, and does not.
  auto tensors = as_message(const_cast<void*>(data), bytes);
  sent_.push_back(group_->send(tensors, peer, tag_of_part(part)));
}

void C10dMessages::receive(void* data, int64_t bytes, int peer, int part) {
  auto tensors = as_message(data, bytes);
  received_.push_back(group_->recv(tensors, peer, tag_of_part(part)));
}

std::span<const C10dMessages::Identity> C10dMessages::identities() {
  wait(received_identities_);
  return identities_;
}

void C10dMessages::wait_received() {
  wait(received_);
}

void C10dMessages::wait_sent() {
  wait(sent_);
}

void C10dMessages::wait(Works& works) {
  for (const auto& work : std::exchange(works, {})) {
    work->wait();
  }
}

}  // namespace sherd::detail
