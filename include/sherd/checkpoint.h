#pragma once
// Checkpoints of a sharded model and its optimizer: safetensors shards and a manifest that is
// written last. A folder with a manifest is complete; any number of ranks can read it. No pickle.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sherd/no_room.h"
#include "sherd/optim.h"
#include "sherd/optimizer_state.h"
#include "sherd/sharded_module.h"

namespace sherd {

/// Reads the weights of a Hugging Face model folder into the shards, each rank only its own
/// elements, converting float dtypes, and the buffers that the folder has; those that it lacks stay
/// as they are. `name_in_file` gives the file's name of a parameter or buffer, where it is another.
///
/// Collective. Memory: at most 1 MiB beside the shards; on a GPU also this rank's part of one
/// tensor, on the host. Throws the same Error on every rank: InputMissing without weights and
/// BadData, listing parameters that the folder lacks and what it has in another shape or kind of
/// dtype, before anything has changed; StorageIo where reading fails: then the weights are torn
/// until a load succeeds. PyTorch: `load_state_dict` of a sharded model, without the full tensors.
void load_safetensors(ShardedModule& model, const std::string& folder,
                      const std::function<std::string(const std::string&)>& name_in_file = {});

/// Writes parameters, buffers and the optimizer's state to the new folder `folder`. Every rank of
/// the first row of the mesh writes its shard, rank 0 its buffers too; then rank 0 writes the
/// manifest and gives the folder, until then `<folder>.tmp`, its name. All these ranks must see one
/// file system. An older checkpoint of the name, whole or damaged, is replaced, as are
/// `<folder>.tmp` and `<folder>.old`; a file, or a folder that holds anything else, is refused.
/// `note` is kept for the caller: any text (a JSON of the trainer's state).
///
/// Collective. Memory: none on the CPU; with a GPU, and of split masters, one tensor's shard, on
/// the host. Throws the same Error on every rank: Usage where the state is torn; CannotWrite,
/// StorageIo (NoRoom where the disk is full): the name then holds what it held, or, where the
/// failure came while folders were exchanged, the new checkpoint or none, the older one being in
/// `<folder>.old`. PyTorch: `torch.distributed.checkpoint.save`.
void save_checkpoint(ShardedModule& model, const CheckpointableOptimizer& optimizer,
                     const std::string& folder, const std::string& note);
/// The same without an optimizer: parameters and buffers.
void save_checkpoint(ShardedModule& model, const std::string& folder, const std::string& note);

/// Which elements of a parameter lie in which file.
struct CheckpointPiece {
  std::string file;   ///< name in the folder
  int64_t begin = 0;  ///< first element, of the flattened parameter
  int64_t end = 0;    ///< one past the last
  /// By tensor kind: "value", and those of OptimizerShard ("exp_avg", "exp_avg_sq").
  std::map<std::string, std::string> sha256;
};

/// One parameter or buffer of a checkpoint.
struct CheckpointParameter {
  std::vector<int64_t> shape;           ///< of the whole tensor
  std::vector<CheckpointPiece> pieces;  ///< in order and without gaps
  /// Updates that the parameter has had; unset: CheckpointManifest::optimizer_steps.
  std::optional<int64_t> optimizer_steps = std::nullopt;
};

/// A manifest, checked: it is as it was written (by its own digest, which older ones lack), and
/// every element of every parameter is in exactly one piece.
struct CheckpointManifest {
  int64_t world_size = 1;       ///< that wrote it
  int64_t optimizer_steps = 0;  ///< updates done when it was written
  std::string note;             ///< the text that save_checkpoint() was given
  std::map<std::string, CheckpointParameter> parameters;  ///< by qualified name
  /// By qualified name; unset in checkpoints that were written before buffers were kept.
  std::optional<std::map<std::string, CheckpointParameter>> buffers = std::nullopt;

  /// Not collective. Throws Error: InputMissing without a manifest, BadData for one that cannot be
  /// right, StorageIo.
  [[nodiscard]] static CheckpointManifest read(const std::string& folder);
};

/// Restores model, buffers and optimizer from a checkpoint of any world size. Every digest is
/// checked before anything that uses it, and nothing is changed by a checkpoint of another model or
/// kind of optimizer; one without buffers leaves them as they are. Forgets gradients.
///
/// Collective. Memory: 1 MiB, and what the optimizer's shards_to_fill() allocates; on a GPU also
/// this rank's part of one tensor, on the host. Throws the same Error on every rank: Usage inside a
/// forward or a backward; InputMissing, BadData (naming file and tensor), before anything has
/// changed; StorageIo: where reading fails after the checks, parameters and optimizer state are
/// torn until a load succeeds. PyTorch: `torch.distributed.checkpoint.load`.
CheckpointManifest load_checkpoint(ShardedModule& model, CheckpointableOptimizer& optimizer,
                                   const std::string& folder);
/// The same of parameters and buffers, whatever optimizer the checkpoint was saved with.
CheckpointManifest load_checkpoint(ShardedModule& model, const std::string& folder);

/// Reads a whole checkpoint and checks every digest: of the manifest, of values, buffers and the
/// optimizer's state. Not collective: any process may ask whether a checkpoint is intact. Memory: 1
/// MiB. Throws Error: InputMissing, BadData (naming file and tensor), StorageIo. PyTorch: none.
CheckpointManifest verify_checkpoint(const std::string& folder);

/// Returns the manifest after checking that each file which it names is there, whole, and has the
/// tensors that it names; digests of tensors are not read. Not collective. Memory: the headers of
/// the files. Throws Error: InputMissing, BadData (naming file and tensor), StorageIo. PyTorch:
/// none.
CheckpointManifest require_checkpoint_files(const std::string& folder);

/// Returns the names in `folder` that no save writes, sorted; none if the folder does not exist.
/// Not collective. PyTorch: none.
[[nodiscard]] std::vector<std::string> names_beside_checkpoint(const std::string& folder);
/// True if `folder` has a file of a name that a save writes. Not collective. PyTorch: none.
[[nodiscard]] bool has_checkpoint_files(const std::string& folder);
/// Removes the files of a checkpoint, the manifest first, and the folder if nothing is left in it:
/// names_beside_checkpoint() stay. If `folder` is a link, only the link is removed. Faults are
/// ignored: what cannot be removed stays. Not collective. PyTorch: none.
void remove_checkpoint(const std::string& folder);

/// Reads the values of one parameter (not of a buffer) from a checkpoint, a stretch at a time:
/// `take(values, numel)` is called with fp32 values in order. Checks digests. Not collective; for
/// exporting. Memory: 2 MiB. Throws Error: InputMissing, BadData (no such parameter, or damaged),
/// StorageIo. PyTorch: none.
void read_checkpoint_values(const std::string& folder, const CheckpointManifest& manifest,
                            const std::string& name,
                            const std::function<void(const float* values, int64_t numel)>& take);

}  // namespace sherd
