#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/safetensors.h"
#include "state/entries.h"
#include "step/step.h"

namespace sherd {

namespace {

using NameInFile = std::function<std::string(const std::string&)>;
using ReaderOf = std::function<StoredReader(const std::string&)>;

// Returns why the folder's tensor cannot be the entry; empty if it can.
std::string source_fault(const detail::StateEntry& entry, const std::string& name,
                         const SafetensorsEntry& found) {
  const std::string what = entry.is_buffer() ? "buffer" : "parameter";
  if (found.shape != entry.shape) {
    return "\n  '" + name + "' has shape " + c10::str(at::IntArrayRef(found.shape)) +
           ", and the model's " + what + " " + c10::str(at::IntArrayRef(entry.shape));
  }
  if (!detail::can_be_read_as(found.dtype, entry.mine)) {
    return "\n  '" + name + "' has dtype " + std::string(found.dtype_name) + ", and the model's " +
           what + " " + c10::toString(entry.original_dtype);
  }
  return "";
}

// Adds the reads of this rank's elements, cut so that all threads have some.
void add_reads(std::vector<detail::HostWork>& reads, const detail::StateEntry& entry,
               const SafetensorsLocation& location, const StoredReader& reader_of_entry) {
  const auto reader = std::make_shared<const StoredReader>(reader_of_entry);
  constexpr int64_t kElements = int64_t{1} << 22;
  for (int64_t first = 0; first < entry.mine.numel(); first += kElements) {
    const int64_t numel = std::min(kElements, entry.mine.numel() - first);
    const int64_t begin = entry.begin + first;
    reads.push_back({entry.mine.narrow(first, numel),
                     [begin, location, reader](int64_t, const at::Tensor& host) {
                       const int64_t end = begin + host.numel();
                       if (*reader) {
                         (*reader)(location, begin, end, host.mutable_data_ptr());
                       } else {
                         location.file->read_elements(*location.entry, begin, end,
                                                      host.scalar_type(), host.mutable_data_ptr());
                       }
                     }});
  }
}

}  // namespace

void load_safetensors(ShardedModule& model, const std::string& folder,
                      const NameInFile& name_in_file, const ReaderOf& reader_of) {
  std::optional<SafetensorsFolder> weights;
  std::vector<detail::StateEntry> entries;  // found in the folder
  std::vector<detail::HostWork> reads;
  detail::on_all_ranks(model.world(), "the weights could not be read", [&] {
    weights.emplace(folder);
    std::string faults;
    for (detail::StateEntry& entry : detail::state_entries(model)) {
      const std::string name = name_in_file ? name_in_file(entry.name) : entry.name;
      if (name.empty()) {
        continue;
      }
      const auto found = weights->find(name);
      if (!found) {
        faults += entry.is_buffer() ? "" : "\n  '" + name + "' is missing";
        continue;
      }
      const StoredReader reader = reader_of ? reader_of(entry.name) : nullptr;
      if (reader && entry.mine.is_floating_point()) {
        faults += "\n  '" + name + "' has a reader, and its parameter is not of integers";
      }
      faults += reader ? "" : source_fault(entry, name, *found->entry);
      add_reads(reads, entry, *found, reader);
      entries.push_back(std::move(entry));
    }
    if (!faults.empty()) {
      throw Error(ExitCode::BadData,
                  "the weights in '" + folder + "' are not those of this model:" + faults +
                      "\nCheck that config.json and the weights belong together.");
    }
  });
  detail::ShardWriter writer(detail::engine_of(model).step, "load_safetensors");
  detail::fill_entries(model.world(), entries, reads, "the weights", folder);
  writer.publish();
}

}  // namespace sherd
