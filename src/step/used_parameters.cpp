#include "step/used_parameters.h"

#include <array>
#include <vector>

namespace sherd::detail {

void UsedParameters::for_each_summed(const Visit& visit) const {
  for (const SegmentOfUnit& of : model_.segments) {
    const size_t places = of.segment->has_gradient() ? of.segment->layout().places.size() : 0;
    for (size_t place = 0; place < places; ++place) {
      if (of.unit->parameter_at(*of.segment, place).tensor.requires_grad()) {
        visit(*of.segment->gradients(), place);
      }
    }
  }
}

double UsedParameters::count_unused() const {
  double unused = 0;
  for_each_summed([&](const SegmentGradients& gradients, size_t place) {
    unused += gradients.used(place) ? 0 : 1;
  });
  return unused;
}

void UsedParameters::exchange_flags() {
  std::vector<double> flags;
  for_each_summed([&](const SegmentGradients& gradients, size_t place) {
    flags.push_back(gradients.used(place) ? 1 : 0);
  });
  model_.communicators->shards().all_reduce(flags, ReduceOp::Max);
  if (Communicator* replicas = model_.communicators->replicas()) {
    replicas->all_reduce(flags, ReduceOp::Max);
  }
  auto flag = flags.begin();
  for_each_summed(
      [&](SegmentGradients& gradients, size_t place) { gradients.set_used(place, *flag++ > 0); });
}

double UsedParameters::agree_beside(double value, ReduceOp op) {
  std::array<double, 2> values = {value, agreed_ ? 0 : count_unused()};
  model_.communicators->shards().all_reduce(values, op);
  if (agreed_) {
    return values[0];
  }
  if (Communicator* replicas = model_.communicators->replicas()) {
    replicas->all_reduce({&values[1], 1}, op);
  }
  if (values[1] > 0) {  // the same number on every rank
    exchange_flags();
  }
  agreed_ = true;
  return values[0];
}

void UsedParameters::agree() {
  if (!agreed_) {
    model_.collectives.run("all-reduce of used parameters", "all",
                           [&] { static_cast<void>(agree_beside(0, ReduceOp::Sum)); });
  }
}

}  // namespace sherd::detail
