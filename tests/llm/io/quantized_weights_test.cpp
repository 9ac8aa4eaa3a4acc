// Weights in 8 bits from files that store floats: each rank reads and quantizes its own bytes.

#include "llm/io/quantized_weights.h"

#include <cmath>
#include <map>

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "llm/io/hf_config.h"
#include "llm/io/import.h"
#include "llm/model/quantized.h"
#include "ops/q8_0.h"
#include "sherd/fully_shard.h"
#include "sherd/safetensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::io {
namespace {

namespace q8_0 = sherd::ops::q8_0;

const std::string& stories_folder() {
  static const std::string folder = sherd::test::data_folder() / "stories260k-hf";
  return folder;
}

model::CausalLm quantized_shapes() {
  auto model =
      sherd::on_meta([] { return build_model(read_model_folder_config(stories_folder())); });
  for (const at::Tensor& parameter : model->parameters()) {
    parameter.requires_grad_(false);
  }
  model::quantize_q8_0(*model);
  return model;
}

// Every rank holds the bytes of the whole weight's blocks, wherever shards are cut.
TEST(QuantizedWeightFiles, AreTheBlocksOfTheWholeWeightsOnAnyNumberOfRanks) {
  const sherd::SafetensorsFolder weights(stories_folder());
  std::map<std::string, at::Tensor> whole;
  for (const auto& parameter : quantized_shapes()->named_parameters()) {
    const auto found = *weights.find(parameter.key());
    const at::Tensor values = found.file->read(*found.entry);
    whole[parameter.key()] =
        (q8_0::is_quantized(parameter.value()) ? q8_0::quantized(values) : values).reshape({-1});
  }
  for (const int ranks : {1, 2, 3}) {
    sherd::test::run_ranks(ranks, [&](sherd::World world) {
      const auto shapes = quantized_shapes();
      auto model = sherd::fully_shard(shapes, sherd::Mesh::shard(std::move(world)));
      sherd::load_safetensors(model, stories_folder(),
                              names_in_file(match_weights(*shapes, weights)),
                              quantizing_readers(*shapes));
      for (const sherd::ParameterShard& shard : model.parameter_shards()) {
        TORCH_CHECK(at::equal(shard.value, whole.at(shard.name).slice(0, shard.begin, shard.end)),
                    shard.name, " differs");
      }
    });
  }
}

// A piece of a tensor is read alike wherever it begins, and in several steps.
TEST(QuantizedWeightFiles, AreReadFromAnyByteOn) {
  const sherd::test::TempFolder folder;
  const std::string path = folder.path() / "model.safetensors";
  const at::Tensor values = at::randn({700, 1024});
  sherd::SafetensorsWriter writer(path, {{"weight", at::kFloat, {700, 1024}}});
  writer.write("weight", values.const_data_ptr(), values.nbytes());
  writer.finish();
  const sherd::SafetensorsFile file(path);
  const sherd::SafetensorsLocation stored{&file, file.find("weight")};
  const at::Tensor whole = q8_0::quantized(values).reshape({-1});
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
           {0, whole.numel()}, {1, 34}, {33, 35}, {64, 64 + 300'000}, {5, 5}}) {
    at::Tensor found = at::empty({end - begin}, at::kByte);
    read_q8_0(stored, begin, end, found.mutable_data_ptr());
    EXPECT_TRUE(at::equal(found, whole.slice(0, begin, end))) << begin << " to " << end;
  }
}

TEST(QuantizedWeightFiles, WithANumberThatIsNotFiniteAreRefused) {
  const sherd::test::TempFolder folder;
  const std::string path = folder.path() / "model.safetensors";
  at::Tensor values = at::randn({2, 64});
  values[1][3] = NAN;
  sherd::SafetensorsWriter writer(path, {{"weight", at::kFloat, {2, 64}}});
  writer.write("weight", values.const_data_ptr(), values.nbytes());
  writer.finish();
  const sherd::SafetensorsFile file(path);
  at::Tensor found = at::empty({2 * 68}, at::kByte);
  sherd::test::expect_error(
      [&] {
        read_q8_0({&file, file.find("weight")}, 0, 136, found.mutable_data_ptr());
      },
      sherd::ExitCode::BadData,
      {"model.safetensors: tensor weight: element 67 is nan", "model.quantize = \"none\""});
}

}  // namespace
}  // namespace llm::io
