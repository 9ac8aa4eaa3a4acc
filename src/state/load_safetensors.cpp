#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/agree.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "state/entries.h"
#include "state/host_work.h"
#include "step/step.h"

namespace sherd {

namespace {

using NameInFile = std::function<std::string(const std::string&)>;
using ReaderOf = std::function<StoredReader(const std::string&)>;

// A parameter or buffer, and where it lies in the folder.
struct Source {
  detail::StateEntry entry;
  SafetensorsLocation location;
  StoredReader reader;  // null: it is stored as it is
};

// Why the folder's tensor cannot be the entry; empty if it can.
std::string source_fault(const detail::StateEntry& entry, const std::string& name,
                         const SafetensorsEntry& found) {
  const std::string what = entry.is_buffer() ? "buffer" : "parameter";
  if (found.shape != entry.shape) {
    return "\n  '" + name + "' has shape " + c10::str(at::IntArrayRef(found.shape)) +
           ", and the model's " + what + " " + c10::str(at::IntArrayRef(entry.shape));
  }
  if (found.dtype != entry.mine.dtype() &&
      !(c10::isFloatingType(found.dtype) && entry.mine.is_floating_point())) {
    return "\n  '" + name + "' has dtype " + std::string(found.dtype_name) + ", and the model's " +
           what + " " + c10::toString(entry.original_dtype);
  }
  return "";
}

// Throws, listing all faults.
std::vector<Source> sources_in(const SafetensorsFolder& weights, const std::string& folder,
                               ShardedModule& model, const NameInFile& name_in_file,
                               const ReaderOf& reader_of) {
  std::string faults;
  std::vector<Source> sources;
  for (detail::StateEntry& entry : detail::state_entries(model)) {
    const std::string name = name_in_file ? name_in_file(entry.name) : entry.name;
    if (name.empty()) {
      continue;
    }
    const auto found = weights.find(name);
    if (!found) {
      faults += entry.is_buffer() ? "" : "\n  '" + name + "' is missing";
      continue;
    }
    StoredReader reader = reader_of ? reader_of(entry.name) : nullptr;
    if (reader && entry.mine.is_floating_point()) {
      faults += "\n  '" + name + "' has a reader, and its parameter is not of integers";
    }
    faults += reader ? "" : source_fault(entry, name, *found->entry);
    sources.push_back({std::move(entry), *found, std::move(reader)});
  }
  if (!faults.empty()) {
    throw Error(ExitCode::BadData, "the weights in '" + folder +
                                       "' are not those of this model:" + faults +
                                       "\nCheck that config.json and the weights belong together.");
  }
  return sources;
}

void read(const Source& source, int64_t begin, const at::Tensor& host) {
  const auto& [file, entry] = source.location;
  const int64_t end = begin + host.numel();
  if (source.reader) {
    source.reader(source.location, begin, end, host.mutable_data_ptr());
  } else {
    file->read_elements(*entry, begin, end, host.scalar_type(), host.mutable_data_ptr());
  }
}

// The reads of this rank's elements, cut so that all threads have some.
std::vector<detail::HostWork> reads_of(const std::vector<Source>& sources) {
  constexpr int64_t kElements = int64_t{1} << 22;
  std::vector<detail::HostWork> reads;
  for (const Source& source : sources) {
    const detail::StateEntry& entry = source.entry;
    for (int64_t first = 0; first < entry.mine.numel(); first += kElements) {
      const int64_t numel = std::min(kElements, entry.mine.numel() - first);
      const int64_t begin = entry.begin + first;
      reads.push_back(
          {entry.mine.narrow(first, numel),
           [begin, &source](int64_t, const at::Tensor& host) { read(source, begin, host); }});
    }
  }
  return reads;
}

}  // namespace

void load_safetensors(ShardedModule& model, const std::string& folder,
                      const NameInFile& name_in_file, const ReaderOf& reader_of) {
  const std::string failure = "the weights could not be read";
  std::optional<SafetensorsFolder> weights;
  std::vector<Source> sources;
  static_cast<void>(detail::agree(model.world(), failure, [&]() -> std::string {
    weights.emplace(folder);
    sources = sources_in(*weights, folder, model, name_in_file, reader_of);
    return "";
  }));
  detail::ShardWriter writer(detail::engine_of(model).step, "load_safetensors");
  for (Source& source : sources) {
    source.entry.begin_writing();
  }
  static_cast<void>(detail::agree(model.world(), failure, [&]() -> std::string {
    const WorkPhase reading(model.world(), "reading the weights in " + folder,
                            detail::kLongestRead);
    detail::on_host_in_parallel(reads_of(sources), detail::HostUse::Fills);
    return "";
  }));
  for (Source& source : sources) {
    source.entry.finish_writing();
  }
  writer.publish();
}

}  // namespace sherd
