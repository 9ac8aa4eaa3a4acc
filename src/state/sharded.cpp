#include <algorithm>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "rendezvous/agree.h"
#include "sherd/state_dict.h"
#include "state/entries.h"
#include "state/transfer.h"
#include "step/step.h"
#include "unit/model.h"

namespace sherd {

namespace {

using nlohmann::json;

std::string stretch_of(int64_t begin, int64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

// A piece that a rank gave, as described to all ranks.
struct GivenPiece {
  int rank = 0;
  size_t index = 0;  // in that rank's list
  int64_t begin = 0;
  int64_t end = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

// Elements [first, last) of an entry, which one piece supplies.
struct Transfer {
  GivenPiece piece;
  int64_t first = 0;
  int64_t last = 0;
};

class Plan {
 public:
  explicit Plan(const std::vector<detail::StateEntry>& entries) : entries_(entries) {
    for (size_t i = 0; i < entries.size(); ++i) {
      index_[entries[i].name] = i;
      for (const std::string& alias : entries[i].aliases) {
        index_[alias] = i;
      }
    }
    given_.resize(entries.size());
  }

  // This rank's pieces as text for the others. Throws, listing those that do not fit the model.
  [[nodiscard]] std::string describe(const std::vector<ParameterShard>& pieces) const {
    json described = json::array();
    std::string faults;
    for (const ParameterShard& piece : pieces) {
      const std::string fault = fault_of(piece);
      faults += fault.empty() ? "" : "\n  '" + piece.name + "' " + fault;
      if (fault.empty()) {
        described.push_back({index_.at(piece.name), piece.begin, piece.end,
                             static_cast<int>(piece.value.scalar_type())});
      }
    }
    if (!faults.empty()) {
      throw Error(ExitCode::BadData, "these pieces fit no part of this model:" + faults);
    }
    return described.dump();
  }

  void add(int rank, const std::string& described) {
    size_t index = 0;
    for (const json& piece : json::parse(described)) {
      given_.at(piece[0].get<size_t>())
          .push_back({rank, index++, piece[1].get<int64_t>(), piece[2].get<int64_t>(),
                      static_cast<c10::ScalarType>(piece[3].get<int>())});
    }
  }

  // The transfers that fill the entry, in order; elements in no piece are added to `faults`.
  [[nodiscard]] std::vector<Transfer> transfers(size_t entry, std::string& faults) const {
    std::vector<GivenPiece> pieces = given_[entry];
    std::stable_sort(pieces.begin(), pieces.end(), [](const GivenPiece& a, const GivenPiece& b) {
      return std::make_pair(a.begin, a.rank) < std::make_pair(b.begin, b.rank);
    });
    std::vector<Transfer> transfers;
    int64_t covered = 0;
    const auto missing_until = [&](int64_t end) {
      faults += "\n  " + entries_[entry].described() + ": elements " + stretch_of(covered, end) +
                " are in no piece";
    };
    for (const GivenPiece& piece : pieces) {
      if (piece.begin > covered) {
        missing_until(piece.begin);
        covered = piece.begin;
      }
      if (piece.end > covered) {
        transfers.push_back({piece, covered, piece.end});
        covered = piece.end;
      }
    }
    if (covered < entries_[entry].numel()) {
      missing_until(entries_[entry].numel());
    }
    return transfers;
  }

 private:
  [[nodiscard]] std::string fault_of(const ParameterShard& piece) const {
    const auto found = index_.find(piece.name);
    if (found == index_.end()) {
      return "is unknown to the model";
    }
    const detail::StateEntry& entry = entries_[found->second];
    if (piece.shape != entry.shape) {
      return "has shape " + c10::str(at::IntArrayRef(entry.shape)) + " in the model, and " +
             c10::str(at::IntArrayRef(piece.shape)) + " was given";
    }
    if (piece.begin < 0 || piece.end < piece.begin || piece.end > entry.numel() ||
        !piece.value.defined() || piece.value.numel() != piece.end - piece.begin) {
      return "has " + std::to_string(entry.numel()) + " elements, and elements " +
             stretch_of(piece.begin, piece.end) + " were given as " +
             std::to_string(piece.value.defined() ? piece.value.numel() : 0);
    }
    if (piece.value.is_floating_point() != entry.mine.is_floating_point()) {
      return std::string("is ") + c10::toString(entry.original_dtype) + " in the model, and " +
             c10::toString(piece.value.scalar_type()) + " was given";
    }
    return "";
  }

  const std::vector<detail::StateEntry>& entries_;
  std::map<std::string, size_t> index_;
  std::vector<std::vector<GivenPiece>> given_;
};

// Whether only the rank that gave these elements holds them.
bool stays_at_home(const detail::StateEntry& entry, const Transfer& transfer,
                   const std::vector<int>& senders, const Mesh& mesh) {
  if (entry.is_buffer() || mesh.replicate_size() > 1) {
    return false;
  }
  for (size_t shard_rank = 0; shard_rank < entry.pieces.size(); ++shard_rank) {
    const detail::Range& held = entry.pieces[shard_rank];
    if (std::max(held.begin, transfer.first) < std::min(held.end, transfer.last) &&
        senders[shard_rank] != transfer.piece.rank) {
      return false;
    }
  }
  return true;
}

}  // namespace

ShardedStateDict sharded_state_dict(ShardedModule& model) {
  ShardedStateDict dict;
  std::vector<ParameterShard> shards = detail::value_shards(detail::engine_of(model).model);
  for (const ParameterShard& shard : shards) {
    dict.insert(shard.name, shard);
  }
  for (const auto& [alias, name] : model.tied_names()) {
    dict.insert(alias, ParameterShard(dict[name]));
  }
  for (const detail::StateEntry& entry : detail::state_entries(model)) {
    if (entry.is_buffer()) {
      const ParameterShard whole{entry.name, entry.shape,   entry.original_dtype, false,
                                 0,          entry.numel(), entry.mine.read(),    {}};
      dict.insert(entry.name, whole);
      for (const std::string& alias : entry.aliases) {
        dict.insert(alias, whole);
      }
    }
  }
  return dict;
}

void load_sharded_state_dict(ShardedModule& model, const std::vector<ParameterShard>& pieces) {
  detail::engine_of(model).step.require_between_steps("load_sharded_state_dict");
  World& world = model.world();
  const std::vector<int> senders = detail::senders(model);
  std::vector<detail::StateEntry> entries = detail::state_entries(model);
  Plan plan(entries);
  const std::vector<std::string> described = detail::agree(
      world, "[load_sharded_state_dict] loading failed", [&] { return plan.describe(pieces); });
  for (size_t rank = 0; rank < described.size(); ++rank) {
    plan.add(static_cast<int>(rank), described[rank]);
  }
  std::vector<std::vector<Transfer>> transfers;
  std::string faults;
  for (size_t i = 0; i < entries.size(); ++i) {
    transfers.push_back(plan.transfers(i, faults));
  }
  if (!faults.empty()) {
    throw Error(ExitCode::BadData,
                "[load_sharded_state_dict] the pieces of all ranks leave gaps:" + faults);
  }
  detail::ShardWriter writer(detail::engine_of(model).step, "load_sharded_state_dict");
  for (size_t i = 0; i < entries.size(); ++i) {
    for (const Transfer& t : transfers[i]) {
      const bool mine = t.piece.rank == world.rank();
      const at::Tensor values = mine ? pieces[t.piece.index].value.detach().reshape({-1}).narrow(
                                           0, t.first - t.piece.begin, t.last - t.first)
                                     : at::Tensor();
      if (!stays_at_home(entries[i], t, senders, detail::engine_of(model).model.mesh)) {
        detail::broadcast_elements(world, t.piece.rank, values, t.last - t.first, t.piece.dtype,
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
