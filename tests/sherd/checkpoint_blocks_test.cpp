// Digests of blocks: each rank reads and checks those that hold its elements, once; whichever is
// damaged, every rank learns of it, and the model cannot be used until another load succeeds.

#include <filesystem>
#include <fstream>
#include <iterator>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "files/sha256.h"
#include "sherd/checkpoint.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/safetensors.h"
#include "sherd/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/temp_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;
using Values = std::map<std::string, at::Tensor>;
using OnRank = std::function<void(Sharded<Net>& model, AdamW& optimizer)>;

constexpr int64_t kBlockBytes = 64;

void with_net(int ranks, const OnRank& body) {
  run_ranks(ranks, [&](World world) {
    auto model =
        fully_shard(make_net(), Mesh::shard(world), {.precision = {.param_dtype = at::kBFloat16}});
    AdamW optimizer(model, {.lr = 1e-2});
    body(model, optimizer);
  });
}

// Values and moments; the same on every rank.
Values values_of(ShardedModule& model, const AdamW& optimizer) {
  Values values;
  for (const auto& item : full_state_dict(model, {.rank0_only = false, .dtype = at::kFloat})) {
    values[item.key()] = item.value();
  }
  for (const auto& item : full_optim_state_dict(model, optimizer, /*rank0_only=*/false)) {
    values["exp_avg/" + item.key()] = item.value().exp_avg;
    values["exp_avg_sq/" + item.key()] = item.value().exp_avg_sq;
  }
  return values;
}

bool same(const Values& a, const Values& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& item) {
           return at::equal(item.second, b.at(item.first));
         });
}

void one_step(Sharded<Net>& model, AdamW& optimizer) {
  const Example example = make_example(1);
  sum_of_errors(model(example.x), example.y).backward();
  optimizer.step();
  optimizer.zero_grad();
}

// Saves after one step on two ranks; returns what was saved.
Values save_net(const fs::path& folder) {
  Values saved;
  with_net(2, [&](Sharded<Net>& model, AdamW& optimizer) {
    one_step(model, optimizer);
    save_checkpoint(model, optimizer, folder, "");
    Values values = values_of(model, optimizer);
    if (model.world().rank() == 0) {
      saved = std::move(values);
    }
  });
  return saved;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json manifest_of(const fs::path& folder) {
  return nlohmann::json::parse(bytes_of(folder / "manifest.json"));
}

// Calls visit(digests, bytes) for the digests of each tensor and the tensor's bytes.
template <class Visit>
void for_each_tensor(const fs::path& folder, nlohmann::json& manifest, const Visit& visit) {
  for (auto& [name, parameter] : manifest["parameters"].items()) {
    for (auto& piece : parameter["pieces"]) {
      const SafetensorsFile file(folder / piece["file"].template get<std::string>());
      for (auto& [kind, digests] : piece["sha256"].items()) {
        const at::Tensor tensor = file.read(*file.find(kind + "/" + name));
        visit(digests, std::string_view(static_cast<const char*>(tensor.const_data_ptr()),
                                        static_cast<size_t>(tensor.nbytes())));
      }
    }
  }
}

void write_manifest(const fs::path& folder, nlohmann::json manifest) {
  manifest.erase("sha256");
  manifest["sha256"] = files::sha256_of(manifest.dump());
  std::ofstream(folder / "manifest.json") << manifest;
}

// As if the checkpoint had been written with smaller blocks, so that small tensors have several.
void cut_into_blocks(const fs::path& folder, size_t block_bytes = kBlockBytes) {
  nlohmann::json manifest = manifest_of(folder);
  manifest["block_bytes"] = block_bytes;
  for_each_tensor(folder, manifest, [&](nlohmann::json& digests, std::string_view bytes) {
    digests = nlohmann::json::array();
    for (size_t first = 0; first < bytes.size(); first += block_bytes) {
      digests.push_back(files::sha256_of(bytes.substr(first, block_bytes)));
    }
  });
  write_manifest(folder, manifest);
}

// As version 1 was written.
void make_version_1(const fs::path& folder) {
  nlohmann::json manifest = manifest_of(folder);
  manifest["version"] = 1;
  manifest.erase("block_bytes");
  for_each_tensor(folder, manifest, [](nlohmann::json& digests, std::string_view bytes) {
    digests = files::sha256_of(bytes);
  });
  write_manifest(folder, manifest);
}

void expect_loads(const fs::path& folder, const Values& saved) {
  for (const int ranks : {1, 2, 3}) {
    with_net(ranks, [&](Sharded<Net>& model, AdamW& optimizer) {
      load_checkpoint(model, optimizer, folder);
      EXPECT_TRUE(same(values_of(model, optimizer), saved)) << ranks << " ranks";
    });
  }
  EXPECT_NO_THROW(static_cast<void>(verify_checkpoint(folder)));
}

TEST(CheckpointBlocks, AreReadOnAnyNumberOfRanks) {
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  const Values saved = save_net(path);
  cut_into_blocks(path);
  expect_loads(path, saved);
  const CheckpointManifest manifest = CheckpointManifest::read(path);
  EXPECT_EQ(manifest.block_bytes, kBlockBytes);
  for (const auto& [name, parameter] : manifest.parameters) {
    std::vector<float> values;
    read_checkpoint_values(path, manifest, name, [&](const float* part, int64_t numel) {
      values.insert(values.end(), part, part + numel);
    });
    const at::Tensor expected = saved.at(name).reshape({-1});
    EXPECT_EQ(values, std::vector<float>(expected.data_ptr<float>(),
                                         expected.data_ptr<float>() + expected.numel()));
  }
}

TEST(CheckpointBlocks, OfVersion1AreWholePieces) {
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  const Values saved = save_net(path);
  make_version_1(path);
  EXPECT_EQ(CheckpointManifest::read(path).block_bytes, 0);
  expect_loads(path, saved);
}

// One bit in each block of a file, in turns.
TEST(CheckpointBlocks, AFlippedBitInAnyOfThemIsFoundByAllRanks) {
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  const Values saved = save_net(path);
  cut_into_blocks(path);
  const fs::path shard = path / "shard-00001-of-00002.safetensors";
  const std::string good = bytes_of(shard);
  const SafetensorsFile file(shard);
  const size_t header = good.size() - file.entries().back().end_byte;
  with_net(3, [&](Sharded<Net>& model, AdamW& optimizer) {
    World world = model.world();
    for (const SafetensorsEntry& entry : file.entries()) {
      for (uint64_t first = entry.begin_byte; first < entry.end_byte; first += kBlockBytes) {
        world.barrier();
        if (world.rank() == 0) {
          std::string bad = good;
          const size_t at = header + std::min(first + 5 * (first % 13), entry.end_byte - 1);
          bad[at] = static_cast<char>(bad[at] ^ (1 << (first / kBlockBytes % 8)));
          std::ofstream(shard, std::ios::binary) << bad;
          expect_error([&] { static_cast<void>(verify_checkpoint(path)); }, ExitCode::BadData,
                       {shard, "tensor '" + entry.name + "' has a different digest"});
        }
        world.barrier();
        expect_error([&] { load_checkpoint(model, optimizer, path); }, ExitCode::BadData,
                     {"the checkpoint could not be read, rank ", shard,
                      "tensor '" + entry.name +
                          "' has a different digest from that in the manifest for its elements ",
                      "resume from an older one"});
      }
    }
    expect_error([&] { model(make_example(1).x); }, ExitCode::Usage, {"torn", "load_checkpoint"});
    world.barrier();
    if (world.rank() == 0) {
      std::ofstream(shard, std::ios::binary) << good;
    }
    world.barrier();
    load_checkpoint(model, optimizer, path);
    EXPECT_TRUE(same(values_of(model, optimizer), saved));
  });
}

TEST(CheckpointBlocks, ThatTheManifestDoesNotCountRightAreRefused) {
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  save_net(path);
  cut_into_blocks(path);
  const nlohmann::json good = manifest_of(path);
  const auto refused = [&](const auto& edit, const std::vector<std::string>& parts) {
    nlohmann::json bad = good;
    edit(bad);
    write_manifest(path, bad);
    expect_error([&] { static_cast<void>(verify_checkpoint(path)); }, ExitCode::BadData, parts);
  };
  refused([](auto& manifest) { manifest["block_bytes"] = 0; }, {"block_bytes must be a multiple"});
  refused([](auto& manifest) { manifest["block_bytes"] = 12; }, {"block_bytes must be a multiple"});
  refused([](auto& manifest) { manifest.erase("block_bytes"); }, {"block_bytes"});
  refused([](auto& manifest) { manifest["block_bytes"] = 2 * kBlockBytes; },
          {"does not match the manifest"});
  refused(
      [](auto& manifest) {
        auto& digests = manifest["parameters"]["head.weight"]["pieces"][0]["sha256"]["value"];
        digests.erase(digests.size() - 1);
      },
      {"value/head.weight", "does not match the manifest"});
}

// Bytes that this process has read with system calls; 0 where the system does not count them.
int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string field;
  int64_t bytes = 0;
  file >> field >> bytes;
  return bytes;
}

torch::nn::Sequential make_wide() {
  return torch::nn::Sequential(Unit<torch::nn::Linear>(1000, 1000),
                               Unit<torch::nn::Linear>(1000, 1000));
}

// Three ranks read what two have written: all bytes once, and twice only the blocks between two
// ranks' elements.
TEST(CheckpointBlocks, AreReadOnce) {
  if (bytes_read() == 0) {
    GTEST_SKIP() << "/proc/self/io does not count bytes here";
  }
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  run_ranks(2, [&](World world) {
    auto model = fully_shard(make_wide(), Mesh::shard(world));
    AdamW optimizer(model);
    save_checkpoint(model, optimizer, path, "");
  });
  cut_into_blocks(path, 4096);
  constexpr int64_t kStateBytes = 3 * 4 * 2 * 1001 * 1000;
  for (const int ranks : {2, 3}) {
    int64_t before = 0;
    int64_t after = 0;
    run_ranks(ranks, [&](World world) {
      auto model = fully_shard(make_wide(), Mesh::shard(world));
      AdamW optimizer(model);
      world.barrier();
      before = world.rank() == 0 ? bytes_read() : before;
      world.barrier();
      load_checkpoint(model, optimizer, path);
      world.barrier();
      after = world.rank() == 0 ? bytes_read() : after;
    });
    const int64_t others = ranks * static_cast<int64_t>(fs::file_size(path / "manifest.json")) +
                           ranks * (int64_t{64} << 10);  // headers
    EXPECT_GE(after - before, kStateBytes);
    EXPECT_LE(after - before, kStateBytes + kStateBytes / 100 + others) << ranks << " ranks";
  }
}

// Tensors of more than one block, as they are saved.
TEST(CheckpointBlocks, OfALargeTensorHaveADigestEach) {
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  constexpr int64_t kRows = 4200;  // 67 MiB
  const auto make = [] {
    return torch::nn::Sequential(
        torch::nn::Linear(torch::nn::LinearOptions(kRows, kRows).bias(false)));
  };
  {
    auto model = fully_shard(make(), Mesh::shard(World::alone()));
    save_checkpoint(model, path, "");
    const CheckpointManifest manifest = CheckpointManifest::read(path);
    const CheckpointPiece& piece = manifest.parameters.begin()->second.pieces.front();
    const at::Tensor saved = model.parameter_shards().front().value;
    const std::string_view bytes(static_cast<const char*>(saved.const_data_ptr()),
                                 static_cast<size_t>(saved.nbytes()));
    EXPECT_THAT(piece.sha256.at("value"),
                testing::ElementsAre(files::sha256_of(bytes.substr(0, kDigestBlockBytes)),
                                     files::sha256_of(bytes.substr(kDigestBlockBytes))));
    auto other = fully_shard(make(), Mesh::shard(World::alone()));
    load_checkpoint(other, path);
    EXPECT_TRUE(at::equal(other.parameter_shards().front().value, saved));
  }
}

}  // namespace
}  // namespace sherd::test
