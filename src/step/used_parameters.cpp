#include "step/used_parameters.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/StringUtil.h>

#include "comm/buffers.h"

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

void UsedParameters::exchange_flags(const Reduce& reduce) {
  std::vector<double> flags;
  for_each_summed([&](const SegmentGradients& gradients, size_t place) {
    flags.push_back(gradients.used(place) ? 1 : 0);
  });
  reduce(flags);
  auto flag = flags.begin();
  for_each_summed(
      [&](SegmentGradients& gradients, size_t place) { gradients.set_used(place, *flag++ > 0); });
}

double UsedParameters::agree_on_cpu(double value, ReduceOp op) {
  std::array<double, 2> values = {value, agreed_ ? 0 : count_unused()};
  model_.communicators->shards().all_reduce(values, op);
  if (agreed_) {
    return values[0];
  }
  if (Communicator* replicas = model_.communicators->replicas()) {
    replicas->all_reduce({&values[1], 1}, op);
  }
  if (values[1] > 0) {  // the same number on every rank
    exchange_flags([this](std::span<double> flags) {
      model_.communicators->shards().all_reduce(flags, ReduceOp::Max);
      if (Communicator* replicas = model_.communicators->replicas()) {
        replicas->all_reduce(flags, ReduceOp::Max);
      }
    });
  }
  agreed_ = true;
  return values[0];
}

void UsedParameters::tell_who_is_out_of_step(const std::vector<double>& own) const {
  World& world = model_.mesh.world();
  const std::string mine = c10::str(c10::ArrayRef<double>(own));
  const std::vector<std::string> all = world.all_gather(mine);
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const std::string& theirs) { return theirs != mine; });
  throw_out_of_step("all-reduce", world.rank(), static_cast<int>(other - all.begin()));
}

void UsedParameters::agree_between_hosts() {
  if (agreed_) {
    return;
  }
  World& world = model_.mesh.world();
  const std::vector<double> own = model_.communicators->signatures();
  std::vector<double> most{count_unused()};
  for (const double signature : own) {
    most.insert(most.end(), {signature, -signature});
  }
  world.all_reduce(most, ReduceOp::Max);
  for (size_t one = 1; one < most.size(); one += 2) {
    if (most[one] != -most[one + 1]) {
      tell_who_is_out_of_step(own);  // on every rank
    }
  }
  if (most[0] > 0) {
    exchange_flags([&](std::span<double> flags) { world.all_reduce(flags, ReduceOp::Max); });
  }
  agreed_ = true;
}

at::Tensor UsedParameters::agree_beside(const at::Tensor& value, ReduceOp op) {
  if (value.is_cpu()) {
    return at::scalar_tensor(agree_on_cpu(value.item<double>(), op), value.options());
  }
  model_.communicators->shards().all_reduce_on_device(value.view({1}), op);
  agree_between_hosts();
  return value;
}

void UsedParameters::agree() {
  if (!agreed_) {
    model_.collectives.run("all-reduce of used parameters", "all", [&] {
      if (model_.mesh.world().device().is_cpu()) {
        static_cast<void>(agree_on_cpu(0, ReduceOp::Sum));
      } else {
        agree_between_hosts();
      }
    });
  }
}

}  // namespace sherd::detail
