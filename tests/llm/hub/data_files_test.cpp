#include "llm/hub/data_files.h"

#include "tests/support/expect_error.h"

namespace llm::hub {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using testing::ElementsAre;

const Repo kDataRepo{RepoKind::Dataset, "org/name"};
using Paths = std::vector<std::string>;

const Paths kSquad{"README.md", "plain_text/train-00000-of-00001.parquet",
                   "plain_text/validation-00000-of-00001.parquet"};

TEST(DataFiles, AreOfASplitByTheirNames) {
  EXPECT_THAT(choose_data_files(kDataRepo, kSquad, {"", "train"}), ElementsAre(kSquad[1]));
  EXPECT_THAT(choose_data_files(kDataRepo, kSquad, {"plain_text", "dev"}), ElementsAre(kSquad[2]));
  EXPECT_THAT(choose_data_files(kDataRepo, kSquad, {}), ElementsAre(kSquad[1], kSquad[2]));
  const Paths parts{"data/train_sft-00001-of-00002-abc.parquet", "data/test-00000-of-00001.parquet",
                    "data/train_sft-00000-of-00002-abc.parquet"};
  EXPECT_THAT(choose_data_files(kDataRepo, parts, {"default", "train_sft"}),
              ElementsAre(parts[2], parts[0]));
  EXPECT_THAT(choose_data_files(kDataRepo, {"train.jsonl", "x.json"}, {}),
              ElementsAre("train.jsonl"));
  const Paths folders{"a/train/0000.parquet", "a/train/0001.parquet", "a/validation/0000.parquet"};
  EXPECT_THAT(choose_data_files(kDataRepo, folders, {"a", "train"}),
              ElementsAre(folders[0], folders[1]));
}

TEST(DataFiles, NameWhatThereIs) {
  const auto refused = [](ExitCode code, const Paths& paths, const DataPart& part,
                          const std::string& why) {
    expect_error([&] { static_cast<void>(choose_data_files(kDataRepo, paths, part)); }, code,
                 {why});
  };
  refused(ExitCode::InputMissing, kSquad, {"", "test"},
          "org/name has no split 'test' in 'plain_text'. It has: train, validation");
  refused(ExitCode::InputMissing, kSquad, {"x", ""},
          "has no configuration 'x'. It has: plain_text");
  refused(
      ExitCode::Usage, {"a/train.parquet", "b/train.parquet"}, {},
      "has several configurations: a, b. Name one: `sherd fetch org/name --dataset --config a`");
  refused(ExitCode::BadData, {"train.csv"}, {}, "--revision refs/convert/parquet");
  refused(ExitCode::BadData, {"data/train-00000-of-00002.parquet"}, {},
          "has 1 of the 2 files of its split 'train'");
}

TEST(DataFiles, APathNamesAPart) {
  const auto is = [](const std::string& text, const std::string& repo, const std::string& config,
                     const std::string& split) {
    const NamedData named = named_data(text);
    EXPECT_EQ(named.repo, repo);
    EXPECT_EQ(named.part.config, config);
    EXPECT_EQ(named.part.split, split);
  };
  is("org/name", "org/name", "", "");
  is("org/name:train", "org/name", "", "train");
  is("org/name:plain_text/train", "org/name", "plain_text", "train");
  is("org/name:a/b/train", "org/name", "a/b", "train");
}

}  // namespace
}  // namespace llm::hub
