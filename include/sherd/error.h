#pragma once
// The exit codes and the exception that carries one. The floor of the project:
// standard library only, so that every layer, with LibTorch or without, reports failures in the
// same way.

#include <stdexcept>
#include <string>

namespace sherd {

/// Exit codes of a process, those of sysexits.h where it has one. Each means the same in every verb
/// of the program.
enum class ExitCode : int {
  Done = 0,
  Usage = 64,         ///< wrong flag or configuration
  BadData = 65,       ///< a data or model file that cannot be right
  InputMissing = 66,  ///< an input that is not there or cannot be read
  Unavailable = 69,   ///< a port, an address or a resource of the system is not free
  Internal = 70,  ///< a broken invariant: a bug of Sherd; or what a callback threw that is no Error
  CannotWrite = 73,  ///< an output that cannot be created, or is locked
  StorageIo = 74,    ///< reading or writing failed half-way
  Stopped = 75,      ///< stopped on request; the same command resumes
  PeerLost = 76,     ///< another rank died or cannot be reached
  NotAuthorised = 77,
  RanksDisagree = 78,  ///< ranks were started with different settings or data
  NonFinite = 79,      ///< loss or gradient is NaN or infinite
  Hang = 80,           ///< another rank is there, and silent for longer than the timeout
  OutOfMemory = 81,
};

/// The one exception type of the library: a failure with the exit code it deserves. The message
/// says what, where (file:line, or rank, unit, phase and step) and what to try.
///
/// Every public call throws it for faults of its own: wrong use, bad files, lost ranks; memory that
/// its own work was refused (OutOfMemory: how many bytes, what for, and the unit and phase, where
/// it is in one); broken invariants (Internal).
///
/// Your own code inside a call falls into three groups:
/// - What a module's forward or backward throws passes unchanged, and LibTorch's operators throw
///   `c10::Error` there, also when memory runs out. So does what a hook throws; in an all-reduce
///   hook an Error also gets unit and phase, and a failed allocation becomes OutOfMemory.
/// - Callbacks before a collective are compared between ranks: the functions of ShardOptions
///   (units, ignored, keeps_own_dtype), those of initialize(), visitor or source of a state,
///   `name_in_file`, the functions of a CheckpointableOptimizer except restore(). If one throws,
///   every rank throws an Error at once. It names the rank that threw and has the code of the Error
///   thrown, or Internal for another std::exception.
/// - with_full_parameters() rethrows what `inspect` threw; the other ranks throw such an Error.
///
/// PyTorch: none.
class Error : public std::runtime_error {
 public:
  /// `message` is what the user reads: whole sentences, without the exit code.
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  /// With what a program that ends because of it should exit.
  [[nodiscard]] ExitCode code() const noexcept { return code_; }
  /// The other ranks are gone or silent: no further collective can succeed.
  [[nodiscard]] bool is_of_peers() const noexcept {
    return code_ == ExitCode::PeerLost || code_ == ExitCode::Hang;
  }

 private:
  ExitCode code_;
};

}  // namespace sherd
