#include "llm/plan/moved_bytes.h"

#include <algorithm>
#include <array>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "ops/fused_attention.h"

namespace llm::plan {

namespace {

using Arguments = c10::ArrayRef<const c10::IValue>;

// How often an operator passes over as many bytes as one of its arrays has.
struct Passes {
  std::string_view name;
  double count;
};

// Over their first argument. Half of a model's norms have an addition before them: two arrays more.
constexpr std::array<Passes, 10> kOfInput = {{{"rms_norm", 3},
                                              {"rms_norm_backward", 3.5},
                                              {"layer_norm", 3},
                                              {"layer_norm_backward", 3.5},
                                              {"rotary", 2},
                                              {"rotary_backward", 2},
                                              {"bias_gelu", 2},
                                              {"bias_gelu_backward", 3},
                                              {"embedding_backward", 2},
                                              {"index_select_backward", 2}}};
// Over what a product has for each row and column of its weight: what SwiGLU makes of gate and up,
// which backward makes again, by itself or as it goes; the logits, which become their gradient in
// place.
constexpr std::array<Passes, 4> kOfInputs = {{{"swiglu_linear", 3},
                                              {"swiglu_linear_backward", 8},
                                              {"geglu_linear", 3},
                                              {"geglu_linear_backward", 8}}};
constexpr double kGateBackwardInOne = 6;
constexpr std::array<Passes, 3> kOfOutputs = {{{"linear_cross_entropy", 2},
                                               {"linear_cross_entropy_backward", 3},
                                               {"chunked_linear_cross_entropy", 5}}};
constexpr std::array<std::string_view, 8> kNothing = {"linear",
                                                      "linear_backward",
                                                      "linear_input_gradient",
                                                      "linear_weight_gradient",
                                                      "inference_linear",
                                                      "attention",
                                                      "attention_backward",
                                                      "chunked_linear_cross_entropy_backward"};
constexpr std::array<std::string_view, 18> kNewNames = {
    "as_strided", "detach",    "empty", "expand",  "narrow",    "reshape",
    "select",     "slice",     "split", "squeeze", "t",         "to",
    "permute",    "transpose", "view",  "view_as", "unsqueeze", "unsafe_split_with_sizes"};

template <std::size_t N>
double passes_of(const std::array<Passes, N>& passes, std::string_view name) {
  const auto found = std::find_if(passes.begin(), passes.end(),
                                  [&](const Passes& one) { return one.name == name; });
  return found == passes.end() ? 0 : found->count;
}

template <std::size_t N>
bool is_among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

double bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<double>(tensor.nbytes()) : 0;
}

double argument_bytes(const c10::IValue& argument) {
  if (argument.isTensor()) {
    return bytes_of(argument.toTensor());
  }
  double bytes = 0;
  if (argument.isTensorList()) {
    for (const at::Tensor& tensor : argument.toTensorVector()) {
      bytes += bytes_of(tensor);
    }
  }
  return bytes;
}

double dtype_bytes(c10::ScalarType dtype) {
  return static_cast<double>(c10::elementSize(dtype));
}

// [rows, …] × a weight [outputs, inputs]: what there is for each row and one of those two.
double bytes_beside_product(const Arguments& arguments, int dimension) {
  const at::Tensor& rows = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  return static_cast<double>(rows.numel() / rows.size(-1) * weight.size(dimension)) *
         dtype_bytes(rows.scalar_type());
}

// LibTorch's operators: the arguments, and a result as large as the first.
double bytes_through(const Arguments& arguments) {
  double bytes = arguments.empty() ? 0 : argument_bytes(arguments[0]);
  for (const c10::IValue& argument : arguments) {
    bytes += argument_bytes(argument);
  }
  return bytes;
}

c10::ScalarType travelling_dtype(const PlannedRun& run) {
  return run.sharding.precision.param_dtype.value_or(c10::kFloat);
}

// Of an element that NCCL's reduce-scatter is given: no sum is rounded further than reduce_dtype.
double native_bytes(const PlannedRun& run) {
  const bool is_narrow = travelling_dtype(run) == run.sharding.precision.reduce_dtype;
  return dtype_bytes(is_narrow ? travelling_dtype(run) : c10::kFloat);
}

}  // namespace

bool is_gate_backward_in_one(Arguments arguments) {
  return arguments.size() > 2 && arguments[2].isInt() && arguments[2].toInt() != 0;
}

bool has_frozen_weight(Arguments arguments) {
  return arguments.size() > 3 && arguments[3].isInt() && arguments[3].toInt() == 0;
}

bool has_frozen_head(Arguments arguments) {
  return !arguments[1].toTensor().requires_grad();
}

double moved_bytes(std::string_view name, Arguments arguments) {
  if (is_among(kNothing, name) || is_among(kNewNames, name)) {
    return 0;
  }
  if (name == "embedding") {  // its rows, not the table
    const at::Tensor& table = arguments[1].toTensor();
    return 2 * static_cast<double>(arguments[0].toTensor().numel() * table.size(-1)) *
           dtype_bytes(table.scalar_type());
  }
  if (const double passes = passes_of(kOfInput, name); passes > 0) {
    return passes * argument_bytes(arguments[0]);
  }
  if (const double passes = passes_of(kOfInputs, name); passes > 0) {
    return (is_gate_backward_in_one(arguments) ? kGateBackwardInOne : passes) *
           bytes_beside_product(arguments, 1);
  }
  if (const double passes = passes_of(kOfOutputs, name); passes > 0) {
    return passes * bytes_beside_product(arguments, 0);
  }
  return bytes_through(arguments);
}

double update_bytes_a_parameter(const PlannedRun& run) {
  constexpr double kFloat32 = 4, kReadAndWritten = 2;
  const sherd::Precision& precision = run.sharding.precision;
  const double travelling = dtype_bytes(travelling_dtype(run));
  const bool is_rounded = travelling < kFloat32 && precision.master == sherd::Master::Float32;
  const double weights = is_rounded ? kReadAndWritten * kFloat32 + travelling
                         : precision.master == sherd::Master::Split ? kReadAndWritten * kFloat32
                                                                    : kReadAndWritten * travelling;
  return weights + kReadAndWritten * 2 * dtype_bytes(run.adamw.moments_dtype) +
         dtype_bytes(precision.reduce_dtype);
}

// As ops/cuda/flash_attention.cpp: all heads are copied, and what comes back of queries alone.
AlibiColumns alibi_columns(const PlannedRun& run, double tokens, bool is_backward) {
  constexpr auto kColumns = static_cast<double>(sherd::ops::kAlibiColumns);
  const model::DecoderConfig& shape = run.model.shape;
  const double element = dtype_bytes(travelling_dtype(run));
  const bool is_plain = run.attention == sherd::ops::AttentionKernel::Plain;
  if (run.ranks.device == c10::DeviceType::CPU || is_plain || shape.rope || element != 2) {
    return {};
  }
  const auto size = static_cast<double>(shape.head_size);
  const double queries = static_cast<double>(shape.heads) * tokens;
  const double keys_and_values = 2 * static_cast<double>(shape.key_heads) * tokens;
  const double widened = size + (size + kColumns);  // read and written
  const double values = is_backward ? (3 * queries + keys_and_values) * widened
                                    : (queries + keys_and_values) * widened + 2 * queries * size;
  return {(size + kColumns) / size, element * values};
}

namespace {

// Of a device, what rests on a disk comes through the host too.
bool crosses_link(const PlannedRun& run, bool on_host, const std::string& folder) {
  return on_host || (run.ranks.device != c10::DeviceType::CPU && !folder.empty());
}

// Moments, and what is kept of masters beside the parameter that travels.
double state_bytes_a_parameter(const PlannedRun& run) {
  constexpr double kFloat32 = 4, kLowBits = 2;
  const bool travels_whole = travelling_dtype(run) == c10::kFloat;  // its own master
  const sherd::Master master = run.sharding.precision.master;
  const double of_master = travels_whole || master == sherd::Master::BFloat16 ? 0
                           : master == sherd::Master::Split                   ? kLowBits
                                                                              : kFloat32;
  return of_master + 2 * dtype_bytes(run.adamw.moments_dtype);
}

}  // namespace

double resting_bytes_a_parameter(const PlannedRun& run) {
  const sherd::Offload& offload = run.sharding.offload;
  return crosses_link(run, offload.optimizer_on_host, offload.optimizer_folder)
             ? state_bytes_a_parameter(run)
             : 0;
}

double disk_bytes_a_parameter(const PlannedRun& run) {
  const sherd::Offload& offload = run.sharding.offload;
  const auto times = static_cast<double>(run.micro_batches.size());
  const double parameter = dtype_bytes(travelling_dtype(run));
  const double sum = dtype_bytes(run.sharding.precision.reduce_dtype);
  return (offload.optimizer_folder.empty() ? 0 : 2 * state_bytes_a_parameter(run)) +
         (offload.gradient_folder.empty() ? 0 : 2 * times * sum) +
         (offload.parameter_folder.empty() ? 0 : (2 * times + 2) * parameter);
}

double disk_bytes_a_frozen_parameter(const PlannedRun& run) {
  const auto times = static_cast<double>(run.micro_batches.size());
  return run.sharding.offload.parameter_folder.empty()
             ? 0
             : 2 * times * dtype_bytes(travelling_dtype(run));
}

bool offloads_to_disk(const PlannedRun& run) {
  const sherd::Offload& offload = run.sharding.offload;
  return !(offload.optimizer_folder + offload.gradient_folder + offload.parameter_folder).empty();
}

double parameter_bytes_on_host(const PlannedRun& run) {
  const sherd::Offload& offload = run.sharding.offload;
  return crosses_link(run, offload.parameters_on_host, offload.parameter_folder)
             ? dtype_bytes(travelling_dtype(run))
             : 0;
}

double gradient_bytes_on_host(const PlannedRun& run) {
  const sherd::Offload& offload = run.sharding.offload;
  return crosses_link(run, offload.gradients_on_host, offload.gradient_folder)
             ? dtype_bytes(run.sharding.precision.reduce_dtype)
             : 0;
}

double sum_bytes(const PlannedRun& run, int parts, double elements) {
  const double part = dtype_bytes(travelling_dtype(run));
  const double sum = dtype_bytes(run.sharding.precision.reduce_dtype);
  const auto times = static_cast<double>(run.micro_batches.size());
  if (parts == 1 && part == sum) {  // the first gradient is the sum
    return elements * (times - 1) * (part + 2 * sum);
  }
  if (sums_natively(run)) {
    const double sent = native_bytes(run);
    const double widened = sent == part ? 0 : parts * (part + sent);  // a copy of all parts
    return elements * (times * (widened + sent + sum) + (times - 1) * sum);
  }
  return elements * (times * (parts * part + sum) + (times - 1) * sum);
}

}  // namespace llm::plan
