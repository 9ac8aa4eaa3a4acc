// A trained model leaves as a Hugging Face folder that says the same.

#include <cstdint>
#include <cstring>

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

const std::string kBf16Model = SHERD_TEST_SOURCE_DIR "/tests/data/tiny-llama3-hf";

// The header of a safetensors file.
nlohmann::json header(const fs::path& path) {
  const std::string bytes = read_file(path);
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  return nlohmann::json::parse(bytes.substr(sizeof size, size));
}

std::vector<std::string> dtypes(const fs::path& path) {
  std::vector<std::string> found;
  const nlohmann::json entries = header(path);
  for (const auto& [name, entry] : entries.items()) {
    if (name != "__metadata__") {
      found.push_back(entry.at("dtype"));
    }
  }
  return found;
}

class Export : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    Arguments arguments = train(folder_->path() / "run", "2");
    std::replace(arguments.begin(), arguments.end(), kModel, kBf16Model);
    trained_ =
        expect_code(0, arguments + Arguments{"--train.micro_batch", "4", "--optim.lr", "1e-3",
                                             "--data.eval", kQuestions, "--data.eval_limit", "8"});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static fs::path exported(const std::string& name, const Arguments& flags = {}) {
    const fs::path out = folder_->path() / name;
    expect_code(0,
                Arguments{"export", "--checkpoint", folder_->path() / "run", "--out", out} + flags);
    return out;
  }

  // NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
  static inline std::unique_ptr<TempFolder> folder_;
  static inline Ended trained_;
  // NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)
};

TEST_F(Export, HasAllFilesInTheSourcesDtype) {
  const fs::path out = exported("bf16");
  EXPECT_THAT(listing(out),
              testing::UnorderedElementsAre("LICENSE", "config.json", "generation_config.json",
                                            "model.safetensors", "special_tokens_map.json",
                                            "tokenizer.json", "tokenizer_config.json"));
  EXPECT_THAT(dtypes(out / "model.safetensors"), testing::Each("BF16"));
  EXPECT_EQ(nlohmann::json::parse(read_file(out / "config.json")).at("torch_dtype"), "bfloat16");
  EXPECT_EQ(read_file(out / "tokenizer.json"), read_file(kBf16Model + "/tokenizer.json"));
}

TEST_F(Export, InFloat32EvaluatesAsTheTrainedModel) {
  const fs::path out = exported("float32", {"--dtype", "float32"});
  EXPECT_THAT(dtypes(out / "model.safetensors"), testing::Each("F32"));
  EXPECT_EQ(nlohmann::json::parse(read_file(out / "config.json")).at("torch_dtype"), "float32");
  const Ended ended = expect_code(0, {"eval", "--model", out, "--data", kQuestions, "--limit", "8",
                                      "--max-length", "128", "--loss-only"});
  // "evaluation: loss 6.1234 over 8 samples (… supervised tokens)": what the run said of itself
  const size_t at = ended.out.find("evaluation: loss");
  ASSERT_NE(at, std::string::npos) << ended.out;
  const std::string line = ended.out.substr(at, ended.out.find("tokens)") - at);
  EXPECT_THAT(trained_.out, testing::HasSubstr(line));
}

TEST_F(Export, OfNothingOrToNowhereIsRefused) {
  const fs::path out = folder_->path() / "refused";
  const auto refuse = [&](int code, const Arguments& flags, const char* part) {
    const Ended ended = expect_code(code, Arguments{"export"} + flags);
    EXPECT_THAT(ended.err, testing::HasSubstr(part));
    EXPECT_FALSE(fs::exists(out));
  };
  const std::string run = folder_->path() / "run";
  refuse(66, {"--checkpoint", folder_->path(), "--out", out},
         "--checkpoint: there is no complete checkpoint");
  refuse(65, {"--checkpoint", run, "--out", out, "--model", kModel}, "is not of the model in");
  refuse(64, {"--checkpoint", run, "--out", out, "--dtype", "int8"}, "--dtype");
  const fs::path file = folder_->write("file", "");
  refuse(73, {"--checkpoint", run, "--out", file / "out"}, "cannot create the folder");
}

TEST_F(Export, IntoAFolderWithFilesIsRefused) {
  const fs::path model = folder_->path() / "model";
  fs::copy(kBf16Model, model);
  const std::string weights = read_file(model / "model.safetensors");
  const Arguments flags = {"export", "--checkpoint", folder_->path() / "run", "--out"};
  Ended ended = expect_code(64, flags + Arguments{model, "--model", model});
  EXPECT_THAT(ended.err, testing::HasSubstr("is the folder of the model itself"));
  EXPECT_EQ(read_file(model / "model.safetensors"), weights);
  ended = expect_code(73, flags + Arguments{model});
  EXPECT_THAT(ended.err, testing::HasSubstr("is not empty"));
  EXPECT_EQ(read_file(model / "model.safetensors"), weights);
  const fs::path empty = folder_->path() / "empty";
  fs::create_directory(empty);
  expect_code(0, flags + Arguments{empty});
  expect_code(73, flags + Arguments{empty});
}

TEST_F(Export, CopiesNothingThatALinkNamesElsewhere) {
  const fs::path model = folder_->path() / "linked";
  fs::copy(kBf16Model, model);
  fs::create_symlink(folder_->write("secret", "my password"), model / "chat_template.jinja");
  const fs::path out = folder_->path() / "leak";
  const Ended ended = expect_code(
      65, {"export", "--checkpoint", folder_->path() / "run", "--model", model, "--out", out});
  EXPECT_THAT(ended.err, testing::HasSubstr("chat_template.jinja: links to"));
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(Export, OfADamagedCheckpointLeavesNoWeights) {
  const fs::path damaged = folder_->path() / "damaged";
  fs::copy(folder_->path() / "run/checkpoints/step-00000002", damaged);
  const fs::path shard = damaged / "shard-00000-of-00001.safetensors";
  std::string bytes = read_file(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  folder_->write("damaged/shard-00000-of-00001.safetensors", bytes);
  const fs::path out = folder_->path() / "half";
  const Ended ended = expect_code(65, {"export", "--checkpoint", damaged, "--out", out});
  EXPECT_THAT(ended.err, testing::HasSubstr("has another digest than the manifest says"));
  EXPECT_FALSE(fs::exists(out));
}

}  // namespace
}  // namespace sherd::test
