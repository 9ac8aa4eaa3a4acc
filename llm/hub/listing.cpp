#include "llm/hub/listing.h"

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/json.h"
#include "net/url.h"
#include "sherd/error.h"

namespace llm::hub {
namespace {

using nlohmann::json;
using sherd::Error;
using sherd::ExitCode;
using sherd::net::Client;
using sherd::net::Request;
using sherd::net::Response;

constexpr int kMostPages = 1000;
constexpr std::chrono::seconds kPatience{60};
constexpr int kTries = 4;

class Answer {
 public:
  Answer(const std::string& url, const Response& response)
      : place_(sherd::net::shown(url)), value_(sherd::files::parse_json(response.body, place_)) {}

  [[nodiscard]] const json& value() const { return value_; }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ExitCode::BadData,
                fmt::format("{}: {}. Is this a Hugging Face hub (HF_ENDPOINT)?", place_, what));
  }
  // A field of an object that has to be hexadecimal digits.
  [[nodiscard]] std::string digits(const json& object, const char* field, std::size_t count) const {
    const auto found = object.find(field);
    if (found == object.end() || !found->is_string()) {
      fail(fmt::format("no text '{}'", field));
    }
    auto text = found->get<std::string>();
    if (text.size() != count || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
      fail(fmt::format("'{}' is not of {} hexadecimal digits", field, count));
    }
    return text;
  }

 private:
  std::string place_;
  json value_;
};

HubFile file_of(const json& entry, const Answer& answer) {
  const auto path = entry.find("path");
  const auto size = entry.find("size");
  if (path == entry.end() || !path->is_string() || size == entry.end() ||
      !size->is_number_unsigned()) {
    answer.fail("a file without 'path' or 'size'");
  }
  HubFile file{path->get<std::string>(), size->get<std::uint64_t>(), {}};
  if (!is_safe_path(file.path)) {
    answer.fail(
        fmt::format("the name {} points outside the repository: nothing is fetched", path->dump()));
  }
  const auto lfs = entry.find("lfs");
  const bool is_large = lfs != entry.end() && lfs->is_object();
  file.digest = is_large ? Digest{Digest::Kind::Sha256, answer.digits(*lfs, "oid", 64)}
                         : Digest{Digest::Kind::GitBlob, answer.digits(entry, "oid", 40)};
  return file;
}

// The URL of `Link: <URL>; rel="next"`; empty if there is none.
std::string next_page(const Response& response) {
  const std::string link = response.header("link");
  const std::size_t end = link.find(">; rel=\"next\"");
  const std::size_t begin = end == std::string::npos ? end : link.rfind('<', end);
  return begin == std::string::npos ? "" : link.substr(begin + 1, end - begin - 1);
}

std::string commit_of(Client& client, const HubSettings& settings, const Repo& repo,
                      const std::string& revision, const Say& say) {
  const std::string url =
      api_url(settings.endpoint, repo) + "/revision/" + sherd::net::escaped(revision);
  const Response response = client.send(request_to(settings, url, say));
  if (!response.ok()) {
    refuse(settings, repo, revision, response);
  }
  const Answer answer(url, response);
  if (!answer.value().is_object()) {
    answer.fail("no object");
  }
  return answer.digits(answer.value(), "sha", 40);
}

}  // namespace

Request request_to(const HubSettings& settings, const std::string& url, const Say& say) {
  Request request;
  request.url = url;
  request.authorization = settings.token.empty() ? "" : "Bearer " + settings.token;
  request.timeout = kPatience;
  request.tries = kTries;
  request.on_pause = [say, place = sherd::net::shown(url)](std::chrono::milliseconds pause) {
    say(fmt::format("{}: unexpected response; retrying in {} s", place,
                    std::chrono::ceil<std::chrono::seconds>(pause).count()));
  };
  return request;
}

Listing list_files(Client& client, const HubSettings& settings, const Repo& repo,
                   const std::string& revision, const Say& say) {
  Listing listing{commit_of(client, settings, repo, revision, say), {}};
  if (is_commit(revision) && listing.commit != revision) {
    throw Error(ExitCode::BadData,
                fmt::format("{}: the hub was asked for the commit {}, and returned {}",
                            sherd::net::shown(page_url(settings.endpoint, repo)), revision,
                            listing.commit));
  }
  std::string url =
      api_url(settings.endpoint, repo) + "/tree/" + listing.commit + "?recursive=true";
  const std::string hub = sherd::net::origin_of(url);
  for (int page = 0; !url.empty(); ++page) {
    const Response response = client.send(request_to(settings, url, say));
    if (!response.ok()) {
      refuse(settings, repo, revision, response);
    }
    const Answer answer(url, response);
    if (!answer.value().is_array()) {
      answer.fail("no list of files");
    }
    for (const json& entry : answer.value()) {
      if (entry.is_object() && entry.value("type", json()) == "file") {
        listing.files.push_back(file_of(entry, answer));
      }
    }
    url = next_page(response);
    if (page == kMostPages || (!url.empty() && sherd::net::origin_of(url) != hub)) {
      answer.fail("the list of files continues elsewhere, or without end");
    }
  }
  return listing;
}

}  // namespace llm::hub
