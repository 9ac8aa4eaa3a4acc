#include "storage/device_graph.h"

#include <array>
#include <atomic>
#include <exception>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace sherd::detail {

namespace {

std::atomic<const GraphFunctions*>& functions_for(c10::DeviceType type) {
  static std::array<std::atomic<const GraphFunctions*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> all{};
  return all.at(static_cast<std::size_t>(type));
}

}  // namespace

void set_graph_functions(c10::DeviceType type, const GraphFunctions* functions) {
  functions_for(type) = functions;
}

const GraphFunctions* graph_functions(c10::DeviceType type) {
  return functions_for(type).load();
}

std::uint64_t capture_of(const c10::Stream& stream) {
  const GraphFunctions* const functions = graph_functions(stream.device_type());
  return functions == nullptr ? 0 : functions->capture_of(stream);
}

std::uint64_t capture_of(c10::Device device) {
  return graph_functions(device.type()) == nullptr
             ? 0
             : capture_of(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

DeviceGraph::DeviceGraph(const c10::Stream& stream, const DeviceGraph* beside,
                         const std::function<void()>& work)
    : functions_(graph_functions(stream.device_type())) {
  const c10::StreamGuard guard(stream);
  graph_ = functions_->begin(beside == nullptr ? nullptr : beside->graph_);
  try {
    work();
  } catch (...) {
    const auto failure = std::current_exception();
    try {
      functions_->end(graph_.get());
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the first is the reason
    }
    std::rethrow_exception(failure);
  }
  functions_->end(graph_.get());
}

void DeviceGraph::launch() const {
  functions_->launch(graph_.get());
}

}  // namespace sherd::detail
