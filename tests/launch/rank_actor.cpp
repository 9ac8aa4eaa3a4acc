// The process that the launcher's tests start.
//   launch_test_rank launch N [port=P] [timeout=S] [grace=S] 0=ACTION 1=ACTION …
//                                                            supervises N copies of itself
//   launch_test_rank act 0=ACTION 1=ACTION …                 plays the action of its RANK (0 if
//   unset)
// Actions print "rank R pid P" on standard output once they are set up.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/peer_watch.h"
#include "launch/pipes.h"
#include "launch/rank_environment.h"
#include "launch/signals.h"
#include "launch/stop_request.h"
#include "launch/stop_watch.h"
#include "launch/supervisor.h"
#include "sherd/error.h"

namespace {

using sherd::launch::RankEnvironment;

void announce(const RankEnvironment& environment) {
  sherd::launch::write_all(STDOUT_FILENO, "rank " + std::to_string(environment.rank) + " pid " +
                                              std::to_string(::getpid()) + "\n");
}

/// Waits for the first stop request, if it obeys any, and for ever after it or without it.
int wait_for_stop(const RankEnvironment& environment, bool launched, bool leave) {
  sigset_t none;
  sigemptyset(&none);
  const sigset_t stops = sherd::launch::stop_signals();
  ::sigprocmask(SIG_BLOCK, &stops, nullptr);
  sherd::launch::StopRequest::install(launched);
  announce(environment);
  while (!(leave && sherd::launch::StopRequest::requested())) {
    ::sigsuspend(&none);
    sherd::launch::write_all(STDOUT_FILENO, sherd::launch::StopRequest::requested()
                                                ? "asked to stop\n"
                                                : "another signal\n");
  }
  return 75;
}

int wait_for_ever(const RankEnvironment& environment) {
  announce(environment);
  for (;;) {
    ::pause();
  }
}

/// Is ready for signals only after a while, as a program that loads large libraries; then leaves
/// when asked.
int stop_late(const RankEnvironment& environment, int delay_ms) {
  announce(environment);
  std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
  sherd::launch::StopRequest::install(environment.supervisor_fd.has_value());
  sherd::launch::release_stop_signals();
  while (!sherd::launch::StopRequest::requested()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const auto waited =
      std::chrono::steady_clock::now() -
      sherd::launch::StopRequest::requested_at().value_or(std::chrono::steady_clock::time_point{});
  return waited < std::chrono::seconds(10) ? 75 : 1;
}

/// Waits in vain for a peer that does not come. A watch ends it at the launcher's deadline.
int wait_in_vain(const RankEnvironment& environment, bool has_unsaved_steps) {
  sherd::launch::StopRequest::install(environment.supervisor_fd.has_value());
  sherd::launch::release_stop_signals();
  sherd::launch::PeerWatch peers(environment);
  peers.tell_save_seconds(7);
  const sherd::launch::StopWatch watch(
      environment.rank,
      {[&] { return peers.stop_within(); }, [] { return std::optional<std::string>("a barrier"); },
       [=] { return std::string(has_unsaved_steps ? "steps 3 to 5" : ""); }});
  announce(environment);
  while (!peers.stop_within()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  sherd::launch::write_all(STDOUT_FILENO,
                           "has " + std::to_string(peers.stop_within()->count()) + " s to stop\n");
  for (;;) {
    ::pause();
  }
}

/// A fault that every rank finds, in two lines.
int report_fault(int code) {
  std::cerr << "sherd: no such file: model/config.json\n  give model.path\n";
  return code;
}

[[noreturn]] void flood_standard_error() {
  for (;;) {
    std::cerr << "a line that nobody reads\n";
  }
}

int print_variables(const RankEnvironment& environment) {
  std::string all;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                           "OMP_NUM_THREADS", "TORCHELASTIC_USE_AGENT_STORE"}) {
    all += std::string(name) + "=" + sherd::launch::process_environment(name).value_or("(unset)") +
           " ";
  }
  all += "master_fd=" + std::string(environment.master_fd ? "yes" : "no") + "\n";
  all += "secret=" + environment.job_secret + "\n";
  all +=
      "timeout=" + (environment.timeout ? std::to_string(environment.timeout->count()) : "none") +
      "\n";
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  all += "descriptors=" + std::to_string(limit.rlim_cur) + "\n";
  sherd::launch::write_all(STDOUT_FILENO, all);
  return 0;
}

/// Rank 0 accepts on the socket it inherited; the others connect to MASTER_PORT.
int meet(const RankEnvironment& environment) {
  if (environment.master_fd) {
    for (int other = 1; other < environment.world_size; ++other) {
      if (::accept(*environment.master_fd, nullptr, nullptr) < 0) {
        return 1;
      }
    }
    return 0;
  }
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(environment.master_port.value_or(0));
  return ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? 0 : 1;
}

int act(const RankEnvironment& environment, const std::string& action) {
  const std::size_t colon = action.find(':');
  const std::string verb = action.substr(0, colon);
  const int number = colon == std::string::npos ? 0 : std::atoi(action.c_str() + colon + 1);
  std::unique_ptr<sherd::launch::PeerWatch> watch;
  if (verb == "watch" || verb == "stop") {
    watch = std::make_unique<sherd::launch::PeerWatch>(environment);
  }
  if (verb == "watch") {  // lives until a peer dies
    return wait_for_ever(environment);
  }
  if (verb == "deaf") {  // lives until it is killed
    std::signal(SIGTERM, SIG_IGN);
    return wait_for_ever(environment);
  }
  if (verb == "stop" || verb == "stubborn") {  // leaves when asked; or hears and stays
    return wait_for_stop(environment, environment.supervisor_fd || number == 1, verb == "stop");
  }
  if (verb == "exit-on-news") {  // leaves with its own code when a peer dies
    announce(environment);
    char byte = 0;
    return ::read(environment.supervisor_fd.value_or(-1), &byte, 1) == 1 ? number : 1;
  }
  if (verb == "raise") {
    std::signal(number, SIG_DFL);  // a sanitizer may have its own handler
    std::raise(number);
  }
  if (verb == "answer-late") {  // no, once the others have said so
    watch = std::make_unique<sherd::launch::PeerWatch>(environment);
    std::this_thread::sleep_for(std::chrono::milliseconds(number));
    sherd::launch::write_all(STDOUT_FILENO, "the answer is no\n");
    return 1;
  }
  if (verb == "stop-late") {
    return stop_late(environment, number);
  }
  if (verb == "wait-in-vain") {
    return wait_in_vain(environment, number == 1);
  }
  if (verb == "fault") {
    return report_fault(number);
  }
  if (verb == "flood") {
    flood_standard_error();
  }
  if (verb == "say") {  // many lines, the last without a newline
    for (int line = 1; line <= 12; ++line) {
      std::cerr << "line " << line << (line < 12 ? "\n" : "");
    }
    return number;
  }
  if (verb == "watch-then-end") {
    watch = std::make_unique<sherd::launch::PeerWatch>(environment);
    watch.reset();
    return number;
  }
  if (verb == "variables") {
    return print_variables(environment);
  }
  return verb == "meet" ? meet(environment) : number;  // "exit"
}

// "1/2@host0:29501": host 1 of 2, which meet at port 29501 of host0.
sherd::launch::LaunchHosts host_of(const std::string& text) {
  const std::size_t slash = text.find('/');
  const std::size_t at = text.find('@');
  const std::size_t colon = text.find(':');
  return {.hosts = std::stoi(text.substr(slash + 1)),
          .number = std::stoi(text),
          .master_address = text.substr(at + 1, colon - at - 1),
          .master_port = static_cast<std::uint16_t>(std::stoi(text.substr(colon + 1)))};
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.at(0) == "launch") {
      sherd::launch::LaunchOptions options{.command = {argv[0], "act"},
                                           .ranks = std::stoi(arguments.at(1))};
      for (std::size_t i = 2; i < arguments.size(); ++i) {
        if (arguments[i].starts_with("port=")) {
          options.port = static_cast<std::uint16_t>(std::stoi(arguments[i].substr(5)));
        } else if (arguments[i].starts_with("host=")) {  // host=1/2@host0:29501
          options.hosts = host_of(arguments[i].substr(5));
        } else if (arguments[i].starts_with("timeout=")) {
          options.timeout = std::chrono::seconds(std::stoi(arguments[i].substr(8)));
        } else if (arguments[i].starts_with("grace=")) {  // as of sherd's own verbs
          options.holds_stop_signals = options.answers = true;
          if (arguments[i] != "grace=none") {
            options.stop_grace = std::chrono::seconds(std::stoi(arguments[i].substr(6)));
          }
        } else if (arguments[i].starts_with("command=")) {
          options.command = {arguments[i].substr(8)};
        } else {
          options.command.push_back(arguments[i]);
        }
      }
      return sherd::launch::supervise(options);
    }
    const auto environment = sherd::launch::detect(sherd::launch::process_environment);
    const std::string mine = std::to_string(environment.rank) + "=";
    const auto found = std::find_if(arguments.begin(), arguments.end(),
                                    [&](const std::string& a) { return a.starts_with(mine); });
    return act(environment, found == arguments.end() ? "exit:0" : found->substr(mine.size()));
  } catch (const sherd::Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
