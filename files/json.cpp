#include "files/json.h"

#include <algorithm>
#include <set>
#include <vector>

#include "files/input.h"
#include "files/other_kind.h"
#include "sherd/error.h"

namespace sherd::files {
namespace {

[[noreturn]] void refuse(const std::string& place, const std::string& what) {
  throw Error(ExitCode::BadData, place + ": " + what);
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: …; last read: '…'" without its
// first word, and without what was read if that is long.
std::string reason_of(const nlohmann::json::exception& fault) {
  constexpr size_t kMaxShownBytes = 300;
  const std::string what = fault.what();
  const size_t start = what.find("] ");
  const std::string reason = start == std::string::npos ? what : what.substr(start + 2);
  return reason.size() <= kMaxShownBytes
             ? reason
             : reason.substr(0, std::min(reason.find("; last read"), kMaxShownBytes));
}

// Looks at the events of a parse, and refuses what the grammar allows and Sherd does not.
template <class Json>
class Watch {
 public:
  Watch(const std::string& place, RepeatedFields repeated) : place_(place), repeated_(repeated) {}

  void see(int depth, typename Json::parse_event_t event, const Json& value) {
    using Event = typename Json::parse_event_t;
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (opens && depth >= kMaxJsonDepth) {
      refuse(place_, "nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    if (repeated_ == RepeatedFields::LastCounts) {
      return;
    }
    if (event == Event::object_start) {
      names_.emplace_back();
    } else if (event == Event::object_end) {
      names_.pop_back();
    } else if (event == Event::key) {
      const auto& name = value.template get_ref<const std::string&>();
      if (!names_.back().insert(name).second) {
        refuse(place_, "field \"" + name + "\" occurs twice");
      }
    }
  }

 private:
  const std::string& place_;
  RepeatedFields repeated_;
  std::vector<std::set<std::string>> names_;  // of the objects that are open
};

}  // namespace

template <class Json>
Json parse_json(const std::string& bytes, const std::string& place, RepeatedFields repeated) {
  if (bytes.find_first_not_of(" \t\r\n") == std::string::npos) {
    refuse(place, "is empty");
  }
  refuse_utf16(place, bytes);
  Watch<Json> watch(place, repeated);
  const auto see = [&](int depth, typename Json::parse_event_t event, Json& value) {
    watch.see(depth, event, value);
    return true;
  };
  try {
    Json json = Json::parse(bytes, see);
    // The parser takes a NUL byte for the end of the text.
    if (const size_t nul = bytes.find('\0'); nul != std::string::npos) {
      refuse(place, "not JSON: a NUL byte at byte " + std::to_string(nul));
    }
    return json;
  } catch (const nlohmann::json::exception& fault) {
    refuse(place, "not JSON: " + reason_of(fault));
  }
}

template <class Json>
Json read_json(const std::string& path, uint64_t max_bytes, RepeatedFields repeated) {
  return parse_json<Json>(read_file(path, max_bytes), path, repeated);
}

template <class Json>
Json read_json_object(const std::string& path, RepeatedFields repeated) {
  Json json = read_json<Json>(path, kMaxConfigBytes, repeated);
  if (!json.is_object()) {
    refuse(path, std::string("expected a JSON object, found ") + json.type_name());
  }
  return json;
}

using nlohmann::json;
using nlohmann::ordered_json;
template json parse_json(const std::string&, const std::string&, RepeatedFields);
template ordered_json parse_json(const std::string&, const std::string&, RepeatedFields);
template json read_json(const std::string&, uint64_t, RepeatedFields);
template ordered_json read_json(const std::string&, uint64_t, RepeatedFields);
template json read_json_object(const std::string&, RepeatedFields);
template ordered_json read_json_object(const std::string&, RepeatedFields);

}  // namespace sherd::files
