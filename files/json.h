#pragma once
// JSON of files that nobody vouches for, as a document: bounded in size and depth, nothing after
// its end, faults with file, line and column. (strict_json.h reads large ones as a stream.)

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace sherd::files {

/// Objects and arrays nested deeper than this are refused: code that walks, copies, compares or
/// prints a value does so by recursion.
inline constexpr int kMaxJsonDepth = 64;

/// How an object that names a field twice is treated.
enum class RepeatedFields { Refuse, LastCounts };

/// Parses the bytes of `place` (a path, or path:line). `Json` is nlohmann::json, or ordered_json,
/// which keeps the order of fields. Throws Error(BadData): empty, UTF-16 or UTF-32, no JSON
/// (with line and column, bad UTF-8 included), something after its end (NUL included), nested too
/// deeply, a field twice.
template <class Json = nlohmann::json>
[[nodiscard]] Json parse_json(const std::string& bytes, const std::string& place,
                              RepeatedFields repeated = RepeatedFields::LastCounts);

/// `read_file` and `parse_json`; throws as they do.
template <class Json = nlohmann::json>
[[nodiscard]] Json read_json(const std::string& path, uint64_t max_bytes,
                             RepeatedFields repeated = RepeatedFields::LastCounts);

/// A file of at most kMaxConfigBytes that holds one object. Throws as `read_json`.
template <class Json = nlohmann::json>
[[nodiscard]] Json read_json_object(const std::string& path,
                                    RepeatedFields repeated = RepeatedFields::LastCounts);

}  // namespace sherd::files
