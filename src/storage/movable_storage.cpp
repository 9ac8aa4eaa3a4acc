#include "storage/movable_storage.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include <ATen/core/TensorBase.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/TensorImpl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sherd/error.h"
#include "sherd/fully_shard.h"
#include "storage/device.h"

namespace sherd {

namespace detail {

namespace {

// Addresses without access rights, and what a fault there means.
struct Forbidden {
  Mapping addresses;
  std::string message;
  [[nodiscard]] bool contains(const void* address) const {
    const auto offset =
        static_cast<const char*>(address) - static_cast<const char*>(addresses.get());
    return offset >= 0 && offset < addresses.get_deleter().bytes;
  }
};

// A signal handler can only look in static memory. Addresses that the table has no room for are
// still without access rights, but not explained.
constexpr size_t kMostForbidden = 4096;
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
std::array<std::atomic<const Forbidden*>, kMostForbidden> all_forbidden{};

void replace_in_table(const Forbidden* old, const Forbidden* replacement) {
  for (auto& entry : all_forbidden) {
    const Forbidden* expected = old;
    if (entry.compare_exchange_strong(expected, replacement)) {
      return;
    }
  }
}

void on_fault(int signal_number, siginfo_t* info, void* /*context*/) {
  for (const auto& entry : all_forbidden) {
    const Forbidden* const one = entry.load();
    if (one != nullptr && one->contains(info->si_addr)) {
      const auto written = write(STDERR_FILENO, one->message.data(), one->message.size());
      static_cast<void>(written);
      _exit(static_cast<int>(ExitCode::Usage));
    }
  }
  signal(signal_number, SIG_DFL);  // any other fault: as without this handler
  raise(signal_number);
}

// LibTorch can forbid access to a storage, and has no way back: an explicit instantiation may name
// the private member.
template <bool c10::StorageImpl::*Flag>
struct Forbidding {
  friend bool& throws_on_access(c10::StorageImpl& storage) { return storage.*Flag; }
};
template struct Forbidding<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
bool& throws_on_access(c10::StorageImpl& storage);

}  // namespace

c10::intrusive_ptr<c10::StorageImpl> movable_storage(int64_t bytes, c10::Device device) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(nullptr, device), /*allocator=*/nullptr,
                                               /*resizable=*/false);
}

void point_at(c10::StorageImpl& storage, void* data, bool is_forbidden) {
  throws_on_access(storage) = is_forbidden;
  storage.set_data_ptr_noswap(c10::DataPtr(data, storage.device()));
}

void forbid(c10::StorageImpl& storage, const std::string& message) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

c10::intrusive_ptr<c10::StorageImpl> forbidden_storage(int64_t bytes, c10::Device device,
                                                       const std::string& message) {
  auto storage = movable_storage(bytes, device);
  forbid(*storage, message);
  return storage;
}

at::Tensor view_of(const c10::intrusive_ptr<c10::StorageImpl>& storage, int64_t offset,
                   at::IntArrayRef shape, c10::ScalarType dtype) {
  const auto key = c10::computeDispatchKey(dtype, c10::kStrided, storage->device());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

at::Tensor flat_tensor(void* data, int64_t numel, c10::ScalarType dtype, c10::Device device,
                       std::shared_ptr<void> owner) {
  const auto options = c10::TensorOptions().dtype(dtype).device(device);
  if (owner == nullptr) {
    return at::for_blob(data, {numel}).options(options).target_device(device).make_tensor();
  }
  return at::for_blob(data, {numel})
      .deleter([owner = std::move(owner)](void* /*data*/) {})
      .options(options)
      .target_device(device)
      .make_tensor();
}

namespace {

std::string explain(const std::string& what, const std::string& unit) {
  return what + " of unit '" + unit +
         "' was used while it was sharded. Use it inside the unit's forward, in unit.run(…), or, "
         "of the root, inside a call of the model's handle. ";
}

}  // namespace

std::string explain_use(const std::string& parameter, const std::string& unit) {
  return explain("parameter '" + parameter + "'", unit) +
         "to(), clone() and torch::save() cannot be used on a sharded module.";
}

std::string explain_use_of_view(const std::string& unit) {
  return explain("a view of a parameter", unit) +
         "A unit returns clone() of it. A loss that a unit keeps in a member, and a result that is "
         "a view and written in place, do not gather the unit in backward: return the loss, and "
         "clone() of the result.";
}

std::shared_ptr<void> forbidden_addresses(int64_t bytes, const std::string& message) {
  const auto made = std::make_shared<Forbidden>(
      Forbidden{map_memory(bytes, PROT_NONE, MAP_NORESERVE), "sherd: " + message + "\n"});
  if (made->addresses == nullptr) {
    throw Error(ExitCode::OutOfMemory,
                "out of memory: " + std::to_string(bytes) +
                    " bytes of addresses for resharded parameters could not be reserved (" +
                    std::strerror(errno) + "). Raise the limit on addresses (ulimit -v).");
  }
  replace_in_table(nullptr, made.get());
  return {made->addresses.get(), [made](void*) { replace_in_table(made.get(), nullptr); }};
}

}  // namespace detail

void explain_access_to_sharded_parameters() {
  struct sigaction action {};
  action.sa_sigaction = detail::on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace sherd
