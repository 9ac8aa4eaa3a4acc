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
/// elements and on all its threads, converting float dtypes, and the buffers that the folder has;
/// those that it lacks stay as they are. `name_in_file` gives the file's name of a parameter or
/// buffer, where it is another.
///
/// Collective. Memory: at most 1 MiB per thread in addition to the shards; for values on a GPU or
/// in two halves also 128 MiB on the host, for values at rest 16 MiB. Throws the same Error on
/// every rank: InputMissing without weights and BadData, listing parameters that the folder lacks
/// and what it has in another shape or kind of dtype, before anything has changed; StorageIo where
/// reading fails: then the weights are torn until a load succeeds. PyTorch: `load_state_dict` of a
/// sharded model, without the full tensors.
void load_safetensors(ShardedModule& model, const std::string& folder,
                      const std::function<std::string(const std::string&)>& name_in_file = {});

/// Writes parameters, buffers and the optimizer's state to the new folder `folder`. Every rank of
/// the first row of the mesh writes its shard, rank 0 its buffers too; then rank 0 writes the
/// manifest and gives the folder, until then `<folder>.tmp`, its name. All these ranks must see one
/// file system. An older checkpoint of the name, whole or damaged, is replaced, as are
/// `<folder>.tmp` and `<folder>.old`; a file, or a folder that holds anything else, is refused.
/// `note` is kept for the caller: any text (a JSON of the trainer's state).
///
/// All threads of a rank hash and write. Collective. Memory: 1 MiB per thread; for values on a GPU
/// or in two halves also 128 MiB on the host, for values at rest 4 MiB. Throws the same Error on
/// every rank: Usage where the state is torn; CannotWrite, StorageIo (NoRoom where the disk is
/// full): the name then holds what it held, or, where the failure came while folders were
/// exchanged, the new checkpoint or none, the older one being in
/// `<folder>.old`. PyTorch: `torch.distributed.checkpoint.save`.
void save_checkpoint(ShardedModule& model, const CheckpointableOptimizer& optimizer,
                     const std::string& folder, const std::string& note);
/// The same without an optimizer: parameters and buffers.
void save_checkpoint(ShardedModule& model, const std::string& folder, const std::string& note);

/// What one digest of a checkpoint covers: this many bytes of a piece's tensor, or what is left of
/// it.
inline constexpr int64_t kDigestBlockBytes = int64_t{64} << 20;

/// Which elements of a parameter lie in which file.
struct CheckpointPiece {
  std::string file;   ///< name in the folder
  int64_t begin = 0;  ///< first element, of the flattened parameter
  int64_t end = 0;    ///< one past the last
  /// By tensor kind ("value", and those of OptimizerShard: "exp_avg", "exp_avg_sq"), the SHA-256 of
  /// each block of CheckpointManifest::block_bytes, in order.
  std::map<std::string, std::vector<std::string>> sha256;
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
  /// Bytes of a block that has a digest of its own; 0: the whole piece has one (version 1).
  int64_t block_bytes = kDigestBlockBytes;
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

/// Restores model, buffers and optimizer from a checkpoint of any world size. Each rank reads the
/// blocks that hold its elements, once and on all its threads, and checks their digests while it
/// reads. Manifest, headers and sizes of the files, model and kind of optimizer are checked before
/// anything changes. A damaged block is found before the model can be used: then parameters and
/// optimizer state are torn until a load succeeds (of an older checkpoint, for instance). A
/// checkpoint without buffers leaves them as they are. Forgets gradients.
///
/// Collective. Memory: 1 MiB per thread, and what the optimizer's shards_to_fill() allocates; for
/// values on a GPU or in two halves also 128 MiB on the host, for values at rest one block of 64
/// MiB (of version 1, or this rank's part of one tensor). Throws the same Error on every rank:
/// Usage inside a forward or a backward; InputMissing; BadData, naming file and tensor; StorageIo:
/// also where reading fails, which tears the state likewise. PyTorch:
/// `torch.distributed.checkpoint.load`.
CheckpointManifest load_checkpoint(ShardedModule& model, CheckpointableOptimizer& optimizer,
                                   const std::string& folder);
/// The same of parameters and buffers, whatever optimizer the checkpoint was saved with.
CheckpointManifest load_checkpoint(ShardedModule& model, const std::string& folder);

/// Reads a whole checkpoint once and checks every digest: of the manifest, of values, buffers and
/// the optimizer's state. Uses all threads of the process. Not collective: any process may ask
/// whether a checkpoint is intact. Memory: 1 MiB per thread. Throws Error: InputMissing, BadData
/// (naming file and tensor), StorageIo. PyTorch: none.
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

/// Reads the values of one parameter (not of a buffer) from a checkpoint, a block at a time:
/// `take(values, numel)` is called with fp32 values in order, after the block's digest has been
/// checked. Not collective; for exporting. Memory: up to four blocks in fp32, one per thread: 256
/// MiB for a parameter kept in fp32 (of version 1, up to four pieces). Throws Error: InputMissing,
/// BadData (no such parameter, or damaged), StorageIo. PyTorch: none.
void read_checkpoint_values(const std::string& folder, const CheckpointManifest& manifest,
                            const std::string& name,
                            const std::function<void(const float* values, int64_t numel)>& take);

}  // namespace sherd
