#pragma once
// A port that answers whoever tries it.

#include <cstdint>
#include <string>
#include <thread>

#include "files/file_descriptor.h"
#include "launch/pipes.h"

namespace sherd::detail {

/// While it lives, a thread accepts every connection to a port of this host and lets go of it, so
/// that no queue of the system's fills up, however many try.
class AnsweringSocket {
 public:
  /// On `host` and no other interface, on a port that the system picks. Throws Error(Unavailable).
  explicit AnsweringSocket(const std::string& host);
  ~AnsweringSocket();
  AnsweringSocket(const AnsweringSocket&) = delete;
  AnsweringSocket& operator=(const AnsweringSocket&) = delete;

  [[nodiscard]] std::uint16_t port() const;

 private:
  void answer() const;

  files::FileDescriptor listening_;
  launch::Pipe stop_;  // closing its write end ends the thread
  std::thread thread_;
};

}  // namespace sherd::detail
