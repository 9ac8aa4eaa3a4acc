#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>

#include "rendezvous/agree.h"
#include "sherd/error.h"
#include "unit/model.h"

namespace sherd::detail {

namespace {

std::string dtype_name(const std::optional<c10::ScalarType>& dtype) {
  return dtype ? c10::toString(*dtype) : "own";
}

std::string describe(const Precision& precision) {
  return c10::str(
      "param_dtype ", dtype_name(precision.param_dtype), ", master ", name_of(precision.master),
      ", reduce_dtype ", c10::toString(precision.reduce_dtype), ", buffer_dtype ",
      dtype_name(precision.buffer_dtype), ", output_dtype ", dtype_name(precision.output_dtype),
      ", cast_forward_inputs ", precision.cast_forward_inputs, ", full_precision_in_eval ",
      precision.full_precision_in_eval);
}

const char* place_of(const std::string& folder, bool on_host = false) {
  return !folder.empty() ? "to a disk" : on_host ? "to the host" : "none";
}

// The sum of its bits as integers: values of another seed have another.
std::string digest_of_values(const UnitParameter& parameter) {
  if (!parameter.has_values) {
    return "none";
  }
  const at::NoGradGuard no_grad;
  const auto bytes = parameter.tensor.element_size();
  const auto dtype = bytes == 4   ? at::kInt
                     : bytes == 2 ? at::kShort
                                  : parameter.tensor.scalar_type();
  return c10::str("digest ", parameter.tensor.detach().view(dtype).sum().item<int64_t>());
}

// One line for each field, so that messages can quote the first that differs.
std::string describe(const Model& model) {
  const ShardOptions& options = model.options;
  std::string text = c10::str(
      "strategy ", name_of(options.strategy), "\nmesh of ", model.mesh.replicate_size(), " x ",
      model.mesh.shard_size(), " ranks\nprefetch_depth ", options.prefetch_depth,
      "\nbackward_prefetch ", options.backward_prefetch == BackwardPrefetch::Pre ? "Pre" : "Post",
      "\nreshard_after_forward_size ", options.reshard_after_forward_size, "\ndebug ",
      options.debug, "\noffload of the optimizer ",
      place_of(options.offload.optimizer_folder, options.offload.optimizer_on_host),
      "\noffload of gradients ",
      place_of(options.offload.gradient_folder, options.offload.gradients_on_host),
      "\noffload of parameters ",
      place_of(options.offload.parameter_folder, options.offload.parameters_on_host),
      "\noffload of activations ", place_of("", options.offload.activations_on_host), "\n");
  for (const std::string& name : options.forward_order) {
    text += "forward_order '" + name + "'\n";
  }
  for (const auto& unit : model.units) {
    text += c10::str("unit '", unit->name(), "': reshard_after_forward ",
                     unit->settings().reshard_after_forward, ", checkpoint_activations ",
                     unit->settings().checkpoint_activations, ", ",
                     describe(unit->settings().precision), "\n");
    for (const UnitParameter& parameter : unit->parameters()) {
      const SegmentLayout& layout = unit->segments()[parameter.segment]->layout();
      text += c10::str("parameter '", parameter.name, "' of unit '", unit->name(), "': shape ",
                       parameter.tensor.sizes(), ", ", c10::toString(layout.dtype),
                       parameter.trainable ? "" : ", frozen", "\n");
    }
  }
  for (const ModelBuffer& buffer : model.buffers) {
    text += c10::str("buffer '", buffer.name, "': shape ", buffer.tensor.sizes(), ", ",
                     c10::toString(buffer.tensor.scalar_type()), "\n");
  }
  return text;
}

// One line for each parameter's values.
std::string describe_values(const Model& model) {
  std::string text;
  for (const auto& unit : model.units) {
    for (const UnitParameter& parameter : unit->parameters()) {
      text += c10::str("values of parameter '", parameter.name, "': ", digest_of_values(parameter),
                       "\n");
    }
  }
  return text;
}

std::string line_at(const std::string& text, std::string::const_iterator place) {
  const auto offset = static_cast<size_t>(place - text.begin());
  const size_t begin = offset == 0 ? 0 : text.rfind('\n', offset - 1) + 1;
  return begin >= text.size() ? "nothing more" : text.substr(begin, text.find('\n', begin) - begin);
}

// The first rank that differs from rank 0, and in what; empty: none.
std::string difference_of(const std::vector<std::string>& all) {
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      const auto [first, other] =
          std::mismatch(all[0].begin(), all[0].end(), all[rank].begin(), all[rank].end());
      return "Rank 0 has " + line_at(all[0], first) + "; rank " + std::to_string(rank) + " has " +
             line_at(all[rank], other) + ". ";
    }
  }
  return "";
}

}  // namespace

void compare_ranks(const char* operation, const std::vector<std::string>& all,
                   const std::string& remedy) {
  const std::string difference = difference_of(all);
  if (!difference.empty()) {
    throw Error(ExitCode::RanksDisagree,
                std::string(operation) + " ranks disagree. " + difference + remedy);
  }
}

void build_and_compare(Model& model, const std::function<void()>& build) {
  World& world = model.mesh.world();
  const std::vector<std::string> all = agree(world, "the model cannot be sharded", [&] {
    build();
    return describe(model);
  });
  compare_ranks("[fully_shard]", all, "Start all ranks with the same model and options.");
  if (model.mesh.replicate_size() > 1) {
    model.replicas_differ = difference_of(
        agree(world, "the model cannot be sharded", [&] { return describe_values(model); }));
  }
}

}  // namespace sherd::detail
