#pragma once
// Checkpoints of a sharded model and its optimizer: safetensors shards, and a manifest that is
// written last. A folder with a manifest is complete, and any number of ranks can read it. No
// pickle.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sherd/error.h"
#include "sherd/optim.h"
#include "sherd/sharded_module.h"

namespace sherd {

struct SafetensorsLocation;

/// Reads elements [begin, end) of a flattened parameter of integers, in its dtype, from a tensor
/// that stores them in another form, such as floats for a quantized parameter. Called on several
/// threads at once.
using StoredReader =
    std::function<void(const SafetensorsLocation& stored, int64_t begin, int64_t end, void* out)>;

/// Reads the weights of a Hugging Face model folder into the shards, and the buffers that the
/// folder has. Each rank reads only its own elements, on all its threads, and converts float
/// dtypes. Buffers that the folder lacks keep their values. `folder` may also be a single file, by
/// a path that ends in `.safetensors`. `name_in_file` returns a parameter's or buffer's name in the
/// file if it differs; an empty name leaves the values unchanged, so that a model can be read from
/// several folders. `reader_of` returns the reader of a parameter whose tensor has another form,
/// which is then not checked; null for others.
///
/// Collective. Memory: at most 1 MiB per thread in addition to the shards; for values on a GPU or
/// split masters also 128 MiB on the host; for offloaded values 16 MiB. Throws the same Error on
/// every rank. Before any change: InputMissing without weights; BadData, listing parameters that
/// are missing, or have another shape, kind of dtype, or a reader without being integers. StorageIo
/// if reading fails: the weights that were read are then torn until a load of them succeeds.
/// PyTorch: `load_state_dict` of a sharded model, without the full tensors.
void load_safetensors(ShardedModule& model, const std::string& folder,
                      const std::function<std::string(const std::string&)>& name_in_file = {},
                      const std::function<StoredReader(const std::string&)>& reader_of = {});

/// What a checkpoint holds of a model.
struct CheckpointContents {
  /// Unset: all parameters. Set: only those that were trainable when sharded. The text identifies
  /// the values of the frozen ones, their base, such as a digest of the weights that they were
  /// loaded from. Frozen parameters must be loaded from there before such a checkpoint.
  std::optional<std::string> base = std::nullopt;
};

/// Writes parameters, buffers and the optimizer's state to the new folder `folder`. Every rank of
/// the mesh's first row writes its shard; rank 0 also writes its buffers. Rank 0 then writes the
/// manifest and renames the folder, which is `<folder>.tmp` until then. All these ranks must share
/// a file system. An older checkpoint of that name, complete or damaged, is replaced, and so are
/// `<folder>.tmp` and `<folder>.old`. A file, or a folder with anything else in it, is refused.
/// `note` is any text of the caller (a JSON of the trainer's state).
///
/// All threads of a rank hash and write. Collective. Memory: 1 MiB per thread; for values on a GPU
/// or split masters also 128 MiB on the host; for offloaded values 4 MiB. Throws the same Error on
/// every rank: Usage if the state is torn; CannotWrite, StorageIo (NoRoom if the disk is full).
/// After a failure, `folder` is unchanged. If the failure came during the exchange of folders, it
/// is the new checkpoint or missing, and `<folder>.old` is the older one. PyTorch:
/// `torch.distributed.checkpoint.save`.
void save_checkpoint(ShardedModule& model, const CheckpointableOptimizer& optimizer,
                     const std::string& folder, const std::string& note,
                     const CheckpointContents& contents = {});
/// As above without an optimizer: parameters and buffers.
void save_checkpoint(ShardedModule& model, const std::string& folder, const std::string& note,
                     const CheckpointContents& contents = {});

/// Bytes covered by one digest of a checkpoint; the last block of a shard's tensor may be shorter.
inline constexpr int64_t kDigestBlockBytes = int64_t{64} << 20;

/// The elements of a parameter in one file.
struct CheckpointPiece {
  std::string file;   ///< file name in the folder
  int64_t begin = 0;  ///< first element in the flattened parameter
  int64_t end = 0;    ///< one past the last element
  /// By tensor kind ("value", and those of OptimizerShard: "exp_avg", "exp_avg_sq"): the SHA-256 of
  /// each block of CheckpointManifest::block_bytes, in order.
  std::map<std::string, std::vector<std::string>> sha256;
};

/// One parameter or buffer of a checkpoint.
struct CheckpointParameter {
  std::vector<int64_t> shape;           ///< shape of the whole tensor
  std::vector<CheckpointPiece> pieces;  ///< shards in order, without gaps
  /// Number of updates of the parameter; unset: CheckpointManifest::optimizer_steps.
  std::optional<int64_t> optimizer_steps = std::nullopt;
};

/// A checked manifest. Its own digest matches (older manifests have none), and every element of
/// every parameter is in exactly one shard.
struct CheckpointManifest {
  /// Bytes per digest; 0: one digest per shard (version 1).
  int64_t block_bytes = kDigestBlockBytes;
  int64_t world_size = 1;       ///< world size that wrote it
  int64_t optimizer_steps = 0;  ///< optimizer steps at the time of writing
  std::string note;             ///< the text given to save_checkpoint()
  /// CheckpointContents::base: the checkpoint holds the trainable parameters alone.
  std::optional<std::string> base = std::nullopt;
  std::map<std::string, CheckpointParameter> parameters;  ///< by qualified name
  /// Buffers by qualified name; unset in checkpoints of versions without buffers.
  std::optional<std::map<std::string, CheckpointParameter>> buffers = std::nullopt;

  /// Reads and checks the manifest of `folder`. Not collective. Throws Error: InputMissing without
  /// a manifest, BadData for an invalid one, StorageIo.
  [[nodiscard]] static CheckpointManifest read(const std::string& folder);
};

/// Restores model, buffers and optimizer from a checkpoint of any world size, and clears gradients.
/// Each rank reads the blocks that hold its elements, once and on all its threads, and checks their
/// digests while reading. A checkpoint without buffers leaves the model's unchanged. One with a
/// `base` restores the parameters that it holds; the others keep their values, which must be there,
/// and must have been frozen when sharded. The caller compares the base. Manifest,
/// headers, file sizes, model and type of optimizer are checked before anything changes. A damaged
/// block is found before the model can be used. Parameters and optimizer state are then torn until
/// a load succeeds, such as that of an older checkpoint.
///
/// Collective. Memory: 1 MiB per thread, plus the allocations of the optimizer's shards_to_fill().
/// For values on a GPU or split masters also 128 MiB on the host; for offloaded values one block of
/// 64 MiB (version 1: this rank's shard of one tensor). Throws the same Error on every rank: Usage
/// inside a forward or a backward, and for frozen parameters without values; InputMissing; BadData,
/// naming file and tensor; StorageIo. A failed read also leaves the state torn. PyTorch:
/// `torch.distributed.checkpoint.load`.
CheckpointManifest load_checkpoint(ShardedModule& model, CheckpointableOptimizer& optimizer,
                                   const std::string& folder);
/// As above for parameters and buffers only, whatever optimizer the checkpoint has.
CheckpointManifest load_checkpoint(ShardedModule& model, const std::string& folder);

/// Reads a whole checkpoint once and checks every digest: of the manifest, values, buffers and
/// optimizer state. Uses all threads of the process. Not collective: any process may check a
/// checkpoint. Memory: 1 MiB per thread. Throws Error: InputMissing, BadData (naming file and
/// tensor), StorageIo. PyTorch: none.
CheckpointManifest verify_checkpoint(const std::string& folder);

/// Returns the manifest after checking that each file it names exists, has the right size, and has
/// the tensors it names. Does not read the digests of tensors. Not collective. Memory: the headers
/// of the files. Throws Error: InputMissing, BadData (naming file and tensor), StorageIo. PyTorch:
/// none.
CheckpointManifest require_checkpoint_files(const std::string& folder);

/// Returns the sorted names in `folder` that no save writes; none if the folder does not exist. Not
/// collective. PyTorch: none.
[[nodiscard]] std::vector<std::string> names_beside_checkpoint(const std::string& folder);
/// Returns true if `folder` has a file with a name that a save writes. Not collective. PyTorch:
/// none.
[[nodiscard]] bool has_checkpoint_files(const std::string& folder);
/// Removes the files of a checkpoint, the manifest first. Removes the folder too if nothing is left
/// in it; names_beside_checkpoint() stay. If `folder` is a link, removes only the link. Ignores
/// faults: files that cannot be removed stay. Not collective. PyTorch: none.
void remove_checkpoint(const std::string& folder);

/// Reads the values of one parameter (not of a buffer) from a checkpoint, one block at a time, for
/// exporting. Calls `take(values, numel)` with fp32 values in order, after checking the block's
/// digest. Not collective. Memory: up to four blocks in fp32, one per thread: 256 MiB for a
/// parameter stored in fp32 (version 1: up to four shards). Throws Error: InputMissing, BadData (no
/// such parameter, as of one that was frozen, or damaged), StorageIo. PyTorch: none.
void read_checkpoint_values(const std::string& folder, const CheckpointManifest& manifest,
                            const std::string& name,
                            const std::function<void(const float* values, int64_t numel)>& take);

}  // namespace sherd
