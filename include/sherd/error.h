#pragma once
// The exit codes, and the exception that carries one. Uses the standard library only, so that every
// layer, with or without LibTorch, reports failures the same way. Also the version of Sherd; CMake
// reads it from this file.

#include <stdexcept>
#include <string>

namespace sherd {

/// Exit codes of a process: those of sysexits.h where one fits. Each has the same meaning in every
/// subcommand.
enum class ExitCode : int {
  Done = 0,
  Usage = 64,         ///< wrong flag or configuration
  BadData = 65,       ///< invalid data or model file
  InputMissing = 66,  ///< missing or unreadable input
  Unavailable = 69,   ///< a port, address or system resource is not available
  /// A broken invariant (a bug in Sherd), or an exception of a callback that is no Error.
  Internal = 70,
  CannotWrite = 73,  ///< an output cannot be created, or is locked
  StorageIo = 74,    ///< a read or write failed part-way
  Stopped = 75,      ///< stopped on request; the same command resumes
  PeerLost = 76,     ///< another rank died or is unreachable
  NotAuthorised = 77,
  RanksDisagree = 78,  ///< ranks differ in settings or data
  NonFinite = 79,      ///< loss or gradient is NaN or infinite
  Hang = 80,           ///< another rank is connected but silent for longer than the timeout
  OutOfMemory = 81,
};

/// The library's only exception type: a failure with its exit code. The message says what failed,
/// where (file:line, or rank, unit, phase and step) and what to try.
///
/// Every public call throws it for its own faults: wrong use, bad files, lost ranks. It throws
/// OutOfMemory if an allocation of its own fails, with the number of bytes, the purpose, the unit
/// and the phase. It throws Internal for broken invariants.
///
/// Your own code inside a call falls into three groups:
/// - An exception from a module's forward or backward passes unchanged. LibTorch's operators throw
///   `c10::Error` there, also when memory runs out. An exception from a hook passes too; in an
///   all-reduce hook an Error also gets unit and phase, and a failed allocation becomes
///   OutOfMemory.
/// - Callbacks before a collective are compared between ranks: the functions of ShardOptions
///   (units, ignored, keeps_own_dtype), those of initialize(), the visitor or source of a state,
///   and `name_in_file`. So are the functions of a CheckpointableOptimizer, except restore(). If
///   one throws, every rank throws an Error at once. It names the rank that threw. It has the code
///   of the Error thrown, or Internal for another std::exception.
/// - with_full_parameters() rethrows the exception of `inspect`; the other ranks throw such an
///   Error.
///
/// PyTorch: none.
class Error : public std::runtime_error {
 public:
  /// `message` is the text for the user: whole sentences, without the exit code.
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  /// Returns the exit code for a program that ends because of this error.
  [[nodiscard]] ExitCode code() const noexcept { return code_; }
  /// Returns true if other ranks are gone or silent: no further collective can succeed.
  [[nodiscard]] bool is_of_peers() const noexcept {
    return code_ == ExitCode::PeerLost || code_ == ExitCode::Hang;
  }

 private:
  ExitCode code_;
};

/// A full disk or quota: the output did not fit, and a later try may succeed. The code is
/// CannotWrite or StorageIo. PyTorch: none.
class NoRoom : public Error {
 public:
  using Error::Error;
};

}  // namespace sherd

// For code that must compile with several versions: `SHERD_VERSION >= 200` means 0.2.0 or later.
#define SHERD_VERSION_MAJOR 0
#define SHERD_VERSION_MINOR 2
#define SHERD_VERSION_PATCH 0
#define SHERD_VERSION \
  (SHERD_VERSION_MAJOR * 10000 + SHERD_VERSION_MINOR * 100 + SHERD_VERSION_PATCH)

namespace sherd {

/// A version by the rules of semver.org. Until 1.0 a minor version may change the interface.
struct Version {
  int major = SHERD_VERSION_MAJOR;  ///< changes incompatibly
  int minor = SHERD_VERSION_MINOR;  ///< adds features
  int patch = SHERD_VERSION_PATCH;  ///< corrects faults
};

/// The version of the headers at compile time. PyTorch: `torch.__version__`.
inline constexpr Version kVersion = {};

}  // namespace sherd
