#include "rendezvous/answering_socket.h"

#include <array>
#include <string>
#include <system_error>

#include <poll.h>
#include <sys/socket.h>

#include "files/quiet_thread.h"
#include "rendezvous/network.h"
#include "sherd/error.h"

namespace sherd::detail {

AnsweringSocket::AnsweringSocket(const std::string& host)
    : listening_(listen_on(host, 0)), stop_(launch::make_pipe()) {
  launch::set_non_blocking(listening_.get());
  try {
    thread_ = files::start_quiet_thread([this] { answer(); });
  } catch (const std::system_error& error) {
    throw Error(ExitCode::Unavailable,
                std::string("no thread can be started to answer other hosts: ") + error.what());
  }
}

AnsweringSocket::~AnsweringSocket() {
  stop_.write_end.close();
  thread_.join();
}

std::uint16_t AnsweringSocket::port() const {
  return port_of(listening_.get());
}

void AnsweringSocket::answer() const {
  std::array<pollfd, 2> events{{{listening_.get(), POLLIN, 0}, {stop_.read_end.get(), POLLIN, 0}}};
  while (events[1].revents == 0) {
    poll(events.data(), events.size(), -1);
    const files::FileDescriptor caller(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
}

}  // namespace sherd::detail
