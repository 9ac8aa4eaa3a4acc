// Files as llama.cpp's own converter writes them: the listings of gguf/export in SHERD_TEST_DATA.

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "files/sha256.h"
#include "llm/gguf/gguf_file.h"
#include "llm/gguf/model_writer.h"
#include "llm/io/export.h"
#include "llm/io/hf_config.h"
#include "sherd/fully_shard.h"
#include "tests/llm/io/model_folders.h"
#include "tests/support/test_data.h"

namespace llm::gguf {
namespace {

namespace fs = std::filesystem;
using ListingJson = nlohmann::ordered_json;
using io::read_all;
using io::TemporaryFolder;

constexpr const char* kTypeNames[] = {"UINT8",  "INT8",    "UINT16", "INT16",  "UINT32",
                                      "INT32",  "FLOAT32", "BOOL",   "STRING", "ARRAY",
                                      "UINT64", "INT64",   "FLOAT64"};

std::string short_digest(std::string_view bytes) {
  return sherd::files::sha256_of(bytes).substr(0, 16);
}

std::string type_text(const Value& value) {
  const auto name = [](ValueType type) {
    return std::string(kTypeNames[static_cast<std::size_t>(type)]);
  };
  return value.type == ValueType::Array ? "[" + name(value.item) + "]" : name(value.type);
}

// The bytes of an array, strings joined by line feeds.
std::string bytes_of_array(const Value& value) {
  std::string bytes;
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value.content)) {
    for (std::size_t i = 0; i < texts->size(); ++i) {
      bytes += (i == 0 ? "" : "\n") + texts->at(i);
    }
  } else if (const auto* points = std::get_if<std::vector<double>>(&value.content)) {
    for (const double point : *points) {
      const auto number = static_cast<float>(point);
      bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    }
  } else {
    for (const std::int64_t whole : std::get<std::vector<std::int64_t>>(value.content)) {
      const auto number = static_cast<std::int32_t>(whole);
      bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    }
  }
  return bytes;
}

ListingJson scalar_of(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value.content)) {
    return *flag;
  }
  if (const auto* whole = std::get_if<std::int64_t>(&value.content)) {
    return *whole;
  }
  if (const auto* point = std::get_if<double>(&value.content)) {
    return static_cast<float>(*point);
  }
  return std::get<std::string>(value.content);
}

// A model folder as the listing says, with the tokenizer of another.
struct ListedModel {
  explicit ListedModel(const std::string& listed_name) : name(listed_name) {
    const fs::path exports = *sherd::test::extra_data("gguf/export");
    listing = ListingJson::parse(read_all(exports / (name + ".json")));
    weights = (exports / listing.at("model").get<std::string>()).lexically_normal();
    config = ListingJson::parse(read_all(weights + "/config.json"));
    config.merge_patch(listing.at("config_changes"));
    io::write_all(folder / "config.json", config.dump());
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(exports / listing.at("tokenizer").get<std::string>() / file, folder / file);
    }
  }

  [[nodiscard]] ModelPlan plan(FileKind kind) const {
    const sherd::SafetensorsFolder files(weights);
    std::vector<sherd::SafetensorsSpec> parameters;
    for (const std::string& parameter : files.names()) {
      const auto* entry = files.find(parameter)->entry;
      parameters.push_back({parameter, entry->dtype, entry->shape});
    }
    const auto shape = io::read_hf_config(folder / "config.json").shape;
    return plan_model({config.at("model_type"), shape, config, folder / "config.json"},
                      folder.path(), parameters, kind, name == "llama" ? "tiny-llama3-hf" : name);
  }

  void write(const std::string& path, FileKind kind) const {
    const sherd::SafetensorsFolder files(weights);
    ModelWriter writer(path, plan(kind));
    for (const PlannedTensor& tensor : writer.plan().tensors) {
      const auto place = files.find(tensor.parameter);
      writer.write(tensor, place ? place->file->read(*place->entry).to(at::kFloat) : at::Tensor());
    }
    writer.finish();
  }

  TemporaryFolder folder;
  std::string name;
  std::string weights;
  ListingJson listing;
  ListingJson config;
};

void expect_keys(const GgufFile& file, const ListedModel& model) {
  std::set<std::string> listed = {"tokenizer.ggml.eot_token_id"};  // of a second stop token
  for (const ListingJson& key : model.listing.at("key_values")) {
    const std::string name = key.at("key");
    listed.insert(name);
    const Value* value = file.find(name);
    ASSERT_NE(value, nullptr) << name;
    EXPECT_EQ(type_text(*value), key.at("type")) << name;
    if (value->type == ValueType::Array) {
      EXPECT_EQ(short_digest(bytes_of_array(*value)), key.at("sha256")) << name;
    } else if (value->type == ValueType::Float32) {
      EXPECT_EQ(scalar_of(*value).get<float>(), key.at("value").get<float>()) << name;
    } else if (name != "general.file_type") {
      EXPECT_EQ(scalar_of(*value), key.at("value")) << name;
    }
  }
  for (const KeyValue& one : file.keys()) {
    EXPECT_EQ(listed.count(one.key), 1U) << one.key;
  }
}

void expect_tensors(const std::string& path, const GgufFile& file, const ListedModel& model,
                    const char* kind) {
  EXPECT_EQ(file.tensors().size(), model.listing.at("tensors").size());
  std::map<std::string, const TensorInfo*> by_name;
  std::uint64_t end = 0;
  for (const TensorInfo& tensor : file.tensors()) {
    by_name[tensor.name] = &tensor;
    end = std::max(end, (tensor.offset + tensor.bytes() + 31) / 32 * 32);
  }
  const std::string bytes = read_all(path);
  for (const ListingJson& tensor : model.listing.at("tensors")) {
    const std::string name = tensor.at("name");
    ASSERT_EQ(by_name.count(name), 1U) << name;
    const TensorInfo& found = *by_name[name];
    const std::vector<std::int64_t> sizes(found.shape.rbegin(), found.shape.rend());
    EXPECT_EQ(ListingJson(sizes), tensor.at("dims")) << name;
    EXPECT_EQ(layout_of(found.type).name, tensor.at(kind)[0]) << name;
    const std::string_view data =
        std::string_view(bytes).substr(bytes.size() - end + found.offset, found.bytes());
    EXPECT_EQ(short_digest(data), tensor.at(kind)[1]) << name;
  }
}

class Listing : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Listing, testing::Values("llama", "qwen3", "gemma3"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(Listing, IsReproduced) {
  SHERD_NEEDS_EXTRA_DATA("gguf");
  const ListedModel model(GetParam());
  for (const auto& [kind, name, number] : {std::tuple(FileKind::F32, "F32", 0),
                                           {FileKind::F16, "F16", 1},
                                           {FileKind::Q8_0, "Q8_0", 7}}) {
    const std::string path = model.folder / (std::string(name) + ".gguf");
    model.write(path, kind);
    const GgufFile file(path);
    expect_keys(file, model);
    EXPECT_EQ(file.whole("general.file_type"), number);
    expect_tensors(path, file, model, name);
  }
}

// The plan of a model of families/.
ModelPlan plan_of_family(const std::string& name, const ListingJson& changes = {}) {
  const std::string folder = *sherd::test::extra_data("families") / name;
  auto config = ListingJson::parse(read_all(folder + "/config.json"));
  config.merge_patch(changes.is_null() ? ListingJson::object() : changes);
  const TemporaryFolder changed;
  io::write_all(changed / "config.json", config.dump());
  model::DecoderConfig shape = io::read_hf_config(changed / "config.json").shape;
  shape.vocab_size = 512;  // of the tokenizer beside it
  const sherd::SafetensorsFolder files(folder);
  std::vector<sherd::SafetensorsSpec> parameters;
  for (const std::string& parameter : files.names()) {
    parameters.push_back({parameter, at::kFloat, files.find(parameter)->entry->shape});
  }
  return plan_model({config.at("model_type"), shape, config, folder + "/config.json"},
                    io::kData + "stories260k-hf", parameters, FileKind::F16, "model");
}

const Value& value_in(const ModelPlan& plan, const std::string& key) {
  const auto found = std::find_if(plan.keys.begin(), plan.keys.end(),
                                  [&](const KeyValue& one) { return one.key == key; });
  EXPECT_NE(found, plan.keys.end()) << key;
  return found->value;
}

const PlannedTensor& tensor_in(const ModelPlan& plan, const std::string& name) {
  const auto found = std::find_if(plan.tensors.begin(), plan.tensors.end(),
                                  [&](const PlannedTensor& one) { return one.info.name == name; });
  EXPECT_NE(found, plan.tensors.end()) << name;
  return *found;
}

TEST(FamilyPlan, OfGpt2TransposesItsProducts) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const ModelPlan plan = plan_of_family("gpt2");
  EXPECT_EQ(tensor_in(plan, "blk.1.ffn_up.weight").info.shape, (std::vector<std::int64_t>{60, 54}));
  EXPECT_EQ(tensor_in(plan, "position_embd.weight").info.type, TensorType::F32);
  EXPECT_EQ(value_in(plan, "gpt2.feed_forward_length"), uint32_value(60));
  io::expect_error(
      [] {
        static_cast<void>(plan_of_family("gpt2", {{"scale_attn_by_inverse_layer_idx", true}}));
      },
      sherd::ExitCode::BadData, "\"scale_attn_by_inverse_layer_idx\"");
}

TEST(FamilyPlan, OfPhi3HasItsLongRope) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const ModelPlan plan = plan_of_family("phi3-longrope");
  const at::Tensor factors = tensor_in(plan, "rope_factors_long.weight").values;
  EXPECT_EQ(factors.numel(), 6);
  EXPECT_EQ(factors[5].item<float>(), 11.5F);
  EXPECT_EQ(tensor_in(plan, "rope_factors_short.weight").values[0].item<float>(), 1.05F);
  EXPECT_EQ(value_in(plan, "phi3.rope.scaling.original_context_length"), uint32_value(24));
  EXPECT_EQ(value_in(plan, "phi3.rope.scaling.attn_factor"),
            float32_value(std::sqrt(1 + std::log(5.0) / std::log(24.0))));
  const ModelPlan both = plan_of_family(
      "phi3-longrope",
      {{"rope_parameters",
        {{"rope_type", nullptr}, {"short_factor", nullptr}, {"long_factor", nullptr}}},
       {"rope_scaling",
        {{"type", "longrope"},
         {"short_factor", {1.0, 1.1, 1.2, 1.3, 1.4, 1.5}},
         {"long_factor", {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}}}}});
  EXPECT_EQ(tensor_in(both, "rope_factors_long.weight").values[5].item<float>(), 6.0F);
  EXPECT_EQ(value_in(both, "phi3.rope.freq_base"), float32_value(10'000));
  io::expect_error([] { static_cast<void>(plan_of_family("phi3")); }, sherd::ExitCode::BadData,
                   "\"sliding_window\" 19 below \"max_position_embeddings\"");
  EXPECT_EQ(
      value_in(plan_of_family("phi3", {{"sliding_window", nullptr}}), "phi3.rope.dimension_count"),
      uint32_value(12));
  io::expect_error([] { static_cast<void>(plan_of_family("olmo2")); }, sherd::ExitCode::BadData,
                   "models of type \"olmo2\" are not written as GGUF");
}

TEST(GemmaListing, WithAnotherScaleOfScoresIsRefused) {
  SHERD_NEEDS_EXTRA_DATA("gguf");
  ListedModel model("gemma3");
  model.config["query_pre_attn_scalar"] = 29;
  io::expect_error([&] { static_cast<void>(model.plan(FileKind::F16)); }, sherd::ExitCode::BadData,
                   "config.json: \"query_pre_attn_scalar\" 29, where llama.cpp takes 20: llama.cpp "
                   "cannot compute that, so it is not written as GGUF");
  model.config["query_pre_attn_scalar"] = 20;
  model.config["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
  io::expect_error([&] { static_cast<void>(model.plan(FileKind::F16)); }, sherd::ExitCode::BadData,
                   "\"full_attention\" does not come every so many");
}

}  // namespace
}  // namespace llm::gguf
