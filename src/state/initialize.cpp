// First values of a model: drawn by initialize(), rank 0's, or read from weights.

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include "kernels/shard_math.h"
#include "rendezvous/agree.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "sherd/state_dict.h"
#include "state/entries.h"
#include "step/step.h"
#include "storage/own_work.h"

namespace sherd {

namespace {

using NamedTensor = std::pair<std::string, at::Tensor>;

// Parameters and buffers, tied ones once.
std::vector<NamedTensor> states_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> states;
  std::set<const c10::TensorImpl*> seen;
  const auto add = [&](const std::string& kind, const auto& named) {
    for (const auto& item : named) {
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
        states.emplace_back(kind + " '" + item.key() + "'", item.value());
      }
    }
  };
  add("parameter", module.named_parameters());
  add("buffer", module.named_buffers());
  return states;
}

// Throws on every rank if one rank's states have no values here, or differ from rank 0's in name,
// shape or dtype.
void check_agreement(World& world, const std::vector<NamedTensor>& states) {
  const std::vector<std::string> all =
      detail::agree(world, "rank 0's values cannot be sent to all ranks", [&] {
        std::string text;
        for (const auto& [name, tensor] : states) {
          if (tensor.is_meta() || detail::is_sharded(tensor)) {
            throw Error(ExitCode::Usage,
                        "[sync_module_states] " + name +
                            (tensor.is_meta()
                                 ? " is on the meta device: shard the module, and give it"
                                 : " is sharded: call it before fully_shard, or give the sharded "
                                   "model") +
                            " rank 0's values by load_from_rank0.");
          }
          text += name + ": shape " + c10::str(tensor.sizes()) + ", " +
                  c10::toString(tensor.scalar_type()) + "\n";
        }
        return text;
      });
  detail::compare_ranks("[sync_module_states]", all, "Build the same module on all ranks.");
}

using NameInFile = std::function<std::string(const std::string&)>;
using ReaderOf = std::function<StoredReader(const std::string&)>;

// Returns why the folder's tensor cannot be the entry; empty if it can.
std::string source_fault(const detail::StateEntry& entry, const std::string& name,
                         const SafetensorsEntry& found) {
  const std::string what = entry.is_buffer() ? "buffer" : "parameter";
  if (found.shape != entry.shape) {
    return "\n  '" + name + "' has shape " + c10::str(at::IntArrayRef(found.shape)) +
           ", and the model's " + what + " " + c10::str(at::IntArrayRef(entry.shape));
  }
  if (!detail::can_be_read_as(found.dtype, entry.mine)) {
    return "\n  '" + name + "' has dtype " + std::string(found.dtype_name) + ", and the model's " +
           what + " " + c10::toString(entry.original_dtype);
  }
  return "";
}

// Adds the reads of this rank's elements, cut so that all threads have some.
void add_reads(std::vector<detail::HostWork>& reads, const detail::StateEntry& entry,
               const SafetensorsLocation& location, const StoredReader& reader_of_entry) {
  const auto reader = std::make_shared<const StoredReader>(reader_of_entry);
  constexpr int64_t kElements = int64_t{1} << 22;
  for (int64_t first = 0; first < entry.mine.numel(); first += kElements) {
    const int64_t numel = std::min(kElements, entry.mine.numel() - first);
    const int64_t begin = entry.begin + first;
    reads.push_back({entry.mine.narrow(first, numel),
                     [begin, location, reader](int64_t, const at::Tensor& host) {
                       const int64_t end = begin + host.numel();
                       if (*reader) {
                         (*reader)(location, begin, end, host.mutable_data_ptr());
                       } else {
                         location.file->read_elements(*location.entry, begin, end,
                                                      host.scalar_type(), host.mutable_data_ptr());
                       }
                     }});
  }
}

}  // namespace

void ParameterInit::refuse(const std::string& what) const {
  throw Error(ExitCode::Usage, "[initialize] " + entry_.described() + " " + what);
}

const std::string& ParameterInit::name() const {
  return entry_.name;
}

const std::vector<int64_t>& ParameterInit::shape() const {
  return entry_.shape;
}

int64_t ParameterInit::fan_in() const {
  if (shape().size() < 2) {
    refuse("has " + std::to_string(shape().size()) +
           " dimensions and so no fan-in: give its range itself.");
  }
  return c10::multiply_integers(shape().begin() + 1, shape().end());
}

void ParameterInit::fill_constant(double value) {
  entry_.mine.fill(value);
  filled_ = true;
}

template <class Distribution>
void ParameterInit::draw(const Distribution& distribution) {
  if (!entry_.mine.is_floating_point()) {
    refuse(std::string("is ") + c10::toString(entry_.mine.dtype()) +
           ", and random numbers are floating-point: use fill_constant or fill_from.");
  }
  constexpr int64_t kPerBlock = kernels::RandomWords::kPerBlock;
  // Offloaded elements of a GPU's model are drawn on the GPU, too.
  const c10::Device device = device_.is_meta() ? c10::Device(c10::kCPU) : device_;
  // 4 MiB of fp32 stay in a CPU's cache; a GPU takes 64 MiB.
  const int64_t most = int64_t{1} << (device.is_cpu() ? 20 : 24);
  const kernels::RandomWords words{seed_, kernels::stable_hash(entry_.name)};
  const int64_t numel = entry_.mine.numel();
  const int64_t skipped = entry_.begin % kPerBlock;  // of the first block
  const auto drawn = [&](int64_t count) {
    return (skipped + count + kPerBlock - 1) / kPerBlock * kPerBlock;
  };
  detail::own_work([&] {
    const at::Tensor chunk =
        at::empty({drawn(std::min(most, numel))}, c10::TensorOptions(at::kFloat).device(device));
    for (int64_t done = 0; done < numel; done += most) {
      const int64_t count = std::min(most, numel - done);
      const int64_t first = entry_.begin + done;
      detail::shard_math::fill_random(chunk.narrow(0, 0, drawn(count)), first - skipped, words,
                                      distribution);
      entry_.write(first, chunk.narrow(0, skipped, count));
    }
  });
  filled_ = true;
}

void ParameterInit::fill_uniform(double low, double high) {
  if (!(low <= high)) {
    refuse("cannot be uniform over [" + std::to_string(low) + ", " + std::to_string(high) +
           "): the first number is the lower one.");
  }
  draw(kernels::Uniform{low, high});
}

void ParameterInit::fill_normal(double mean, double std) {
  if (!(std >= 0)) {
    refuse("cannot have the standard deviation " + std::to_string(std) + ": it is 0 or more.");
  }
  draw(kernels::Normal{mean, std});
}

void ParameterInit::fill_kaiming_uniform(double a) {
  const double bound = std::sqrt(6.0 / ((1.0 + a * a) * static_cast<double>(fan_in())));
  fill_uniform(-bound, bound);
}

void ParameterInit::fill_from(const at::Tensor& whole) {
  if (!whole.defined() || whole.sizes() != at::IntArrayRef(entry_.shape)) {
    refuse("has shape " + c10::str(at::IntArrayRef(entry_.shape)) +
           ", and what it is to be filled from " +
           (whole.defined() ? c10::str(whole.sizes()) : std::string("is undefined")) + ".");
  }
  entry_.write(0, whole.detach().reshape({-1}));
  filled_ = true;
}

namespace {

// Before anything is written.
void check_seeds(ShardedModule& model, uint64_t seed) {
  const auto seeds = detail::agree(model.world(), "initialization failed", [&] {
    detail::require_all_sharded(detail::engine_of(model).model);
    return std::to_string(seed);
  });
  const auto other = std::ranges::find_if(seeds, [&](const auto& one) { return one != seeds[0]; });
  if (other != seeds.end()) {
    throw Error(ExitCode::RanksDisagree,
                "[initialize] rank 0 draws values by seed " + seeds[0] + ", rank " +
                    std::to_string(other - seeds.begin()) + " by seed " + *other +
                    ": pass the same seed on all ranks. Values depend on the seed, the name and "
                    "the element alone.");
  }
}

}  // namespace

void initialize(ShardedModule& model, uint64_t seed, const ParamInitFn& param_init_fn,
                const ParamInitFn& buffer_init_fn) {
  check_seeds(model, seed);
  detail::ShardWriter writer(detail::engine_of(model).step, "initialize");
  std::vector<detail::StateEntry> entries = detail::state_entries(model);
  detail::on_all_ranks(model.world(), "initialization failed", [&] {
    std::string left_out;
    for (detail::StateEntry& entry : entries) {
      ParameterInit init(entry, seed, model.world().device());
      if (const ParamInitFn& fill = entry.is_buffer() ? buffer_init_fn : param_init_fn) {
        fill(init);
      }
      if (init.is_filled()) {
        entry.finish_writing();
      } else if (!entry.is_written) {
        left_out += "\n  " + entry.described();
      }
    }
    if (!left_out.empty()) {
      throw Error(ExitCode::Usage,
                  "[initialize] these have no values (they were built on the meta device, or an "
                  "operation has left them torn), and no function filled them:" +
                      left_out +
                      "\nCall one of the fill functions for each; buffers have a function of their "
                      "own, buffer_init_fn.");
    }
  });
  writer.publish();
}

void sync_module_states(torch::nn::Module& module, World& world) {
  const std::vector<NamedTensor> states = states_of(module);
  check_agreement(world, states);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : states) {
    const at::Tensor flat =
        detail::own_work([&, whole = tensor] { return whole.detach().reshape({-1}); });
    detail::broadcast_elements(world, 0, flat, flat.numel(), flat.scalar_type(),
                               [&](int64_t first, const at::Tensor& values) {
                                 if (world.rank() != 0) {
                                   flat.narrow(0, first, values.numel()).copy_(values);
                                 }
                               });
    if (!flat.is_alias_of(tensor)) {
      tensor.copy_(flat.view(tensor.sizes()));
    }
  }
}

void load_safetensors(ShardedModule& model, const std::string& folder,
                      const NameInFile& name_in_file, const ReaderOf& reader_of) {
  std::optional<SafetensorsFolder> weights;
  std::vector<detail::StateEntry> entries;  // found in the folder
  std::vector<detail::HostWork> reads;
  detail::on_all_ranks(model.world(), "the weights could not be read", [&] {
    weights.emplace(folder);
    std::string faults;
    for (detail::StateEntry& entry : detail::state_entries(model)) {
      const std::string name = name_in_file ? name_in_file(entry.name) : entry.name;
      if (name.empty()) {
        continue;
      }
      const auto found = weights->find(name);
      if (!found) {
        faults += entry.is_buffer() ? "" : "\n  '" + name + "' is missing";
        continue;
      }
      const StoredReader reader = reader_of ? reader_of(entry.name) : nullptr;
      if (reader && entry.mine.is_floating_point()) {
        faults += "\n  '" + name + "' has a reader, and its parameter is not of integers";
      }
      faults += reader ? "" : source_fault(entry, name, *found->entry);
      add_reads(reads, entry, *found, reader);
      entries.push_back(std::move(entry));
    }
    if (!faults.empty()) {
      throw Error(ExitCode::BadData,
                  "the weights in '" + folder + "' are not those of this model:" + faults +
                      "\nCheck that config.json and the weights belong together.");
    }
  });
  detail::ShardWriter writer(detail::engine_of(model).step, "load_safetensors");
  detail::fill_entries(model.world(), entries, reads, "the weights", folder);
  writer.publish();
}

}  // namespace sherd
