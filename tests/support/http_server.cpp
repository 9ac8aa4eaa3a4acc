#include "tests/support/http_server.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include <httplib.h>

namespace sherd::test {

struct HttpServer::State {
  Handler handler;
  std::string host;
  int port = 0;
  mutable std::mutex mutex;
  std::vector<Asked> asked;
  httplib::Server server;
  std::thread thread;

  void answer(const httplib::Request& request, httplib::Response& response);
};

namespace {

// Sends a body up to the byte at which the connection breaks.
void send_and_break(const Answer& answer, httplib::Response& response) {
  response.set_content_provider(
      answer.body.size(), "application/octet-stream",
      [answer](std::size_t offset, std::size_t bytes, httplib::DataSink& sink) {
        const std::size_t end = std::min(offset + bytes, answer.cut_after_bytes);
        if (offset < end) {
          sink.write(answer.body.data() + offset, end - offset);
        }
        const bool goes_on = offset < end && end < answer.cut_after_bytes;
        if (!goes_on) {
          std::this_thread::sleep_for(answer.stall);
        }
        return goes_on;
      });
}

void send_without_length(const Answer& answer, httplib::Response& response) {
  response.set_content_provider(
      "application/octet-stream", [answer](std::size_t, httplib::DataSink& sink) {
        const auto bytes = std::min(answer.body.size(), answer.cut_after_bytes);
        sink.write(answer.body.data(), bytes);
        sink.done();
        return true;
      });
}

}  // namespace

void HttpServer::State::answer(const httplib::Request& request, httplib::Response& response) {
  const std::lock_guard lock(mutex);
  asked.push_back({request.method,
                   request.path,
                   request.target,
                   {request.headers.begin(), request.headers.end()},
                   request.body});
  const Answer answer = handler(asked.back());
  if (answer.status != 200 || answer.ignores_range || answer.says_no_length) {
    response.status = answer.status;
    // Else the library would cut the asked-for range out of any answer.
    const_cast<httplib::Request&>(request).ranges.clear();
  }
  for (const auto& [name, value] : answer.headers) {
    response.set_header(name, value);
  }
  if (answer.says_no_length) {
    response.set_header("Connection", "close");
    send_without_length(answer, response);
  } else if (answer.cut_after_bytes != std::string::npos) {
    send_and_break(answer, response);
  } else {
    response.set_content(answer.body, "application/octet-stream");
  }
}

std::string Asked::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpServer::HttpServer(Handler handler, const std::string& host)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.handler = std::move(handler);
  state.host = host;
  const auto answer = [&state](const httplib::Request& request, httplib::Response& response) {
    state.answer(request, response);
  };
  state.server.Get(".*", answer).Post(".*", answer).Put(".*", answer).Patch(".*", answer);
  state.server.set_keep_alive_timeout(1);  // stop() waits for connections that are kept
  state.port = state.server.bind_to_any_port(host);
  if (state.port <= 0) {
    throw std::runtime_error("no port on " + host);
  }
  state.thread = std::thread([&state] { state.server.listen_after_bind(); });
  while (!state.server.is_running()) {
    std::this_thread::yield();
  }
}

HttpServer::~HttpServer() {
  state_->server.stop();
  state_->thread.join();
}

std::string HttpServer::url() const {
  return "http://" + state_->host + ":" + std::to_string(state_->port);
}

std::vector<Asked> HttpServer::asked() const {
  const std::lock_guard lock(state_->mutex);
  return state_->asked;
}

}  // namespace sherd::test
