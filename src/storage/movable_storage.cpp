#include "storage/movable_storage.h"

#include <ATen/core/TensorBase.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/TensorImpl.h>

namespace sherd::detail {

c10::intrusive_ptr<c10::StorageImpl> movable_storage(int64_t bytes, c10::Device device) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(nullptr, device), /*allocator=*/nullptr,
                                               /*resizable=*/false);
}

void point_at(c10::StorageImpl& storage, void* data) {
  storage.set_data_ptr_noswap(c10::DataPtr(data, storage.device()));
}

c10::intrusive_ptr<c10::StorageImpl> forbidden_storage(int64_t bytes, c10::Device device,
                                                       const std::string& message) {
  auto storage = movable_storage(bytes, device);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
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

at::Tensor flat_tensor(void* data, int64_t numel, c10::ScalarType dtype, c10::Device device) {
  const auto options = c10::TensorOptions().dtype(dtype).device(device);
  return at::for_blob(data, {numel}).options(options).target_device(device).make_tensor();
}

}  // namespace sherd::detail
