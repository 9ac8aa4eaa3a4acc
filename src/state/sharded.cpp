#include <algorithm>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "rendezvous/agree.h"
#include "sherd/state_dict.h"
#include "state/entries.h"
#include "step/step.h"
#include "unit/model.h"

namespace sherd {

namespace {

using nlohmann::json;

std::string range_text(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

// Elements [first, last) of an entry, from a piece that a rank gave.
struct Transfer {
  int rank = 0;
  size_t index = 0;   // of the piece in that rank's list
  int64_t begin = 0;  // of the piece
  int64_t first = 0;
  int64_t last = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

// Returns why the piece is no part of the entry; empty if it is.
std::string fault_of(const ParameterShard& piece, const detail::StateEntry& entry) {
  if (piece.shape != entry.shape) {
    return entry.shape_fault(piece.shape);
  }
  if (piece.begin < 0 || piece.end < piece.begin || piece.end > entry.numel() ||
      !piece.value.defined() || piece.value.numel() != piece.end - piece.begin) {
    return "has " + std::to_string(entry.numel()) + " elements, and elements " +
           range_text(piece.begin, piece.end) + " were given as " +
           std::to_string(piece.value.defined() ? piece.value.numel() : 0);
  }
  return entry.dtype_fault(piece.value.scalar_type());
}

// Returns this rank's pieces as text for the others. Throws, listing pieces that do not fit.
std::string describe(const std::vector<ParameterShard>& pieces,
                     const std::vector<detail::StateEntry>& entries) {
  std::map<std::string, size_t> indices;
  for (size_t i = 0; i < entries.size(); ++i) {
    for (const std::string& name : entries[i].names()) {
      indices[name] = i;
    }
  }
  json described = json::array();
  std::string faults;
  for (const ParameterShard& piece : pieces) {
    const auto found = indices.find(piece.name);
    const std::string fault = found == indices.end() ? "is unknown to the model"
                                                     : fault_of(piece, entries[found->second]);
    if (fault.empty()) {
      described.push_back(
          {found->second, piece.begin, piece.end, static_cast<int>(piece.value.scalar_type())});
    } else {
      faults += "\n  '" + piece.name + "' " + fault;
    }
  }
  detail::check_no_faults("these pieces fit no part of this model:", faults);
  return described.dump();
}

// Sorts and cuts an entry's pieces so that each element comes from one of them. Returns the faults:
// elements that are in none.
std::string remove_overlaps(const detail::StateEntry& entry, std::vector<Transfer>& pieces) {
  std::ranges::stable_sort(pieces, {},
                           [](const Transfer& t) { return std::pair(t.begin, t.rank); });
  std::string faults;
  int64_t covered = 0;
  const auto require_covered_until = [&](int64_t end) {
    if (covered < end) {
      faults += "\n  " + entry.described() + ": elements " + range_text(covered, end) +
                " are in no piece";
    }
  };
  for (Transfer& piece : pieces) {
    require_covered_until(piece.begin);
    piece.first = std::max(piece.begin, covered);
    covered = std::max(piece.first, piece.last);
  }
  require_covered_until(entry.numel());
  std::erase_if(pieces, [](const Transfer& piece) { return piece.first >= piece.last; });
  return faults;
}

// Returns each entry's transfers; `described`: what describe() returned on each rank. Throws,
// listing the gaps.
std::vector<std::vector<Transfer>> plan_transfers(const std::vector<std::string>& described,
                                                  const std::vector<detail::StateEntry>& entries) {
  std::vector<std::vector<Transfer>> transfers(entries.size());
  for (size_t rank = 0; rank < described.size(); ++rank) {
    size_t index = 0;
    for (const json& piece : json::parse(described[rank])) {
      const auto begin = piece[1].get<int64_t>();
      transfers.at(piece[0].get<size_t>())
          .push_back({static_cast<int>(rank), index++, begin, begin, piece[2].get<int64_t>(),
                      static_cast<c10::ScalarType>(piece[3].get<int>())});
    }
  }
  std::string faults;
  for (size_t i = 0; i < entries.size(); ++i) {
    faults += remove_overlaps(entries[i], transfers[i]);
  }
  detail::check_no_faults("[load_sharded_state_dict] the pieces of all ranks leave gaps:", faults);
  return transfers;
}

// Returns true if only the rank that gave these elements holds them.
bool needs_no_exchange(const detail::StateEntry& entry, const Transfer& transfer,
                       const std::vector<int>& senders, const Mesh& mesh) {
  if (entry.is_buffer() || mesh.replicate_size() > 1) {
    return false;
  }
  for (size_t shard_rank = 0; shard_rank < entry.pieces.size(); ++shard_rank) {
    const detail::Range& held = entry.pieces[shard_rank];
    if (std::max(held.begin, transfer.first) < std::min(held.end, transfer.last) &&
        senders[shard_rank] != transfer.rank) {
      return false;
    }
  }
  return true;
}

}  // namespace

ShardedStateDict sharded_state_dict(ShardedModule& model) {
  ShardedStateDict dict;
  for (const ParameterShard& shard : detail::value_shards(detail::engine_of(model).model)) {
    dict.insert(shard.name, shard);
  }
  for (const auto& [alias, name] : model.tied_names()) {
    dict.insert(alias, ParameterShard(dict[name]));
  }
  for (const detail::StateEntry& entry : detail::state_entries(model)) {
    if (entry.is_buffer()) {
      const ParameterShard whole{entry.name, entry.shape,   entry.original_dtype, false,
                                 0,          entry.numel(), entry.mine.read(),    {}};
      for (const std::string& name : entry.names()) {
        dict.insert(name, whole);
      }
    }
  }
  return dict;
}

void load_sharded_state_dict(ShardedModule& model, const std::vector<ParameterShard>& pieces) {
  detail::Engine& engine = detail::engine_of(model);
  engine.step.require_between_steps("load_sharded_state_dict");
  World& world = model.world();
  const std::vector<int> senders = detail::senders(model);
  std::vector<detail::StateEntry> entries = detail::state_entries(model);
  const std::vector<std::vector<Transfer>> transfers =
      plan_transfers(detail::agree(world, "[load_sharded_state_dict] loading failed",
                                   [&] { return describe(pieces, entries); }),
                     entries);
  detail::ShardWriter writer(engine.step, "load_sharded_state_dict");
  for (size_t i = 0; i < entries.size(); ++i) {
    for (const Transfer& t : transfers[i]) {
      const bool mine = t.rank == world.rank();
      const at::Tensor values = mine ? pieces[t.index].value.detach().reshape({-1}).narrow(
                                           0, t.first - t.begin, t.last - t.first)
                                     : at::Tensor();
      if (!needs_no_exchange(entries[i], t, senders, engine.model.mesh)) {
        detail::broadcast_elements(world, t.rank, values, t.last - t.first, t.dtype,
                                   [&](int64_t first, const at::Tensor& part) {
                                     entries[i].write(t.first + first, part);
                                   });
      } else if (mine) {
        entries[i].write(t.first, values);
      }
    }
    entries[i].finish_writing();
  }
  writer.publish();
}

}  // namespace sherd
