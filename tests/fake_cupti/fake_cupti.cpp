#include "tests/fake_cupti/fake_cupti.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <unistd.h>

namespace {

using Bytes = std::vector<std::uint8_t>;

struct Player {
  std::mutex mutex;
  std::set<CUpti_ActivityKind> enabled;
  std::vector<Bytes> records;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  CUpti_TimestampCallbackFunc clock = nullptr;
  std::uint8_t* buffer = nullptr;  // the profiler's, from the first record on
  std::size_t buffer_bytes = 0;
  std::uint32_t correlation = 0;
  std::atomic<bool> refuses = false;
};

Player& player() {
  static Player the_player;
  return the_player;
}

CUptiResult answer() {
  return player().refuses ? CUPTI_ERROR_INSUFFICIENT_PRIVILEGES : CUPTI_SUCCESS;
}

// By kind, of the calling thread.
std::map<CUpti_ExternalCorrelationKind, std::vector<std::uint64_t>>& external_ids() {
  thread_local std::map<CUpti_ExternalCorrelationKind, std::vector<std::uint64_t>> ids;
  return ids;
}

std::uint64_t now() {
  return player().clock != nullptr
             ? player().clock()
             : static_cast<std::uint64_t>(
                   std::chrono::system_clock::now().time_since_epoch().count());
}

template <class Record>
void keep(const Record& record) {
  Bytes bytes(sizeof(Record));
  std::memcpy(bytes.data(), &record, sizeof(Record));
  player().records.push_back(std::move(bytes));
}

std::size_t size_of(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
      return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(CUpti_ActivityMemcpy6);
    default:
      return sizeof(CUpti_ActivityMemset4);
  }
}

// What CUPTI keeps of every launch: which operators of the host it is in, and the call of CUDA.
// Returns the correlation of all of its records.
std::uint32_t keep_launch(std::uint64_t time) {
  const std::uint32_t correlation = ++player().correlation;
  for (const auto& [kind, ids] : external_ids()) {
    if (!ids.empty()) {
      CUpti_ActivityExternalCorrelation record{};
      record.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
      record.externalKind = kind;
      record.externalId = ids.back();
      record.correlationId = correlation;
      keep(record);
    }
  }
  CUpti_ActivityAPI call{};
  call.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  call.cbid = CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000;
  call.start = time;
  call.end = time + 1;
  call.processId = static_cast<std::uint32_t>(getpid());
  call.threadId = static_cast<std::uint32_t>(gettid());
  call.correlationId = correlation;
  keep(call);
  return correlation;
}

// The host waits for it: the clock that CUPTI is given has a unit of its own.
template <class Record>
void keep_activity(Record record, CUpti_ActivityKind kind, std::uint64_t nanoseconds) {
  const std::lock_guard lock(player().mutex);
  const std::uint64_t start = now();
  std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
  if (player().enabled.count(kind) == 0) {
    return;
  }
  if (player().buffer == nullptr && player().request != nullptr) {
    std::size_t most_records = 0;
    player().request(&player().buffer, &player().buffer_bytes, &most_records);
  }
  record.kind = kind;
  record.start = start;
  record.end = now();
  record.streamId = 7;
  record.contextId = 1;
  record.correlationId = keep_launch(start);
  keep(record);
}

}  // namespace

namespace fake_cupti {

void launch(const char* name, std::uint64_t nanoseconds) {
  CUpti_ActivityKernel10 kernel{};
  kernel.name = name;
  kernel.gridX = kernel.gridY = kernel.gridZ = kernel.blockX = kernel.blockY = kernel.blockZ = 1;
  keep_activity(kernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, nanoseconds);
}

void copy_on_device(std::uint64_t bytes, std::uint64_t nanoseconds) {
  CUpti_ActivityMemcpy6 copy{};
  copy.bytes = bytes;
  copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
  copy.srcKind = copy.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  keep_activity(copy, CUPTI_ACTIVITY_KIND_MEMCPY, nanoseconds);
}

void set_memory(std::uint64_t bytes, std::uint64_t nanoseconds) {
  CUpti_ActivityMemset4 set{};
  set.bytes = bytes;
  set.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  keep_activity(set, CUPTI_ACTIVITY_KIND_MEMSET, nanoseconds);
}

void refuse(bool refuses) {
  player().refuses = refuses;
}

}  // namespace fake_cupti

// CUPTI, as far as LibTorch's profiler calls it.
extern "C" {

CUptiResult cuptiGetVersion(uint32_t* version) {
  *version = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult /*result*/, const char** text) {
  *text = "played";
  return CUPTI_SUCCESS;
}
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* /*subscriber*/, CUpti_CallbackFunc /*callback*/,
                           void* /*data*/) {
  return answer();
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle /*subscriber*/) {
  return answer();
}
CUptiResult cuptiEnableDomain(uint32_t /*enable*/, CUpti_SubscriberHandle /*subscriber*/,
                              CUpti_CallbackDomain /*domain*/) {
  return answer();
}
CUptiResult cuptiEnableCallback(uint32_t /*enable*/, CUpti_SubscriberHandle /*subscriber*/,
                                CUpti_CallbackDomain /*domain*/, CUpti_CallbackId /*id*/) {
  return answer();
}
CUptiResult cuptiFinalize() {
  return answer();
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  player().request = request;
  player().complete = complete;
  return answer();
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock) {
  player().clock = clock;
  return answer();
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  const std::lock_guard lock(player().mutex);
  if (answer() == CUPTI_SUCCESS) {
    player().enabled.insert(kind);
  }
  return answer();
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  const std::lock_guard lock(player().mutex);
  player().enabled.erase(kind);
  return answer();
}
CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId /*id*/, uint8_t /*enable*/) {
  return answer();
}
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId /*id*/, uint8_t /*enable*/) {
  return answer();
}
CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t /*enable*/) {
  return answer();
}
CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute /*attribute*/, size_t* /*size*/,
                                      void* /*value*/) {
  return answer();
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext /*context*/, uint32_t /*stream*/,
                                              size_t* dropped) {
  *dropped = 0;
  return answer();
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind,
                                                   uint64_t id) {
  external_ids()[kind].push_back(id);
  return answer();
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind,
                                                  uint64_t* last) {
  std::vector<std::uint64_t>& ids = external_ids()[kind];
  if (ids.empty()) {
    return CUPTI_ERROR_QUEUE_EMPTY;
  }
  if (last != nullptr) {
    *last = ids.back();
  }
  ids.pop_back();
  return answer();
}

CUptiResult cuptiActivityFlushAll(uint32_t /*flag*/) {
  std::uint8_t* buffer = nullptr;
  std::size_t used = 0;
  {
    const std::lock_guard lock(player().mutex);
    buffer = std::exchange(player().buffer, nullptr);
    for (const Bytes& record : std::exchange(player().records, {})) {
      if (buffer != nullptr && used + record.size() <= player().buffer_bytes) {
        std::memcpy(buffer + used, record.data(), record.size());
        used += record.size();
      }
    }
  }
  if (buffer != nullptr) {
    player().complete(nullptr, 0, buffer, player().buffer_bytes, used);
  }
  return answer();
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_bytes,
                                       CUpti_Activity** record) {
  auto* next = reinterpret_cast<std::uint8_t*>(*record);
  next = next == nullptr ? buffer : next + size_of((*record)->kind);
  if (next >= buffer + valid_bytes) {
    return CUPTI_ERROR_MAX_LIMIT_REACHED;
  }
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

// CUDA's runtime, likewise.
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  properties->major = 9;
  properties->warpSize = 32;
  properties->multiProcessorCount = 1;
  properties->maxThreadsPerBlock = properties->maxThreadsPerMultiProcessor = 1024;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->sharedMemPerBlock = properties->sharedMemPerMultiprocessor = 65536;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t /*error*/) {
  return "played";
}

}  // extern "C"
