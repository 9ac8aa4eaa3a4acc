// A damaged checkpoint is refused, and either changes nothing or leaves a model that refuses to be
// used.

#include <functional>
#include <stdexcept>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "sherd/checkpoint.h"
#include "state/checkpoint_files.h"
#include "tests/sherd/partly_trained_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace sherd::test {
namespace {

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
         edit_manifest(folder, [](auto& manifest) { manifest["version"] = 4; });
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

TEST_P(DamagedCheckpoint, OfTheTrainedParametersAloneIsRefusedToo) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  on_partly_trained(2, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 1, 0);
    save_checkpoint(model, optimizer, path, kNote, {.base = kBase});
  });
  GetParam().apply(path);
  expect_error([&] { verify_checkpoint(path); }, GetParam().code, {GetParam().parts.front()});
  State before, after;
  on_partly_trained(2, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 2, 50);
    before.add(model, optimizer);
    expect_error([&] { load_checkpoint(model, optimizer, path); }, GetParam().code,
                 GetParam().parts);
    if (GetParam().is_in_values) {
      expect_error([&] { loss_of_model(model); }, ExitCode::Usage, {"torn: load_checkpoint"});
    } else {
      after.add(model, optimizer);
    }
  });
  if (!GetParam().is_in_values) {
    EXPECT_THAT(before.differences(after), testing::IsEmpty());
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
