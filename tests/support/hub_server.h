#pragma once
// A hub of one repository, as Hugging Face's answers, with its large files in a storage on another
// host.

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "llm/hub/digest.h"
#include "tests/support/http_server.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace sherd::test {

inline const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";
inline const std::string kHubModel = "tiny-org/stories";
inline const std::string kHubData = "tiny-org/questions";

class HubServer {
 public:
  /// With the files of a model's folder.
  explicit HubServer(const std::filesystem::path& model) {
    for (const auto& entry : std::filesystem::directory_iterator(model)) {
      files[entry.path().filename().string()] = bytes_of(entry.path());
    }
    files["pytorch_model.bin"] = "a pickle";
  }
  /// Of the data set kHubData, with these files.
  explicit HubServer(std::map<std::string, std::string> data_files)
      : files(std::move(data_files)),
        api_("/api/datasets/" + kHubData),
        page_("/datasets/" + kHubData) {}

  std::map<std::string, std::string> files;
  std::string commit = kCommit;  ///< that `main` is
  /// Names that the list of files has in the place of others.
  std::map<std::string, std::string> listed_as;
  /// Answers in the hub's place, where it gives an answer.
  std::function<std::optional<Answer>(const Asked&)> before = [](const Asked&) {
    return std::nullopt;
  };
  std::function<Answer(const Asked&, Answer)> at_storage = [](const Asked&, Answer answer) {
    return answer;
  };

  [[nodiscard]] std::string url() const { return hub_.url(); }
  [[nodiscard]] std::vector<Asked> asked() const { return hub_.asked(); }
  [[nodiscard]] std::vector<Asked> asked_of_storage() const { return storage_.asked(); }
  [[nodiscard]] static bool is_large(const std::string& path) {
    return path.ends_with(".safetensors") || path.ends_with(".bin") || path.ends_with(".parquet");
  }
  /// The name of a file's blob in the cache.
  [[nodiscard]] std::string digest(const std::string& path) const {
    using Kind = llm::hub::Digest::Kind;
    const TempFolder folder;
    return llm::hub::digest_of_file(folder.write("file", files.at(path)).string(),
                                    is_large(path) ? Kind::Sha256 : Kind::GitBlob);
  }

 private:
  Answer answer(const Asked& asked) {
    if (auto other = before(asked)) {
      return *std::move(other);
    }
    const std::string resolve = page_ + "/resolve/" + commit + "/";
    if (asked.path == api_ + "/revision/main" || asked.path == api_ + "/revision/" + commit) {
      return {200, nlohmann::json{{"sha", commit}}.dump()};
    }
    if (asked.path.starts_with(api_ + "/revision/")) {
      return {404, "{}", {{"X-Error-Code", "RevisionNotFound"}}};
    }
    if (asked.path == api_ + "/tree/" + commit) {
      return {200, tree().dump()};
    }
    if (asked.path.starts_with(resolve)) {
      const std::string path = asked.path.substr(resolve.size());
      return is_large(path) ? Answer{302,
                                     "",
                                     {{"Location", storage_.url() + "/" + path +
                                                       "?Signature=canary-signature"}}}
                            : Answer{200, files.at(path)};
    }
    return {401, "{}", {{"X-Error-Code", "RepoNotFound"}}};
  }

 public:
  /// The list of files, as the hub tells it.
  [[nodiscard]] nlohmann::json tree() const {
    nlohmann::json list = {{{"type", "directory"}, {"path", "onnx"}}};
    for (const auto& [path, bytes] : files) {
      const auto other = listed_as.find(path);
      nlohmann::json file{{"type", "file"},
                          {"path", other == listed_as.end() ? path : other->second},
                          {"size", bytes.size()},
                          {"oid", is_large(path) ? std::string(40, 'a') : digest(path)}};
      if (is_large(path)) {
        file["lfs"] = {{"oid", digest(path)}, {"size", bytes.size()}};
      }
      list.push_back(std::move(file));
    }
    return list;
  }

 private:
  std::string api_ = "/api/models/" + kHubModel;
  std::string page_ = "/" + kHubModel;
  HttpServer storage_{[this](const Asked& asked) {
                        return at_storage(asked, {200, files.at(asked.path.substr(1))});
                      },
                      "127.0.0.2"};
  HttpServer hub_{[this](const Asked& asked) { return answer(asked); }};
};

}  // namespace sherd::test
