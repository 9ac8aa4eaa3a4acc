// Inputs that users of such programs have met: tests/data/cases has a folder for each.

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// `data preview` of a file of a case, which reads it as training does.
Arguments preview_of(const std::string& name, const std::string& data, const TempFolder& folder) {
  return {"data",           "preview",
          "--model.path",   kCases + name + "/tiny",
          "--model.init",   "random",
          "--data.train",   kCases + name + "/" + data,
          "--train.output", (folder.path() / "run").string()};
}

// The message that refuses a file of a case.
std::string refusal(const std::string& name, const std::string& data) {
  const TempFolder folder;
  return expect_code(65, preview_of(name, data, folder)).err;
}

std::string preview(const std::string& name, const std::string& data) {
  const TempFolder folder;
  return expect_code(0, preview_of(name, data, folder)).out;
}

Ended generated(int code, const std::string& model) {
  return expect_code(code,
                     {"generate", kCases + model, "--prompt", "One plus", "--max-new-tokens", "4"});
}

TEST(Cases, DataInUtf16) {
  for (const char* data : {"data.jsonl", "squad.json"}) {
    const std::string message = refusal("data-in-utf-16", data);
    EXPECT_THAT(message, HasSubstr(std::string(data) + ": is UTF-16"));
    EXPECT_THAT(message, HasSubstr("save it as UTF-8 (iconv -f UTF-16"));
    EXPECT_EQ(count_of(message, "UTF-16"), 2U) << message;
    EXPECT_THAT(message, Not(HasSubstr("skip")));
  }
}

TEST(Cases, DataIsAGitLfsPointer) {
  const std::string name = "data-is-a-git-lfs-pointer";
  const std::string expected = ": found a Git LFS pointer, not the file itself: run `git lfs pull`";
  for (const char* data : {"data.jsonl", "data.parquet", "squad.json"}) {
    const std::string message = refusal(name, data);
    EXPECT_THAT(message, HasSubstr(data + expected));
    EXPECT_THAT(message, Not(HasSubstr("skip")));
  }
  // As for data, so for each file of a model.
  const std::string shards = kCases + "shard-with-a-tensor-that-the-index-lacks/tiny";
  for (const char* file :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
        "model.safetensors.index.json", "model-00002-of-00002.safetensors"}) {
    const TempFolder folder;
    fs::copy(shards, folder.path() / "model");
    fs::copy_file(kCases + name + "/data.jsonl", folder.path() / "model" / file,
                  fs::copy_options::overwrite_existing);
    const Ended ended = expect_code(65, {"generate", (folder.path() / "model").string(), "--prompt",
                                         "One plus", "--max-new-tokens", "4"});
    EXPECT_THAT(ended.err, HasSubstr(file + expected));
  }
}

TEST(Cases, EmptyShard) {
  EXPECT_THAT(preview("empty-shard", "parts/part-*.jsonl"), HasSubstr("32 records"));
  EXPECT_THAT(refusal("empty-shard", "parts/part-00001.jsonl"),
              HasSubstr("part-00001.jsonl: contains no records"));
}

TEST(Cases, EmptyParquetShard) {
  EXPECT_THAT(preview("empty-parquet-shard", "parts/part-*.parquet"), HasSubstr("4 records"));
  EXPECT_THAT(refusal("empty-parquet-shard", "parts/part-1.parquet"),
              HasSubstr("part-1.parquet: contains no rows"));
}

TEST(Cases, JsonlNanInAnotherField) {
  EXPECT_THAT(preview("jsonl-nan-in-another-field", "data.jsonl"), HasSubstr("3 records"));
}

TEST(Cases, RopeInBothSpellings) {
  const std::string model = "rope-in-both-spellings/tiny";
  const std::string text = generated(0, model).out;
  // As with one of them alone.
  for (const char* left_out : {"rope_scaling", "rope_parameters"}) {
    const TempFolder folder;
    fs::copy(kCases + model, folder.path() / "model");
    auto config = nlohmann::json::parse(read_file(folder.path() / "model" / "config.json"));
    config.erase(left_out);
    std::ofstream(folder.path() / "model" / "config.json") << config;
    EXPECT_EQ(expect_code(0, {"generate", (folder.path() / "model").string(), "--prompt",
                              "One plus", "--max-new-tokens", "4"})
                  .out,
              text);
  }
}

TEST(Cases, SafetensorsWithAnUnknownKey) {
  EXPECT_EQ(generated(0, "safetensors-with-an-unknown-key/tiny").out,
            generated(0, "safetensors-with-an-unknown-key/plain").out);
}

TEST(Cases, SafetensorsWithNullMetadata) {
  generated(0, "safetensors-with-null-metadata/tiny");
}

TEST(Cases, ShardWithATensorThatTheIndexLacks) {
  EXPECT_THAT(generated(65, "shard-with-a-tensor-that-the-index-lacks/tiny").err,
              testing::AllOf(HasSubstr("-of-00002.safetensors: tensor model.layers.0."),
                             HasSubstr("is not part of the model that config.json describes")));
}

}  // namespace
}  // namespace sherd::test
