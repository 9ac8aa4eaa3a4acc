#pragma once
// A hub on loopback, and a cache that is filled from it.

#include "tests/support/hub_server.h"
#include "tests/support/training.h"

namespace sherd::test {

inline const Arguments kFetch = {"fetch", kHubModel};

class Fetch : public testing::Test {
 protected:
  [[nodiscard]] Arguments variables(const Arguments& more = {}) const {
    return Arguments{"HF_HOME=" + home().string(), "HF_ENDPOINT=" + hub.url()} + more;
  }
  [[nodiscard]] fs::path home() const { return folder.path() / "hf"; }
  [[nodiscard]] fs::path repo() const { return home() / "hub/models--tiny-org--stories"; }
  [[nodiscard]] fs::path snapshot() const { return repo() / "snapshots" / kCommit; }
  [[nodiscard]] fs::path blob(const std::string& path) const {
    return repo() / "blobs" / hub.digest(path);
  }
  [[nodiscard]] Arguments train_by_name() const {
    Arguments run = train(folder.path() / "run", "2");
    std::replace(run.begin(), run.end(), kModel, kHubModel);
    return run;
  }
  // Expects the fetch to fail with these words and no other blob than whole ones.
  void refuse(int code, const std::string& why, const Arguments& more = {}) const {
    EXPECT_THAT(expect_code(code, kFetch, variables(more)).err, testing::HasSubstr(why));
    EXPECT_FALSE(fs::exists(blob("model.safetensors")));
  }

  TempFolder folder;
  HubServer hub{kModel};
};

/// And a data set there.
class FetchData : public Fetch {
 protected:
  [[nodiscard]] static std::string parquet(const std::string& name) {
    return read_file(SHERD_TEST_SOURCE_DIR "/tests/data/parquet/" + name);
  }
  [[nodiscard]] Arguments variables_of_data(const Arguments& more = {}) const {
    return Arguments{"HF_HOME=" + home().string(), "HF_ENDPOINT=" + data.url()} + more;
  }

  HubServer data{{{"README.md", "---"},
                  {"plain_text/train-00000-of-00001.parquet", parquet("squad-32.parquet")},
                  {"plain_text/validation-00000-of-00001.parquet", parquet("squad-v2.parquet")},
                  {"other/train-00000-of-00001.parquet", parquet("sums-gzip.parquet")},
                  {"script.py", "import os"}}};
};

}  // namespace sherd::test
