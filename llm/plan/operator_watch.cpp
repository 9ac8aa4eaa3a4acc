#include "llm/plan/operator_watch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include "llm/plan/moved_bytes.h"

namespace llm::plan {

namespace {

using Clock = std::chrono::steady_clock;
using Arguments = c10::ArrayRef<const c10::IValue>;

constexpr std::string_view kOurs = "sherd::";
constexpr std::string_view kLibTorchs = "aten::";
constexpr std::string_view kBackward = "_backward";
constexpr std::string_view kAttention = "attention";
constexpr std::string_view kLoss = "linear_cross_entropy";
constexpr std::string_view kChunkedLoss = "chunked_linear_cross_entropy";
constexpr std::array<std::string_view, 2> kContainers = {"forward", "backward"};
constexpr std::string_view kUpdate = "lora_linear";
constexpr std::array<std::string_view, 8> kProducts = {"linear",
                                                       "linear_input_gradient",
                                                       "linear_weight_gradient",
                                                       "inference_linear",
                                                       "swiglu_linear",
                                                       "geglu_linear",
                                                       kLoss,
                                                       kUpdate};

double bytes_of(const Arguments& arguments) {
  double bytes = 0;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      bytes += static_cast<double>(argument.toTensor().nbytes());
    }
  }
  return bytes;
}

// [rows, inputs] × [inputs, outputs]ᵀ.
double linear_operations(const Arguments& arguments) {
  const at::Tensor& rows = arguments[0].toTensor();
  return 2 * static_cast<double>(rows.numel()) / static_cast<double>(rows.size(-1)) *
         static_cast<double>(arguments[1].toTensor().numel());
}

// [rows, I] × Aᵀ × Bᵀ of each low-rank update: the last two arguments, where they are lists, are
// the A's and B's.
double update_operations(const Arguments& arguments) {
  double elements = 0;
  for (std::size_t i = 1; i <= 2 && i < arguments.size(); ++i) {
    const c10::IValue& list = arguments[arguments.size() - i];
    for (const at::Tensor& matrix :
         list.isTensorList() ? list.toTensorVector() : std::vector<at::Tensor>()) {
      elements += static_cast<double>(matrix.numel());
    }
  }
  const at::Tensor& rows = arguments[0].toTensor();
  return 2 * static_cast<double>(rows.numel()) / static_cast<double>(rows.size(-1)) * elements;
}

// Of which document's length a pair of tokens is, on average.
double mean_document_tokens(const Arguments& arguments) {
  const std::vector<std::int64_t> bounds = arguments[1].toIntVector();
  double squares = 0, cubes = 0;
  for (std::size_t i = 1; i < bounds.size(); ++i) {
    const auto length = static_cast<double>(bounds[i] - bounds[i - 1]);
    squares += length * length;
    cubes += length * length * length;
  }
  return squares > 0 ? cubes / squares : 0;
}

std::string_view forward_of(std::string_view name) {
  return name.ends_with(kBackward) ? name.substr(0, name.size() - kBackward.size()) : name;
}

double amount_of(std::string_view name, const Arguments& arguments) {
  return multiplies(name) ? product_operations(name, arguments) : bytes_of(arguments);
}

// Of the arguments' floating point numbers.
std::string dtype_of(const Arguments& arguments) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined() &&
        argument.toTensor().is_floating_point()) {
      return bits_of(argument.toTensor().scalar_type());
    }
  }
  return "";
}

}  // namespace

bool multiplies(std::string_view name) {
  const std::string_view forward = forward_of(name);
  return forward == kAttention || name == kChunkedLoss ||
         std::find(kProducts.begin(), kProducts.end(), forward) != kProducts.end();
}

double product_operations(std::string_view name, c10::ArrayRef<const c10::IValue> arguments) {
  if (name == kChunkedLoss) {
    return (has_frozen_head(arguments) ? 2 : 3) * linear_operations(arguments);
  }
  const double directions = name.ends_with(kBackward) ? 2 : 1;
  if (forward_of(name) == kAttention) {
    return directions * attention_operations(arguments);
  }
  const double of_update = directions * update_operations(arguments);
  if (forward_of(name) == kUpdate) {
    return of_update;
  }
  const bool is_frozen =
      forward_of(name) == kLoss ? has_frozen_head(arguments) : has_frozen_weight(arguments);
  const double of_weight = is_frozen ? 1 : directions;
  return of_weight * linear_operations(arguments) + of_update;
}

std::string bits_of(c10::ScalarType dtype) {
  return dtype == c10::kFloat ? " float32" : " 16 bits";
}

struct OperatorWatch::State {
  std::function<void(const OperatorCall&)> on_end;
  int open = 0;  // nested ones, from the outermost operator on
  OperatorCall outermost;
  Clock::time_point start;

  void begin(const at::RecordFunction& function) {
    if (open++ > 0) {
      return;
    }
    std::string_view name = function.name();
    if (name.starts_with(kOurs)) {
      name.remove_prefix(kOurs.size());
      outermost = {std::string(name) + dtype_of(function.inputs()),
                   amount_of(name, function.inputs())};
      note_moved(name, function.inputs());
      if (name.starts_with(kAttention)) {
        outermost.document_tokens = mean_document_tokens(function.inputs());
        outermost.has_window = window_of(function.inputs()) != 0;
      }
    } else if (function.scope() == at::RecordScope::USER_SCOPE) {
      outermost = {std::string(name)};
    } else {
      outermost = {std::string(name) + dtype_of(function.inputs()), bytes_of(function.inputs())};
      name.remove_prefix(name.starts_with(kLibTorchs) ? kLibTorchs.size() : 0);
      note_moved(name, function.inputs());
    }
    start = Clock::now();
  }

  // Kernels are planned of tensors on meta; where something computes, they would take time.
  void note_moved(std::string_view name, const Arguments& arguments) {
    outermost.moved_bytes = moved_bytes(name, arguments);
    if (!arguments.empty() && arguments[0].isTensor() && arguments[0].toTensor().is_meta()) {
      outermost.kernels = kernels_of(name, arguments);
    }
  }

  void end() {
    if (--open == 0) {
      outermost.seconds = std::chrono::duration<double>(Clock::now() - start).count();
      on_end(outermost);
    }
  }
};

namespace {

// Observers are plain functions; this is how one finds its watch.
thread_local OperatorWatch::State* observed = nullptr;

// Autograd's own scopes, too, only hold others.
bool is_container(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (function.scope() == at::RecordScope::USER_SCOPE) {
    return std::find(kContainers.begin(), kContainers.end(), name) != kContainers.end();
  }
  return !name.starts_with(kOurs) && !name.starts_with(kLibTorchs);
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  if (observed != nullptr && !is_container(function)) {
    observed->begin(function);
  }
  return nullptr;
}
void on_operator_end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  if (observed != nullptr && !is_container(function)) {
    observed->end();
  }
}

}  // namespace

OperatorWatch::OperatorWatch(std::function<void(const OperatorCall&)> on_end)
    : state_(std::make_unique<State>()) {
  TORCH_CHECK(observed == nullptr, "[OperatorWatch] one at a time a thread");
  state_->on_end = std::move(on_end);
  observed = state_.get();
  observer_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&on_begin, &on_operator_end)
          .needsInputs(true)
          .scopes({at::RecordScope::USER_SCOPE, at::RecordScope::FUNCTION}));
}

OperatorWatch::~OperatorWatch() {
  at::removeCallback(observer_);
  observed = nullptr;
}

}  // namespace llm::plan
