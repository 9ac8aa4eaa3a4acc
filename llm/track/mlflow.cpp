#include "llm/track/mlflow.h"

#include <cmath>
#include <utility>

#include <fmt/core.h>

#include "llm/track/step_record.h"
#include "net/url.h"
#include "sherd/error.h"

namespace llm::track {

namespace {

using nlohmann::json;
using sherd::Error;
using sherd::ExitCode;

constexpr const char* kMlflowIdFile = "mlflow-run-id";
constexpr std::size_t kSettingsAtOnce = 100;      // the server's limit
constexpr std::size_t kSettingBytes = 500;        // what older servers take
constexpr std::chrono::seconds kConnectLimit{5};  // less than the patience at the end of a run
constexpr std::chrono::seconds kAnswerLimit{10};

std::string server_of(const TrackedRun& run) {
  std::string uri = run.environment("MLFLOW_TRACKING_URI").value_or("");
  if (!uri.starts_with("http://") && !uri.starts_with("https://")) {
    throw Error(
        ExitCode::Usage,
        "a log.sink of the kind mlflow needs MLFLOW_TRACKING_URI, the address of a "
        "tracking server such as http://127.0.0.1:5000 (`mlflow server` starts one)" +
            std::string(uri.empty() ? "; it is not set" : "; its value does not begin with http"));
  }
  static_cast<void>(sherd::net::origin_of(uri));
  while (uri.ends_with('/')) {
    uri.pop_back();
  }
  return uri;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t k = i; k < i + 3; ++k) {
      three = (three << 8U) | (k < bytes.size() ? static_cast<std::uint8_t>(bytes[k]) : 0U);
    }
    for (std::size_t digit = 0; digit < 4; ++digit) {
      const bool is_there = i + digit <= bytes.size();
      text.push_back(is_there ? kDigits[(three >> (18 - 6 * digit)) & 63U] : '=');
    }
  }
  return text;
}

// Read when it is sent, and kept nowhere.
std::string authorization(const TrackedRun& run) {
  const std::string user = run.environment("MLFLOW_TRACKING_USERNAME").value_or("");
  const std::string password = run.environment("MLFLOW_TRACKING_PASSWORD").value_or("");
  if (!user.empty() && !password.empty()) {
    return "Basic " + base64(user + ":" + password);
  }
  const std::string token = run.environment("MLFLOW_TRACKING_TOKEN").value_or("");
  return token.empty() ? "" : "Bearer " + token;
}

// What a refusal says, short.
std::string reason_of(const sherd::net::Response& response) {
  const json body = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  const bool told = body.is_object() && body.contains("message") && body["message"].is_string();
  const std::string message = told ? body["message"].get<std::string>() : "";
  return fmt::format("{}{}{}", response.status, message.empty() ? "" : ": ",
                     message.substr(0, 200));
}

std::string text_in(const json& value, const char* key) {
  const auto found = value.find(key);
  return found != value.end() && found->is_string() ? found->get<std::string>() : "";
}

std::int64_t unix_milliseconds(double unix_seconds) {
  return std::llround(unix_seconds * 1e3);
}

const json& member_of(const json& answer, const char* key) {
  const auto found = answer.find(key);
  if (found == answer.end() || !found->is_object()) {
    throw Error(ExitCode::Unavailable,
                std::string("the server's answer has no '") + key + "': is it an MLflow server?");
  }
  return *found;
}

json tag(const std::string& key, const std::string& value) {
  return {{"key", key}, {"value", value}};
}

const char* status_word(End how) {
  constexpr const char* kWords[] = {"FINISHED", "KILLED", "FAILED"};  // by End
  return kWords[static_cast<int>(how)];
}

}  // namespace

Mlflow::Mlflow(const TrackedRun& run) : run_(run), server_(server_of(run)) {}

std::string Mlflow::place() const {
  const std::string shown = sherd::net::shown(server_);
  return shown.ends_with('/') ? shown.substr(0, shown.size() - 1) : shown;
}

json Mlflow::ask_for(const std::string& method, const std::string& call, const json& body) {
  sherd::net::Request request;
  request.method = method;
  request.url = server_ + "/api/2.0/mlflow/" + call;
  request.authorization = authorization(run_);
  request.connect_timeout = kConnectLimit;
  request.timeout = kAnswerLimit;
  request.is_cancelled = [this] { return is_abandoned(); };
  if (!body.is_null()) {
    request.headers.push_back({"Content-Type", "application/json"});
    request.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  sherd::net::Response response;
  try {
    response = client_.send(request);
  } catch (const Error& error) {
    if (error.code() == ExitCode::Unavailable) {
      throw TryLater(error.what());
    }
    throw;
  }
  if (response.ok()) {
    const json answer = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
    if (!answer.is_object()) {
      throw Error(ExitCode::Unavailable,
                  place() + " answers " + call.substr(0, call.find('?')) +
                      " with something that is not JSON: is it an MLflow server?");
    }
    return answer;
  }
  if (response.status == 404) {
    return nullptr;
  }
  const std::string what = place() + " answers " + reason_of(response);
  if (response.status == 408 || response.status == 429 || response.status >= 500) {
    throw TryLater(what);
  }
  const bool unknown_user = response.status == 401 || response.status == 403;
  throw Error(unknown_user ? ExitCode::NotAuthorised : ExitCode::Unavailable,
              what + (unknown_user ? "; look at MLFLOW_TRACKING_USERNAME and "
                                     "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
                                   : ""));
}

json Mlflow::ask(const std::string& call, const json& body) {
  json answer = ask_for("POST", call, body);
  if (answer.is_null()) {
    throw Error(ExitCode::Unavailable, place() + " does not know " + call);
  }
  return answer;
}

std::string Mlflow::experiment() {
  const std::string name = run_.choose(run_.config.log.project, "MLFLOW_EXPERIMENT_NAME", "sherd");
  const std::string given = run_.environment("MLFLOW_EXPERIMENT_ID").value_or("");
  if (run_.config.log.project.empty() && !given.empty()) {
    return given;
  }
  const json found = ask_for(
      "GET", "experiments/get-by-name?experiment_name=" + sherd::net::escaped(name), nullptr);
  return found.is_null() ? text_in(ask("experiments/create", {{"name", name}}), "experiment_id")
                         : text_in(member_of(found, "experiment"), "experiment_id");
}

bool Mlflow::goes_on(const std::string& run_id) {
  const json found = ask_for("POST", "runs/update", {{"run_id", run_id}, {"status", "RUNNING"}});
  if (found.is_null()) {
    return false;
  }
  run_id_ = run_id;
  experiment_id_ = text_in(member_of(found, "run_info"), "experiment_id");
  return true;
}

void Mlflow::create_run() {
  experiment_id_ = experiment();
  json tags = json::array();
  for (const std::string& word : run_.config.log.tags) {
    tags.push_back(tag(word, "true"));
  }
  const json made = ask(
      "runs/create", {{"experiment_id", experiment_id_},
                      {"run_name", run_.choose(run_.config.log.name, "MLFLOW_RUN_NAME", run_.name)},
                      {"start_time", unix_milliseconds(unix_seconds_now())},
                      {"tags", std::move(tags)}});
  run_id_ = text_in(member_of(member_of(made, "run"), "info"), "run_id");
}

void Mlflow::log_settings() {
  json params = json::array();
  const auto send = [&] {
    ask("runs/log-batch", {{"run_id", run_id_}, {"params", std::exchange(params, json::array())}});
  };
  for (const auto& [key, value] : settings_of(run_.config)) {
    const json parsed = json::parse(value);
    const std::string text = parsed.is_string() ? parsed.get<std::string>() : value;
    params.push_back(tag(key, text.substr(0, kSettingBytes)));
    if (params.size() == kSettingsAtOnce) {
      send();
    }
  }
  send();
}

void Mlflow::begin(std::int64_t steps_done, const EarlierPoints& /*earlier*/) {
  if (run_id_.empty()) {
    const std::string given = run_.environment("MLFLOW_RUN_ID").value_or("");
    const std::string id = given.empty() ? earlier_id(run_, kMlflowIdFile, steps_done) : given;
    const bool is_there = !id.empty() && goes_on(id);
    if (!is_there && !given.empty()) {
      throw Error(ExitCode::Usage, place() + " has no run MLFLOW_RUN_ID = " + given);
    }
    if (!is_there) {
      create_run();
    }
    keep_id(run_, kMlflowIdFile, run_id_);
    has_settings_ = is_there && steps_done > 0;  // which cannot be changed
  }
  if (!has_settings_) {
    log_settings();
  }
}

void Mlflow::log(std::span<const Point> points) {
  json metrics = json::array();
  for (const Point& point : points) {
    for (const auto& [name, number] : point.metrics) {
      if (std::isfinite(number)) {  // JSON has no others
        metrics.push_back({{"key", name},
                           {"value", number},
                           {"timestamp", unix_milliseconds(point.unix_seconds)},
                           {"step", point.step}});
      }
    }
  }
  ask("runs/log-batch", {{"run_id", run_id_}, {"metrics", std::move(metrics)}});
}

void Mlflow::end(End how) {
  ask("runs/update", {{"run_id", run_id_},
                      {"status", status_word(how)},
                      {"end_time", unix_milliseconds(unix_seconds_now())}});
}

std::string Mlflow::closing_words() const {
  return run_id_.empty() ? ""
                         : fmt::format("tracker mlflow: {}/#/experiments/{}/runs/{}", place(),
                                       experiment_id_, run_id_);
}

}  // namespace llm::track
