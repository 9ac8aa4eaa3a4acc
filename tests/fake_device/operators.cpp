// ATen's operators on the fake device: its memory is the host's, so each operator runs on CPU
// tensors that lie in the same memory.

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_native.h>
#include <c10/core/TensorImpl.h>
#include <torch/library.h>

#include "tests/fake_device/captures.h"
#include "tests/fake_device/streams.h"

namespace sherd::fake {
namespace {

using torch::jit::Stack;

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDevice;
}

at::Tensor tensor_of(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                       like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                    like.storage_offset());
  return made;
}

c10::Storage storage_of(void* data, std::size_t bytes, void* context, c10::DeleterFnPtr let_go,
                        c10::Device device) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(data, context, let_go, device),
      c10::GetAllocator(device.type()), /*resizable=*/false));
}

// The same memory as a CPU tensor, which keeps it; but not the device's tensor, since that may hold
// the graph that it was computed by.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  }
  const c10::Storage& storage = tensor.storage();
  void* const data = storage.mutable_data();
  const auto let_go = [](void* kept) { delete static_cast<c10::Storage*>(kept); };
  return tensor_of(storage_of(data, storage.nbytes(), new c10::Storage(storage), let_go, at::kCPU),
                   tensor, c10::DispatchKey::CPU);
}

struct Held {
  at::Tensor tensor;
  c10::Stream stream;
};

// What an operator has made, as the device's.
at::Tensor taken_over(const at::Tensor& made, c10::Device device) {
  auto* const held = new Held{made, current_stream(device)};
  if (const auto capture = capture_with(held->stream)) {
    const auto begin = reinterpret_cast<std::uintptr_t>(made.storage().mutable_data());
    capture->own({begin, begin + made.storage().nbytes()});
  }
  const auto let_go = [](void* context) {
    auto* const kept = static_cast<Held*>(context);
    forget_memory(kept->tensor.storage().mutable_data(), kept->tensor.storage().nbytes(),
                  kept->stream);
    delete kept;
  };
  return tensor_of(
      storage_of(made.storage().mutable_data(), made.storage().nbytes(), held, let_go, device),
      made, c10::DispatchKey::PrivateUse1);
}

// An operator's call, with the device's tensors and their like on the host.
struct Call {
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors;  // of the device, on the host
  Touched touched;
  c10::Device device = c10::Device(kDevice, current_device());

  at::Tensor to_host(const at::Tensor& tensor, bool is_written) {
    if (!is_on_device(tensor)) {
      return tensor;
    }
    device = tensor.device();
    (is_written ? touched.writes : touched.reads).push_back(tensor);
    tensors.emplace_back(tensor, on_host(tensor));
    return tensors.back().second;
  }
  at::Tensor to_device(const at::Tensor& result) const {
    if (!result.defined() || result.device().type() == kDevice) {
      return result;
    }
    for (const auto& [mine, host] : tensors) {
      if (host.storage().unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl()) {
        return tensor_of(mine.storage(), result, c10::DispatchKey::PrivateUse1);
      }
    }
    return taken_over(result, device);
  }
};

c10::IValue to_host(Call& call, const c10::IValue& value, bool is_written) {
  if (value.isTensor()) {
    return call.to_host(value.toTensor(), is_written);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(call.to_host(tensor, is_written));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(call.to_host(*tensor, is_written)) : tensor);
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == kDevice) {
    return c10::Device(at::kCPU);
  }
  return value;
}

c10::IValue to_device(const Call& call, const c10::IValue& value) {
  if (value.isTensor()) {
    return call.to_device(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(call.to_device(tensor));
    }
    return list;
  }
  return value;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// What is returned as it was given: the argument that a result is, by its alias set.
std::optional<std::size_t> argument_of(const c10::FunctionSchema& schema,
                                       const c10::Argument& result) {
  for (std::size_t i = 0; i < schema.arguments().size() && is_written(result); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) {
      return i;
    }
  }
  return std::nullopt;
}

// Into what it was given: what it returns is that, and it may wait in a queue.
bool only_writes(const c10::FunctionSchema& schema) {
  const auto& results = schema.returns();
  return !results.empty() && std::all_of(results.begin(), results.end(), [&](const auto& result) {
    return argument_of(schema, result).has_value();
  });
}

// An output without elements takes on the shape of its result.
void grow(const Call& call) {
  for (const auto& [mine, host] : call.tensors) {
    if (mine.numel() == 0 && host.numel() > 0) {
      const at::Tensor made = taken_over(host, call.device);
      c10::TensorImpl* const impl = mine.unsafeGetTensorImpl();
      impl->set_storage_keep_dtype(made.storage());
      impl->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
    }
  }
}

std::vector<at::Tensor> tensors_of(const Stack& values) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& value : values) {
    TORCH_CHECK(value.isTensor() || value.isTensorList() || value.isNone(),
                "[fake device] the host waits in a capture: for what an operator returns");
    const auto some = value.isTensor()       ? std::vector<at::Tensor>{value.toTensor()}
                      : value.isTensorList() ? value.toTensorVector()
                                             : std::vector<at::Tensor>();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// Run once, for tensors of the right shapes: these get what each launch computes. Views are no
// operation.
void capture_now(const c10::OperatorHandle& op, const Call& call, const Stack& arguments,
                 Stack* stack) {
  TORCH_CHECK(call.touched.writes.empty(), "[fake device] ", op.schema().name(),
              " writes and makes tensors: it cannot be captured");
  Stack results = arguments;
  op.callBoxed(results);
  std::vector<at::Tensor> made = tensors_of(results);
  const auto is_view = [&](const at::Tensor& result) {
    return !result.defined() ||
           std::any_of(call.tensors.begin(), call.tensors.end(),
                       [&](const auto& pair) { return pair.second.is_alias_of(result); });
  };
  for (at::Tensor& result : made) {
    result = is_view(result) ? at::Tensor() : result;
  }
  for (const c10::IValue& result : results) {
    stack->push_back(to_device(call, result));
  }
  Touched touched{call.touched.reads, {}};
  std::copy_if(made.begin(), made.end(), std::back_inserter(touched.writes),
               [](const at::Tensor& result) { return result.defined(); });
  if (touched.writes.empty()) {
    return;
  }
  issue(current_stream(call.device), op.schema().name(), touched, [op, arguments, made] {
    Stack again = arguments;
    op.callBoxed(again);
    const std::vector<at::Tensor> computed = tensors_of(again);
    for (size_t i = 0; i < made.size(); ++i) {
      if (made[i].defined()) {
        made[i].copy_(computed[i]);
      }
    }
  });
}

// What makes tensors is run while the host waits, which is not counted: a GPU has no need to.
void run_now(const c10::OperatorHandle& op, Call& call, Stack& arguments, Stack* stack) {
  const c10::Stream stream = current_stream(call.device);
  if (capture_with(stream) != nullptr) {
    return capture_now(op, call, arguments, stack);
  }
  drain(stream);
  issue(stream, op.schema().name(), call.touched, [] {});
  drain(stream);
  op.callBoxed(arguments);
  for (const c10::IValue& result : arguments) {
    stack->push_back(to_device(call, result));
    const at::Tensor made = result.isTensor() ? stack->back().toTensor() : at::Tensor();
    const bool is_new = is_on_device(made) && std::none_of(call.tensors.begin(), call.tensors.end(),
                                                           [&](const auto& pair) {
                                                             return pair.first.is_alias_of(made);
                                                           });
    if (is_new) {
      issue(stream, op.schema().name(), {{}, {made}}, [] {});
    }
  }
}

void run(const c10::OperatorHandle& op, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t count = schema.arguments().size();
  const std::vector<c10::IValue> given(stack->end() - static_cast<std::ptrdiff_t>(count),
                                       stack->end());
  torch::jit::drop(*stack, count);
  Call call;
  Stack arguments;
  for (std::size_t i = 0; i < count; ++i) {
    arguments.push_back(to_host(call, given[i], is_written(schema.arguments()[i])));
  }
  if (!only_writes(schema)) {
    return run_now(op, call, arguments, stack);
  }
  const bool grows = std::any_of(call.touched.writes.begin(), call.touched.writes.end(),
                                 [](const at::Tensor& tensor) { return tensor.numel() == 0; });
  const c10::Stream stream = current_stream(call.device);
  const auto work = [op, arguments] {
    Stack values = arguments;
    op.callBoxed(values);
  };
  issue(stream, schema.name(), call.touched, work);
  const auto capture = capture_with(stream);
  if (capture != nullptr && (grows || capture->owns(ranges_of(call.touched)))) {
    work();  // what is computed from it meanwhile finds values
  }
  if (grows && capture != nullptr) {
    grow(call);
  } else if (grows) {
    drain(stream);
    grow(call);
  }
  for (const auto& result : schema.returns()) {
    stack->push_back(given[*argument_of(schema, result)]);
  }
}

at::Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> /*layout*/,
                               std::optional<c10::Device> device, std::optional<bool> /*pinned*/,
                               std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), c10::GetAllocator(kDevice),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                         std::optional<c10::Device> device, std::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), c10::GetAllocator(kDevice),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat> /*format*/) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  at::TensorImpl* const impl = self.unsafeGetTensorImpl();
  const auto needed = static_cast<std::size_t>(c10::multiply_integers(sizes)) * self.element_size();
  if (self.storage().nbytes() < needed) {
    const at::Tensor larger = at::empty(sizes, self.options());
    larger.flatten().slice(0, 0, self.numel()).copy_(self.flatten());
    impl->set_storage_keep_dtype(larger.storage());
    impl->set_storage_offset(0);
  }
  impl->set_sizes_contiguous(sizes);
  return self;
}

// Between it and memory that is not pinned the host waits, as with CUDA.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const c10::Device device = is_on_device(to) ? to.device() : self.device();
  const c10::Stream stream = current_stream(device);
  if (!is_on_device(to) && non_blocking && to.is_pinned()) {
    issue(stream, "copy to the host", {{self}, {to}},
          [target = to, source = on_host(self)]() mutable { target.copy_(source); });
    return to;
  }
  if (!is_on_device(to)) {
    issue(stream, "copy to the host", {{self}, {}}, [] {});
    synchronize(stream, "copy to the host");
    at::Tensor target = to;
    target.copy_(on_host(self));
    return to;
  }
  if (is_on_device(self)) {
    const auto work = [target = on_host(to), source = on_host(self)] { target.copy_(source); };
    issue(stream, "copy", {{self}, {to}}, work);
    const auto capture = capture_with(stream);
    if (capture != nullptr && capture->owns(ranges_of({{}, {to}}))) {
      work();
    }
    return to;
  }
  if (non_blocking && self.is_pinned()) {
    issue(stream, "copy to the device", {{self}, {to}},
          [target = on_host(to), source = self] { target.copy_(source); });
    return to;
  }
  refuse_captured(stream, "copy to the device");
  issue(stream, "copy to the device", {{}, {to}},
        [target = on_host(to), source = self.clone()] { target.copy_(source); });
  if (self.dim() > 0) {
    synchronize(stream, "copy to the device");
  }
  return to;
}

at::Scalar local_scalar(const at::Tensor& self) {
  const c10::Stream stream = current_stream(self.device());
  issue(stream, "item", {{self}, {}}, [] {});
  synchronize(stream, "item");
  return on_host(self).item();
}

// How many there are decides the shape: the host waits.
at::Tensor nonzero(const at::Tensor& self) {
  const c10::Stream stream = current_stream(self.device());
  issue(stream, "nonzero", {{self}, {}}, [] {});
  synchronize(stream, "nonzero");
  return taken_over(at::nonzero(on_host(self)), self.device());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty_memory_format);
  library.impl("empty_strided", &empty_strided);
  library.impl("resize_", &resize);
  library.impl("_copy_from", &copy_from);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("nonzero", &nonzero);
  // Its generic form has an output of one element change its shape on the way.
  library.impl("mse_loss", torch::CppFunction::makeFromBoxedFunction<&run>());
}

}  // namespace
}  // namespace sherd::fake
