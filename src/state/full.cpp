// Whole tensors of a model and its optimizer: rank 0, or every rank, receives them; rank 0 gives
// them.

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include "rendezvous/agree.h"
#include "sherd/state_dict.h"
#include "state/entries.h"
#include "step/step.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

// Copies a range of the entry's elements from the rank that holds them to rank 0's `whole` [numel].
void send_to_rank0(World& world, int from, const StateEntry& entry, const Range& range,
                   c10::ScalarType dtype, const at::Tensor& whole) {
  constexpr int64_t kChunkBytes = int64_t{16} << 20;
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t first = range.begin; first < range.end; first += kChunkBytes / element) {
    const int64_t count = std::min(kChunkBytes / element, range.end - first);
    at::Tensor values = whole.defined() ? whole.narrow(0, first, count) : at::Tensor();
    if (world.rank() == from) {
      const at::Tensor held = own_work(
          [&] { return entry.mine.narrow(first - entry.begin, count).read().to(at::kCPU, dtype); });
      values = values.defined() ? values.copy_(held) : held.contiguous();
    }
    // The sender's bytes are only read.
    void* data = values.defined() ? const_cast<void*>(values.const_data_ptr()) : nullptr;
    world.send(data, count * element, from, 0);
  }
}

void send_to_all(World& world, int from, const StateEntry& entry, const Range& range,
                 c10::ScalarType dtype, const at::Tensor& whole) {
  const at::Tensor source = world.rank() == from && range.size() > 0
                                ? entry.mine.narrow(range.begin - entry.begin, range.size()).read()
                                : at::Tensor();
  broadcast_elements(world, from, source, range.size(), dtype,
                     [&](int64_t first, const at::Tensor& values) {
                       whole.narrow(0, range.begin + first, values.numel()).copy_(values);
                     });
}

// Collects whole tensors and calls a visitor on the ranks that receive them. All ranks fail if one
// visitor has thrown: at the latest when 256 MiB of tensors have been collected. After a failure a
// rank's visitor is not called again, but the rank takes part in all exchanges until then.
class WholeTensors {
 public:
  // `failure`: the beginning of the Error that all ranks throw. Collective.
  WholeTensors(ShardedModule& model, bool rank0_only, std::string failure)
      : world_(model.world()),
        rank0_only_(rank0_only),
        failure_(std::move(failure)),
        senders_(detail::senders(model)) {}

  // Returns the whole tensor in its shape and `dtype`, on the CPU; undefined on ranks that do not
  // receive it. Collective. Memory: the tensor where it is returned; on a rank that sends to rank
  // 0, 16 MiB if values are converted or do not lie in host memory; with broadcasts, 1 MiB.
  [[nodiscard]] at::Tensor collect(const StateEntry& entry, c10::ScalarType dtype) {
    const at::NoGradGuard no_grad;
    const at::Tensor whole =
        own_work([&] { return is_wanted() ? at::empty(entry.shape, dtype) : at::Tensor(); });
    const at::Tensor flat = is_wanted() ? whole.view({-1}) : whole;
    for (size_t shard_rank = 0; shard_rank < entry.pieces.size(); ++shard_rank) {
      (rank0_only_ ? send_to_rank0 : send_to_all)(world_, senders_[shard_rank], entry,
                                                  entry.pieces[shard_rank], dtype, flat);
    }
    unagreed_bytes_ += entry.numel() * static_cast<int64_t>(c10::elementSize(dtype));
    return whole;
  }

  // Calls `visitor` on ranks that receive tensors. Collective. Throws as agree() does.
  void visit(const std::function<void()>& visitor) {
    constexpr int64_t kAgreedBytes = int64_t{256} << 20;
    try {
      if (is_wanted() && !thrown_) {
        visitor();
      }
    } catch (...) {
      thrown_ = std::current_exception();
    }
    if (unagreed_bytes_ >= kAgreedBytes) {
      finish();
    }
  }

  // Agrees on the last visits. Collective.
  void finish() {
    unagreed_bytes_ = 0;
    on_all_ranks(world_, failure_, [&] {
      if (thrown_) {
        std::rethrow_exception(thrown_);
      }
    });
  }

 private:
  [[nodiscard]] bool is_wanted() const { return !rank0_only_ || world_.rank() == 0; }

  World& world_;
  bool rank0_only_;
  std::string failure_;
  std::vector<int> senders_;
  int64_t unagreed_bytes_ = 0;
  std::exception_ptr thrown_;
};

// Gives every rank its elements of rank 0's tensor `whole`, which is sent as `dtype`.
void scatter_from_rank0(World& world, const at::Tensor& whole, c10::ScalarType dtype,
                        StateEntry& entry) {
  const at::Tensor flat = whole.defined() ? whole.detach().reshape({-1}) : at::Tensor();
  broadcast_elements(world, 0, flat, entry.numel(), dtype,
                     [&](int64_t first, const at::Tensor& values) { entry.write(first, values); });
}

// Returns the entry's tensor in a full state dict, under any of its names; undefined if missing.
at::Tensor find(const StateDict& dict, const StateEntry& entry) {
  for (const std::string& name : entry.names()) {
    if (const at::Tensor* tensor = dict.find(name)) {
      return *tensor;
    }
  }
  return {};
}

// Throws, listing all faults.
void check_dict(const StateDict& dict, const std::vector<StateEntry>& entries) {
  std::string faults;
  std::set<std::string> known;
  for (const StateEntry& entry : entries) {
    const at::Tensor found = find(dict, entry);
    const std::string fault = entry.mismatch(found);
    faults += fault.empty() ? "" : "\n  " + fault;
    for (const std::string& name : entry.names()) {
      known.insert(name);
      const at::Tensor* other = dict.find(name);
      if (fault.empty() && other != nullptr && !other->is_same(found) &&
          !(other->sizes() == found.sizes() && at::equal(*other, found))) {
        faults += "\n  '" + name + "' is tied to '" + entry.name + "', and has other values";
      }
    }
  }
  for (const auto& item : dict) {
    if (!known.contains(item.key())) {
      faults += "\n  '" + item.key() + "' is unknown to the model";
    }
  }
  check_no_faults("the state is not that of this model:", faults);
}

// Rank 0's verdict on one tensor, sent to all ranks before the tensor.
enum class Verdict : int64_t { Sent, Faulty, SourceFailed };

// Rank 0's side of load_from_rank0().
struct Reader {
  const TensorSource& source;
  at::Tensor whole = {};  // of the last read(); flat, if its verdict was Sent
  std::string faults = {};
  std::exception_ptr failure = {};

  // Takes the tensor from the source and checks it.
  Verdict read(const StateEntry& entry) {
    try {
      for (const std::string& name : entry.names()) {
        if (!whole.defined()) {
          whole = source(name);
        }
      }
      const std::string fault = entry.mismatch(whole);
      faults += fault.empty() ? "" : "\n  " + fault;
      if (!faults.empty()) {
        return Verdict::Faulty;  // after a fault nothing more is sent
      }
      whole = whole.detach().reshape({-1});
      return Verdict::Sent;
    } catch (...) {
      failure = std::current_exception();
      return Verdict::SourceFailed;
    }
  }

  // Throws the failure, if there was one.
  void check() const {
    if (failure) {
      std::rethrow_exception(failure);
    }
    check_no_faults("the tensors are not those of this model:", faults);
  }
};

// A parameter's two moments, each an entry with the parameter's shape and sharding.
struct MomentEntries {
  StateEntry exp_avg;
  StateEntry exp_avg_sq;
  [[nodiscard]] const std::string& name() const { return exp_avg.name; }
};

std::vector<MomentEntries> moment_entries(ShardedModule& model, const AdamW& optimizer) {
  std::map<std::string, OptimizerShard> moments;
  for (OptimizerShard& shard : optimizer.state_shards()) {
    moments.emplace(shard.parameter, std::move(shard));
  }
  std::vector<MomentEntries> entries;
  for (const StateEntry& parameter : state_entries(model)) {
    const auto found = moments.find(parameter.name);
    if (found != moments.end() && !parameter.is_buffer()) {
      MomentEntries& entry = entries.emplace_back(MomentEntries{parameter, parameter});
      const OptimizerShard& shard = found->second;
      entry.exp_avg.mine = ShardValues(shard.tensors.at("exp_avg")).resting(shard.use);
      entry.exp_avg_sq.mine = ShardValues(shard.tensors.at("exp_avg_sq")).resting(shard.use);
    }
  }
  return entries;
}

// Throws, listing all faults; returns the steps of each entry as text.
std::string check_dict(const OptimStateDict& dict, const std::vector<MomentEntries>& entries) {
  std::string faults;
  std::set<std::string> known;
  std::ostringstream steps;
  for (const MomentEntries& entry : entries) {
    known.insert(entry.name());
    const OptimState* state = dict.find(entry.name());
    if (state == nullptr) {
      faults += "\n  the state of parameter '" + entry.name() + "' is missing";
      continue;
    }
    std::string fault = entry.exp_avg.mismatch(state->exp_avg);
    fault = fault.empty() ? entry.exp_avg.mismatch(state->exp_avg_sq) : fault;
    faults += fault.empty() ? "" : "\n  a moment of " + fault;
    if (state->step < 0) {
      faults += "\n  '" + entry.name() + "' has done " + std::to_string(state->step) + " steps";
    }
    steps << state->step << ' ';
  }
  for (const auto& item : dict) {
    if (!known.contains(item.key())) {
      faults += "\n  '" + item.key() + "' is not a trainable parameter of the model";
    }
  }
  check_no_faults("the state is not that of this optimizer:", faults);
  return steps.str();
}

// Sets the steps of each parameter; the optimizer has done the most of any.
void set_steps(AdamW& optimizer, const std::vector<MomentEntries>& entries,
               const std::string& steps_of_entries) {
  std::istringstream text(steps_of_entries);
  std::vector<int64_t> steps(entries.size());
  for (int64_t& count : steps) {
    text >> count;
  }
  optimizer.set_steps_done(steps.empty() ? 0 : *std::max_element(steps.begin(), steps.end()));
  for (size_t i = 0; i < entries.size(); ++i) {
    optimizer.set_steps_done(entries[i].name(), steps[i]);
  }
}

}  // namespace

}  // namespace sherd::detail

namespace sherd {

void for_each_full_parameter(ShardedModule& model,
                             const std::function<void(const FullParameter&)>& visit,
                             const FullStateOptions& options) {
  if (options.dtype && !c10::isFloatingType(*options.dtype)) {
    throw Error(ExitCode::Usage,
                std::string("[full_state_dict] dtype is floating-point, or unset for each tensor's "
                            "own; got ") +
                    c10::toString(*options.dtype) + ".");
  }
  detail::engine_of(model).step.check_whole("full_state_dict");
  detail::require_values(detail::engine_of(model).model, "full_state_dict");
  detail::WholeTensors tensors(model, options.rank0_only,
                               "[for_each_full_parameter] the visitor failed");
  for (const detail::StateEntry& entry : detail::state_entries(model)) {
    const auto dtype = c10::isFloatingType(entry.original_dtype)
                           ? options.dtype.value_or(entry.original_dtype)
                           : entry.original_dtype;
    const at::Tensor whole = tensors.collect(entry, dtype);
    tensors.visit([&] {
      for (const std::string& name : entry.names()) {
        visit({name, name == entry.name ? "" : entry.name, entry.is_buffer(), whole});
      }
    });
  }
  tensors.finish();
}

StateDict full_state_dict(ShardedModule& model, const FullStateOptions& options) {
  StateDict dict;
  for_each_full_parameter(
      model, [&](const FullParameter& parameter) { dict.insert(parameter.name, parameter.value); },
      options);
  return dict;
}

void load_full_state_dict(ShardedModule& model, const StateDict& dict) {
  detail::engine_of(model).step.require_between_steps("load_full_state_dict");
  const std::vector<detail::StateEntry> entries = detail::state_entries(model);
  detail::on_all_ranks(model.world(), "[load_full_state_dict] loading failed", [&] {
    if (model.world().rank() == 0) {
      detail::check_dict(dict, entries);
    }
  });
  load_from_rank0(model, [&](const std::string& name) {
    const at::Tensor* tensor = dict.find(name);
    return tensor == nullptr ? at::Tensor() : *tensor;
  });
}

void load_from_rank0(ShardedModule& model, const TensorSource& source) {
  World& world = model.world();
  detail::require_all_sharded(detail::engine_of(model).model);
  detail::ShardWriter writer(detail::engine_of(model).step, "load_from_rank0");
  detail::Reader reader{source};
  std::vector<detail::StateEntry> entries = detail::state_entries(model);
  for (detail::StateEntry& entry : entries) {
    std::array<int64_t, 2> header{};  // verdict, dtype
    if (world.rank() == 0) {
      header[0] = static_cast<int64_t>(reader.read(entry));
      header[1] = reader.whole.defined() ? static_cast<int64_t>(reader.whole.scalar_type()) : 0;
    }
    world.broadcast(header.data(), sizeof header, 0);
    const auto verdict = static_cast<detail::Verdict>(header[0]);
    if (verdict == detail::Verdict::SourceFailed) {
      break;
    }
    if (verdict == detail::Verdict::Sent) {
      detail::scatter_from_rank0(world, reader.whole, static_cast<c10::ScalarType>(header[1]),
                                 entry);
    }
    reader.whole = at::Tensor();
  }
  detail::on_all_ranks(world, "[load_from_rank0] loading failed", [&] { reader.check(); });
  for (detail::StateEntry& entry : entries) {
    entry.finish_writing();
  }
  writer.publish();
}

void for_each_full_optim_state(
    ShardedModule& model, const AdamW& optimizer,
    const std::function<void(const std::string& name, const OptimState&)>& visit, bool rank0_only) {
  detail::engine_of(model).step.check_whole("full_optim_state_dict");
  detail::WholeTensors tensors(model, rank0_only, "[for_each_full_optim_state] the visitor failed");
  for (const detail::MomentEntries& entry : detail::moment_entries(model, optimizer)) {
    const c10::ScalarType dtype = entry.exp_avg.mine.dtype();
    const OptimState state{tensors.collect(entry.exp_avg, dtype),
                           tensors.collect(entry.exp_avg_sq, dtype),
                           optimizer.steps_done(entry.name())};
    tensors.visit([&] { visit(entry.name(), state); });
  }
  tensors.finish();
}

OptimStateDict full_optim_state_dict(ShardedModule& model, const AdamW& optimizer,
                                     bool rank0_only) {
  OptimStateDict dict;
  for_each_full_optim_state(
      model, optimizer,
      [&](const std::string& name, const OptimState& state) { dict.insert(name, state); },
      rank0_only);
  return dict;
}

void load_full_optim_state_dict(ShardedModule& model, AdamW& optimizer,
                                const OptimStateDict& dict) {
  detail::Step& step = detail::engine_of(model).step;
  step.require_between_steps("load_full_optim_state_dict");
  World& world = model.world();
  std::vector<detail::MomentEntries> entries = detail::moment_entries(model, optimizer);
  const std::vector<std::string> answers = detail::agree(
      world, "[load_full_optim_state_dict] loading failed",
      [&] { return world.rank() == 0 ? detail::check_dict(dict, entries) : std::string(); });
  step.writing_begins(detail::State::Optimizer, "load_full_optim_state_dict");
  for (detail::MomentEntries& entry : entries) {
    const OptimState none;
    const OptimState& state = world.rank() == 0 ? dict[entry.name()] : none;
    const c10::ScalarType dtype = entry.exp_avg.mine.dtype();
    detail::scatter_from_rank0(world, state.exp_avg, dtype, entry.exp_avg);
    detail::scatter_from_rank0(world, state.exp_avg_sq, dtype, entry.exp_avg_sq);
  }
  detail::set_steps(optimizer, entries, answers[0]);
  detail::rest(detail::engine_of(model).model);
  step.writing_ended(detail::State::Optimizer);
}

}  // namespace sherd
