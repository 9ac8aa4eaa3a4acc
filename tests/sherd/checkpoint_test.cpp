// A checkpoint holds every value and moment bit by bit, for any number of ranks; a damaged one is
// refused, and either changes nothing or leaves a model that refuses to be used.
// One file, though long: saves, loads and damages share one model, one state and one list of
// damages.

#include "sherd/checkpoint.h"

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>

#include "checkpoint/manifest.h"
#include "sherd/fully_shard.h"
#include "sherd/no_room.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/small_disk.h"
#include "tests/support/small_net.h"
#include "tests/support/temp_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;
using Model = Sharded<Net>;

constexpr const char* kNote = "{\"step\": 3, \"text\": \"Größe\"}";

// Whole flattened values, exp_avg and exp_avg_sq of a model, put together from all ranks.
class State {
 public:
  void add(const Model& model, const AdamW& optimizer) {
    const std::lock_guard lock(one_at_a_time_);
    std::map<std::string, ParameterShard> shards;
    for (ParameterShard& shard : model.parameter_shards()) {
      put("value/" + shard.name, shard, shard.value);
      shards.emplace(shard.name, std::move(shard));
    }
    for (const MomentShard& moment : optimizer.moments()) {
      put("exp_avg/" + moment.name, shards.at(moment.name), moment.exp_avg);
      put("exp_avg_sq/" + moment.name, shards.at(moment.name), moment.exp_avg_sq);
    }
  }
  void add_loss(double loss) {
    const std::lock_guard lock(one_at_a_time_);
    losses_.insert(loss);
  }

  // Names of the tensors that differ, and "loss".
  [[nodiscard]] std::vector<std::string> differences(const State& other) const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) {
      const auto found = other.tensors_.find(name);
      if (found == other.tensors_.end() || !at::equal(found->second, tensor)) {
        names.push_back(name);
      }
    }
    if (losses_ != other.losses_) {
      names.emplace_back("loss");
    }
    return names;
  }
  [[nodiscard]] size_t size() const { return tensors_.size(); }

 private:
  void put(const std::string& name, const ParameterShard& shard, const at::Tensor& part) {
    int64_t numel = 1;
    for (const int64_t size : shard.shape) {
      numel *= size;
    }
    at::Tensor& whole = tensors_.try_emplace(name, at::empty({numel})).first->second;
    whole.narrow(0, shard.begin, shard.end - shard.begin).copy_(part);
  }

  std::mutex one_at_a_time_;
  std::map<std::string, at::Tensor> tensors_;
  std::set<double> losses_;
};

void train(Model& model, AdamW& optimizer, int steps, int first_example) {
  for (int step = 0; step < steps; ++step) {
    const Example example = make_example(first_example + step);
    sum_of_errors(model(example.x), example.y).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

double loss_of_model(Model& model) {
  const at::NoGradGuard no_grad;
  const Example example = make_example(99);
  return sum_of_errors(model(example.x), example.y).item<double>();
}

// A bf16 model on every rank, so that what is computed with is not what is saved.
template <class Body>
void on_each_rank(int ranks, const Body& body, int layers = 3, int64_t width = 13) {
  run_ranks(ranks, [&](World world) {
    auto model = fully_shard(make_net(layers, width), Mesh::shard(world),
                             {.precision = {.param_dtype = at::kBFloat16}});
    AdamW optimizer(model, {.lr = 1e-2});
    body(model, optimizer);
  });
}

// Saves a model after three steps; answers its state.
void save(int ranks, const std::string& folder, State& state, int first_example = 0) {
  on_each_rank(ranks, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 3, first_example);
    save_checkpoint(model, optimizer, folder, kNote);
    state.add(model, optimizer);
    state.add_loss(loss_of_model(model));
  });
}

void load(int ranks, const std::string& folder, State& state) {
  on_each_rank(ranks, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 1, 50);  // what was there before must not matter
    const CheckpointManifest manifest = load_checkpoint(model, optimizer, folder);
    EXPECT_EQ(manifest.note, kNote);
    EXPECT_EQ(optimizer.steps_done(), 3);
    state.add(model, optimizer);
    state.add_loss(loss_of_model(model));
  });
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    files[fs::relative(entry.path(), folder).string()] =
        entry.is_regular_file() ? read_file(entry.path()) : "";
  }
  return files;
}

class CheckpointWorlds : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(CheckpointWorlds, EveryValueAndMomentComesBack) {
  const auto [saved_by, loaded_by] = GetParam();
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  State loaded;
  save(saved_by, path, saved);
  load(loaded_by, path, loaded);
  EXPECT_EQ(saved.size(), 3 * 16U);  // three kinds of 8 linears' weights and biases
  EXPECT_THAT(saved.differences(loaded), testing::IsEmpty());
  EXPECT_EQ(CheckpointManifest::read(path).world_size, saved_by);
}

INSTANTIATE_TEST_SUITE_P(Sizes, CheckpointWorlds,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values(1, 2, 3)));

TEST(Checkpoint, TrainingGoesOnAsIfNothingHadHappened) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State whole;
  State resumed;
  on_each_rank(2, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 3, 0);
    save_checkpoint(model, optimizer, path, kNote);
    train(model, optimizer, 2, 3);
    whole.add(model, optimizer);
  });
  on_each_rank(2, [&](Model& model, AdamW& optimizer) {
    load_checkpoint(model, optimizer, path);
    train(model, optimizer, 2, 3);
    resumed.add(model, optimizer);
  });
  EXPECT_THAT(whole.differences(resumed), testing::IsEmpty());
}

TEST(Checkpoint, ReplacesAnOlderOneOfItsName) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State first;
  State second;
  State loaded;
  save(3, path, first);
  save(2, path, second, 7);
  load(1, path, loaded);
  EXPECT_THAT(second.differences(loaded), testing::IsEmpty());
  EXPECT_THAT(first.differences(loaded), testing::Not(testing::IsEmpty()));
  EXPECT_THAT(contents(folder.path()), testing::SizeIs(4));  // folder, two shards, manifest
}

TEST(Checkpoint, MayBeNamedWithASlashAtTheEnd) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  State loaded;
  save(2, path + "/", saved);
  load(2, path, loaded);
  save(1, path + "//", saved);
  EXPECT_THAT(contents(folder.path()), testing::SizeIs(3));  // folder, shard, manifest
  for (const char* name : {"", "/", ".", "..", "checkpoint/.."}) {
    on_each_rank(1, [&](Model& model, AdamW& optimizer) {
      expect_error([&] { save_checkpoint(model, optimizer, name, kNote); }, ExitCode::CannotWrite,
                   {"'" + std::string(name) + "' cannot be the folder of a checkpoint"});
    });
  }
}

// Saves to `path` on two ranks; every rank must be refused, and nothing may change.
void expect_not_replaced(const TempFolder& folder, const std::string& path,
                         const std::vector<std::string>& parts) {
  const auto before = contents(folder.path());
  on_each_rank(2, [&](Model& model, AdamW& optimizer) {
    expect_error([&] { save_checkpoint(model, optimizer, path, kNote); }, ExitCode::CannotWrite,
                 parts);
  });
  EXPECT_EQ(contents(folder.path()), before);
}

TEST(Checkpoint, NeverReplacesWhatIsNoCheckpoint) {
  const TempFolder folder;
  const std::string path = folder.path() / "mine";
  folder.write("mine", "a file");
  expect_not_replaced(folder, path, {"'" + path + "' is a file, not a checkpoint"});
  fs::remove(path);
  fs::create_directory(path);
  folder.write("mine/thesis.tex", "the only copy");
  const std::vector<std::string> parts = {"holds 'thesis.tex', which is not part of a checkpoint"};
  expect_not_replaced(folder, path, parts);
  folder.write("mine/manifest.json", "{}");  // a web application's, for instance
  expect_not_replaced(folder, path, parts);
  for (const char* beside : {"other.tmp", "other.old"}) {  // the names that a save needs meanwhile
    fs::rename(path, folder.path() / beside);
    expect_not_replaced(folder, folder.path() / "other", parts);
    fs::rename(folder.path() / beside, path);
  }
}

TEST(Checkpoint, ReplacesAnEmptyFolderADamagedCheckpointAndTheTargetOfALink) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  fs::create_directory(path);
  State saved;
  State loaded;
  save(2, path, saved);
  fs::resize_file(path + "/manifest.json", 10);
  save(2, path, saved);
  fs::create_directory_symlink("checkpoint", folder.path() / "link");
  save(2, folder.path() / "link", saved);
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  load(1, path, loaded);
  EXPECT_THAT(saved.differences(loaded), testing::IsEmpty());
}

TEST(Checkpoint, WhereNoFolderCanBeIsRefusedOnEveryRank) {
  const TempFolder folder;
  const std::string path = folder.write("file", "keep me") / "checkpoint";
  on_each_rank(2, [&](Model& model, AdamW& optimizer) {
    expect_error([&] { save_checkpoint(model, optimizer, path, kNote); }, ExitCode::CannotWrite,
                 {"the checkpoint could not be written, rank 0", path});
  });
  EXPECT_EQ(read_file(folder.path() / "file"), "keep me");
}

// Of blocks and of inodes; every rank knows that a later try may succeed.
TEST(Checkpoint, OnAFullDiskThrowsNoRoomOnEveryRankAndLeavesNothing) {
  for (const char* options : {"size=16k", "size=1m,nr_inodes=3"}) {
    const TempFolder folder;
    const SmallDisk disk(folder.path() / "disk", options);
    if (!disk.is_there()) {
      GTEST_SKIP() << SmallDisk::kWhyNot;
    }
    std::ofstream(disk.path() / "other") << std::string(16'000, 'x');
    const std::string path = disk.path() / "checkpoint";
    std::atomic<int> ranks{0};
    on_each_rank(2, [&](Model& model, AdamW& optimizer) {
      try {
        save_checkpoint(model, optimizer, path, kNote);
      } catch (const NoRoom& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("No space left on device"));
        ++ranks;
      }
    });
    EXPECT_EQ(ranks, 2) << options;
    EXPECT_EQ(std::distance(fs::directory_iterator(disk.path()), {}), 1) << options;
  }
}

TEST(Checkpoint, ThatLacksAFileOrATensorIsFoundWithoutReadingIt) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  const std::string shard = path + "/shard-00001-of-00002.safetensors";
  State saved;
  save(2, path, saved);
  EXPECT_EQ(require_checkpoint_files(path).note, kNote);
  fs::resize_file(shard, fs::file_size(shard) - 1);
  expect_error([&] { require_checkpoint_files(path); }, ExitCode::BadData, {shard});
  fs::copy_file(path + "/shard-00000-of-00002.safetensors", shard,
                fs::copy_options::overwrite_existing);
  expect_error([&] { require_checkpoint_files(path); }, ExitCode::BadData,
               {shard, "does not match the manifest"});
  fs::remove(shard);
  expect_error([&] { require_checkpoint_files(path); }, ExitCode::InputMissing, {shard});
}

TEST(Checkpoint, IsRemovedButNotWhatLiesBesideIt) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  save(2, path, saved);
  EXPECT_TRUE(has_checkpoint_files(path));
  EXPECT_THAT(names_beside_checkpoint(path), testing::IsEmpty());
  folder.write("checkpoint/manifest.json.tmp-12", "of a killed save");
  folder.write("checkpoint/thesis.tex", "the only copy");
  remove_checkpoint(path);
  EXPECT_FALSE(has_checkpoint_files(path));
  EXPECT_THAT(names_beside_checkpoint(path), testing::ElementsAre("thesis.tex"));
  EXPECT_EQ(std::distance(fs::directory_iterator(path), {}), 1);
  fs::remove(fs::path(path) / "thesis.tex");
  folder.write("checkpoint/manifest.json", "");
  remove_checkpoint(path);
  EXPECT_FALSE(fs::exists(path));
}

// Files of this process may not grow beyond some bytes, as on a full disk.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFiles() { setrlimit(RLIMIT_FSIZE, &before_); }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  rlimit before_{};
};

TEST(Checkpoint, ThatCannotBeWrittenWholeLeavesTheOlderOneAlone) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  save(2, path, saved);
  const auto before = contents(folder.path());
  for (const rlim_t bytes : {100, 3000}) {  // less than the header, less than the tensors
    const SmallFiles disk(bytes);
    on_each_rank(2, [&](Model& model, AdamW& optimizer) {
      train(model, optimizer, 1, 20);
      expect_error([&] { save_checkpoint(model, optimizer, path, kNote); }, ExitCode::CannotWrite,
                   {"the checkpoint could not be written, rank 0", "File too large"});
    });
  }
  EXPECT_EQ(contents(folder.path()), before);
}

// One way to damage a checkpoint of two ranks.
struct Damage {
  std::string name;
  ExitCode code;
  std::vector<std::string> parts;
  std::function<void(const fs::path& folder)> apply;
  bool is_in_values = false;  ///< found only while values are read
};

void PrintTo(const Damage& damage, std::ostream* out) {
  *out << damage.name;
}

constexpr const char* kShard = "shard-00001-of-00002.safetensors";

void edit_manifest(const fs::path& folder, const std::function<void(nlohmann::json&)>& change) {
  auto manifest = nlohmann::json::parse(read_file(folder / "manifest.json"));
  change(manifest);
  manifest.erase("sha256");  // as manifests were before they had a digest of their own
  std::ofstream(folder / "manifest.json") << manifest;
}

// A parameter's pieces, the last of them in the second rank's file.
nlohmann::json& pieces(nlohmann::json& manifest) {
  for (auto& parameter : manifest["parameters"]) {
    if (parameter["pieces"].back()["file"] == kShard) {
      return parameter["pieces"];
    }
  }
  throw std::runtime_error("no parameter lies on the second rank");
}

nlohmann::json& piece(nlohmann::json& manifest) {
  return pieces(manifest).back();
}

const std::vector<Damage>& damages() {
  static const std::vector<Damage> all = {
      {"FlippedBit",
       ExitCode::BadData,
       {kShard, "has a different digest from that in the manifest", "resume from an older one"},
       [](const fs::path& folder) {
         std::string bytes = read_file(folder / kShard);
         bytes.back() = static_cast<char>(bytes.back() ^ 1);
         std::ofstream(folder / kShard, std::ios::binary) << bytes;
       },
       /*is_in_values=*/true},
      {"TruncatedFile",
       ExitCode::BadData,
       {kShard},
       [](const fs::path& folder) {
         fs::resize_file(folder / kShard, fs::file_size(folder / kShard) - 1);
       }},
      {"MissingFile",
       ExitCode::InputMissing,
       {kShard},
       [](const fs::path& folder) { fs::remove(folder / kShard); }},
      {"MissingManifest",
       ExitCode::InputMissing,
       {"no checkpoint in", "manifest.json"},
       [](const fs::path& folder) { fs::remove(folder / "manifest.json"); }},
      {"ManifestCut",
       ExitCode::BadData,
       {"manifest.json", "not a checkpoint's manifest"},
       [](const fs::path& folder) {
         fs::resize_file(folder / "manifest.json", fs::file_size(folder / "manifest.json") / 2);
       }},
      {"OtherVersion",
       ExitCode::BadData,
       {"format and version"},
       [](const fs::path& folder) {
         edit_manifest(folder, [](auto& manifest) { manifest["version"] = 3; });
       }},
      {"NegativeSteps",
       ExitCode::BadData,
       {"optimizer_steps"},
       [](const fs::path& folder) {
         edit_manifest(folder, [](auto& manifest) { manifest["optimizer_steps"] = -1; });
       }},
      {"Gap",
       ExitCode::BadData,
       {"parameter '", "pieces with a gap or an overlap"},
       [](const fs::path& folder) {
         edit_manifest(folder, [](auto& manifest) {
           piece(manifest)["begin"] = piece(manifest)["begin"].template get<int64_t>() + 1;
         });
       }},
      {"PieceLeftOut",
       ExitCode::BadData,
       {"parameter '", "pieces for ", " elements"},
       [](const fs::path& folder) {
         edit_manifest(folder,
                       [](auto& manifest) { pieces(manifest).erase(pieces(manifest).size() - 1); });
       }},
      {"FileElsewhere",
       ExitCode::BadData,
       {"not a file of the checkpoint's folder"},
       [](const fs::path& folder) {
         edit_manifest(folder, [](auto& manifest) { piece(manifest)["file"] = "../secret"; });
       }},
      {"ManifestIsAPipe",
       ExitCode::BadData,
       {"manifest.json", "found a pipe"},
       [](const fs::path& folder) {
         fs::remove(folder / "manifest.json");
         ASSERT_EQ(::mkfifo((folder / "manifest.json").c_str(), 0600), 0);
       }},
      {"ManifestNestedDeep",
       ExitCode::BadData,
       {"manifest.json", "nested deeper than 64 levels"},
       [](const fs::path& folder) {
         std::ofstream(folder / "manifest.json") << std::string(100'000, '[');
       }},
      {"DigestOfAMomentEdited",
       ExitCode::BadData,
       {kShard, "tensor 'exp_avg_sq/", "a different digest"},
       [](const fs::path& folder) {
         edit_manifest(folder, [](auto& manifest) {
           piece(manifest)["sha256"]["exp_avg_sq"][0] = std::string(64, '0');
         });
       },
       /*is_in_values=*/true},
      {"DigestOfAMomentLeftOut",
       ExitCode::BadData,
       {"tensor 'exp_avg/", "does not match the manifest"},
       [](const fs::path& folder) {
         edit_manifest(folder, [](auto& manifest) { piece(manifest)["sha256"].erase("exp_avg"); });
       }},
  };
  return all;
}

TEST(Checkpoint, WithoutADigestOfItsManifestIsStillRead) {
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  State saved;
  State loaded;
  save(2, path, saved);
  edit_manifest(path, [](auto&) {});
  load(2, path, loaded);
  EXPECT_THAT(saved.differences(loaded), testing::IsEmpty());
}

TEST(Checkpoint, EveryFlippedBitOfAManifestIsFound) {
  CheckpointManifest manifest;
  manifest.optimizer_steps = 3;
  manifest.note = kNote;
  manifest.parameters["weight"] = {{3}, {{"a.safetensors", 0, 3, {{"value", {"12ef"}}}}}};
  const std::string good = detail::to_json(manifest);
  EXPECT_EQ(detail::manifest_from_json(good, "").note, kNote);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    expect_error([&] { (void)detail::manifest_from_json(bad, "it"); }, ExitCode::BadData,
                 {"it: not a checkpoint's manifest"});
  }
}

TEST(Checkpoint, AnEditedManifestIsFound) {
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  State saved;
  save(1, path, saved);
  const auto good = nlohmann::json::parse(read_file(path / "manifest.json"));
  const std::map<std::string, nlohmann::json> edits = {
      {"optimizer_steps", 4}, {"note", "{\"step\": 4}"}, {"world_size", 2}};
  for (const auto& [field, value] : edits) {
    auto bad = good;
    bad[field] = value;
    folder.write("checkpoint/manifest.json", bad.dump());
    expect_error([&] { (void)CheckpointManifest::read(path); }, ExitCode::BadData,
                 {"manifest.json", "was damaged or edited", "an older checkpoint"});
  }
  folder.write("checkpoint/manifest.json", good.dump(4));  // only laid out anew
  EXPECT_EQ(CheckpointManifest::read(path).optimizer_steps, 3);
}

TEST(VerifyCheckpoint, FindsWhatLoadingWouldFind) {
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  State saved;
  save(2, path, saved);
  EXPECT_EQ(verify_checkpoint(path).note, kNote);
  for (const Damage& damage : damages()) {
    const fs::path damaged = folder.path() / "damaged";
    fs::copy(path, damaged, fs::copy_options::recursive);
    damage.apply(damaged);
    expect_error([&] { verify_checkpoint(damaged); }, damage.code, {damage.parts.front()});
    fs::remove_all(damaged);
  }
}

// Expects that loading fails on every rank of a model of this size, and changes nothing.
void expect_refused(const fs::path& folder, ExitCode code, const std::vector<std::string>& parts,
                    int layers = 3, int64_t width = 13) {
  State before;
  State after;
  on_each_rank(
      2,
      [&](Model& model, AdamW& optimizer) {
        train(model, optimizer, 1, 50);
        before.add(model, optimizer);
        before.add_loss(loss_of_model(model));
        expect_error([&] { load_checkpoint(model, optimizer, folder); }, code, parts);
        after.add(model, optimizer);
        after.add_loss(loss_of_model(model));
        EXPECT_EQ(optimizer.steps_done(), 1);
      },
      layers, width);
  EXPECT_THAT(before.differences(after), testing::IsEmpty());
}

// Expects that loading fails on every rank and that nothing uses what it has left, until a sound
// checkpoint is loaded.
void expect_torn(const fs::path& folder, ExitCode code, const std::vector<std::string>& parts,
                 const fs::path& sound, const State& saved) {
  State loaded;
  on_each_rank(2, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 1, 50);
    expect_error([&] { load_checkpoint(model, optimizer, folder); }, code, parts);
    expect_error([&] { loss_of_model(model); }, ExitCode::Usage, {"torn: load_checkpoint"});
    expect_error([&] { save_checkpoint(model, optimizer, folder, ""); }, ExitCode::Usage,
                 {"torn: load_checkpoint"});
    load_checkpoint(model, optimizer, sound);
    loaded.add(model, optimizer);
    loaded.add_loss(loss_of_model(model));
  });
  EXPECT_THAT(saved.differences(loaded), testing::IsEmpty());
}

class DamagedCheckpoint : public testing::TestWithParam<Damage> {};

TEST_P(DamagedCheckpoint, IsRefusedAndChangesNothingOrLeavesNothingUsable) {
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  const fs::path sound = folder.path() / "sound";
  State saved;
  save(2, path, saved);
  fs::copy(path, sound, fs::copy_options::recursive);
  GetParam().apply(path);
  if (GetParam().is_in_values) {
    expect_torn(path, GetParam().code, GetParam().parts, sound, saved);
  } else {
    expect_refused(path, GetParam().code, GetParam().parts);
  }
}

INSTANTIATE_TEST_SUITE_P(Damages, DamagedCheckpoint, testing::ValuesIn(damages()),
                         [](const auto& tested) { return tested.param.name; });

TEST(Checkpoint, OfAnotherModelIsRefused) {
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  State saved;
  save(2, path, saved);
  expect_refused(path, ExitCode::BadData, {"of another model", "16 parameters, the model 12"}, 2);
  expect_refused(path, ExitCode::BadData, {"of another model", "no parameter 'block3."}, 4);
  expect_refused(path, ExitCode::BadData, {"of another model", "another shape of parameter '"}, 3,
                 14);
}

}  // namespace
}  // namespace sherd::test
