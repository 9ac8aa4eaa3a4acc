#include "llm/plan/profiler_recording.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "llm/plan/moved_bytes.h"
#include "llm/plan/operator_watch.h"

namespace llm::plan {

namespace {

namespace kineto = torch::autograd::profiler;

kineto::ProfilerConfig config_of_profiler(bool with_memory) {
  torch::profiler::impl::ExperimentalConfig experimental;
  experimental.expose_kineto_event_metadata = true;  // the size of a copy
  return kineto::ProfilerConfig(kineto::ProfilerState::KINETO, /*report_input_shapes=*/true,
                                with_memory, /*with_stack=*/false, /*with_flops=*/false,
                                /*with_modules=*/false, experimental);
}

std::set<kineto::ActivityType> activities_of(c10::Device device) {
  std::set<kineto::ActivityType> activities = {kineto::ActivityType::CPU};
  if (device.is_cuda()) {
    activities.insert(kineto::ActivityType::CUDA);
  }
  return activities;
}

// Kineto waits for no kernel that still runs.
void wait_for(c10::Device device) {
  if (device.is_cuda()) {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
}

bool runs_on_device(const kineto::KinetoEvent& event) {
  constexpr std::array<libkineto::ActivityType, 3> kTypes = {
      libkineto::ActivityType::CONCURRENT_KERNEL, libkineto::ActivityType::GPU_MEMCPY,
      libkineto::ActivityType::GPU_MEMSET};
  return std::any_of(kTypes.begin(), kTypes.end(), [&](libkineto::ActivityType type) {
    return event.activityType() == static_cast<std::uint8_t>(type);
  });
}

// Of `"device": 0, "stream": 7, "bytes": 4096, …`; 0 for a kernel.
double bytes_of_activity(const std::string& metadata) {
  constexpr std::string_view kKey = "\"bytes\":";
  const std::size_t found = metadata.find(kKey);
  if (found == std::string::npos) {
    return 0;
  }
  const std::size_t digits = metadata.find_first_not_of(' ', found + kKey.size());
  std::int64_t bytes = 0;
  if (digits != std::string::npos) {
    std::from_chars(metadata.data() + digits, metadata.data() + metadata.size(), bytes);
  }
  return static_cast<double>(bytes);
}

DeviceActivity activity_of(const kineto::KinetoEvent& event) {
  return {.name = event.name(),
          .begin_ns = static_cast<std::int64_t>(event.startNs()),
          .end_ns = static_cast<std::int64_t>(event.endNs()),
          .launched_by = event.linkedCorrelationId(),
          .bytes = bytes_of_activity(event.metadataJson())};
}

// A tensor without values, a list, or nothing where the profiler kept neither.
c10::IValue argument_of(const kineto::KinetoEvent& event, std::size_t index) {
  constexpr std::array<c10::ScalarType, 8> kTypes = {c10::kBFloat16, c10::kFloat, c10::kHalf,
                                                     c10::kLong,     c10::kInt,   c10::kBool,
                                                     c10::kDouble,   c10::kByte};
  const auto* const type =
      std::find_if(kTypes.begin(), kTypes.end(), [&](c10::ScalarType candidate) {
        return c10::scalarTypeToTypeMeta(candidate).name() == event.dtypes()[index];
      });
  if (type != kTypes.end()) {
    // Recorded steps train all weights, so nothing is recorded about frozen ones.
    return at::empty(event.shapes()[index], at::TensorOptions(*type).device(at::kMeta))
        .set_requires_grad(c10::isFloatingType(*type));
  }
  if (event.dtypes()[index] == "TensorList") {  // of low-rank updates: their sizes are not recorded
    return c10::List<at::Tensor>();
  }
  return index < event.concreteInputs().size() ? event.concreteInputs()[index] : c10::IValue();
}

// None where one of them was not kept: of lists those of up to 30 elements are.
std::vector<c10::IValue> arguments_of(const kineto::KinetoEvent& event) {
  std::vector<c10::IValue> arguments;
  for (std::size_t i = 0; i < event.shapes().size(); ++i) {
    arguments.push_back(argument_of(event, i));
    if (arguments.back().isNone()) {
      return {};
    }
  }
  return arguments;
}

HostCall call_of(const kineto::KinetoEvent& event) {
  constexpr std::string_view kOurs = "sherd::";
  HostCall call{.name = event.name(),
                .id = event.correlationId(),
                .thread = event.startThreadId(),
                .begin_ns = static_cast<std::int64_t>(event.startNs()),
                .end_ns = static_cast<std::int64_t>(event.endNs())};
  std::string_view name = call.name;
  if (!name.starts_with(kOurs)) {
    return call;
  }
  name.remove_prefix(kOurs.size());
  if (const std::vector<c10::IValue> kept = arguments_of(event); !kept.empty()) {
    const c10::ArrayRef<const c10::IValue> arguments(kept.data(), kept.size());
    call.operations = multiplies(name) ? product_operations(name, arguments) : 0;
    call.moved_bytes = moved_bytes(name, arguments);
  }
  return call;
}

}  // namespace

ProfilerRecording::ProfilerRecording(c10::Device device, bool with_memory)
    : device_(device), with_memory_(with_memory) {
  guarded([&] {
    kineto::prepareProfiler(config_of_profiler(with_memory_), activities_of(device_));
    state_ = State::Prepared;
  });
}

// What was prepared has to be started, and ended, before kineto can be prepared again. While an
// exception passes, a GPU may wait for a peer that is gone: nothing may ask it then.
ProfilerRecording::~ProfilerRecording() {
  if (device_.is_cuda() && std::uncaught_exceptions() > 0) {
    return;
  }
  guarded([&] {
    if (state_ == State::Prepared) {
      enable();
    }
    if (state_ == State::Started) {
      static_cast<void>(kineto::disableProfiler());
    }
  });
}

void ProfilerRecording::guarded(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception&) {
    fault_ = std::current_exception();
  }
}

void ProfilerRecording::enable() {
  kineto::enableProfiler(config_of_profiler(with_memory_), activities_of(device_));
  state_ = State::Started;
}

void ProfilerRecording::start() {
  if (state_ == State::Prepared && !fault_) {
    guarded([&] {
      wait_for(device_);
      enable();
    });
  }
}

std::unique_ptr<kineto::ProfilerResult> ProfilerRecording::finish() {
  if (fault_) {
    std::rethrow_exception(fault_);
  }
  TORCH_CHECK(state_ == State::Started, "[ProfilerRecording] finish() without start()");
  wait_for(device_);
  state_ = State::Ended;
  return kineto::disableProfiler();
}

RecordedSteps recorded_steps(const kineto::ProfilerResult& result) {
  RecordedSteps recorded;
  for (const kineto::KinetoEvent& event : result.events()) {
    if (runs_on_device(event)) {
      recorded.activities.push_back(activity_of(event));
    } else if (event.activityType() == static_cast<std::uint8_t>(libkineto::ActivityType::CPU_OP) &&
               !event.isAsync()) {
      recorded.calls.push_back(call_of(event));
    }
  }
  return recorded;
}

DeviceTable profile_steps(c10::Device device, int steps, const DeviceLimits& limits,
                          const KnownBytes& known_bytes,
                          const std::function<void(int)>& make_steps) {
  ProfilerRecording recording(device);
  make_steps(1);
  recording.start();
  make_steps(steps);
  try {
    return device_table(recorded_steps(*recording.finish()), steps, limits, known_bytes);
  } catch (const std::exception& fault) {
    return no_device_table(std::string("LibTorch's profiler failed: ") + fault.what());
  }
}

}  // namespace llm::plan
