#include "safetensors/weight_map.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "files/other_kind.h"
#include "safetensors/header.h"
#include "sherd/error.h"

namespace sherd::detail {
namespace {

constexpr size_t kMaxMappedTensors = size_t{1} << 20;
constexpr std::string_view kExtension = ".safetensors";

class WeightMapSax : public files::StrictSax {
 public:
  WeightMapSax(files::ByteStream& bytes, WeightMap& map) : StrictSax(bytes), map_(map) {}
  [[nodiscard]] bool map_seen() const { return map_seen_; }

 protected:
  void on_start_object() override {
    if (state_ == State::Start) {
      state_ = State::Top;
    } else if (state_ == State::MapValue) {
      state_ = State::Map;
    } else {
      refuse_found("an object");
    }
  }

  void on_end_object() override { state_ = State::Top; }

  void on_key(std::string& name) override {
    if (state_ == State::Map) {
      on_tensor(name);
    } else if (name != "weight_map") {
      ignore_value();
    } else if (std::exchange(map_seen_, true)) {
      refuse("\"weight_map\" occurs twice in the file");
    } else {
      state_ = State::MapValue;
    }
  }

  void on_string(std::string& value) override {
    if (state_ != State::FileValue) {
      refuse_found("the string " + files::in_quotes(value));
    }
    check_file_name(value);
    map_.emplace(std::move(tensor_), value);
    state_ = State::Map;
  }

  [[nodiscard]] std::string expected() const override {
    switch (state_) {
      case State::Start:
        return "an object with \"weight_map\"";
      case State::MapValue:
        return "an object of file names for \"weight_map\"";
      case State::FileValue:
        return "a file name for tensor " + files::in_quotes(tensor_);
      case State::Top:
      case State::Map:
        break;
    }
    return "a key";
  }

 private:
  enum class State { Start, Top, MapValue, Map, FileValue };

  void on_tensor(const std::string& name) {
    if (map_.count(name) != 0) {
      refuse("tensor " + files::in_quotes(name) + " occurs twice in \"weight_map\"");
    }
    if (name.size() > kMaxNameBytes) {
      refuse("a tensor name of " + std::to_string(name.size()) + " bytes, at most " +
             std::to_string(kMaxNameBytes) + " are allowed: " + files::in_quotes(name));
    }
    if (map_.size() == kMaxMappedTensors) {
      refuse("more than " + std::to_string(kMaxMappedTensors) + " tensors");
    }
    tensor_ = name;
    state_ = State::FileValue;
  }

  // Anything but a plain name would let an index read files outside of its folder.
  void check_file_name(const std::string& name) const {
    const bool plain =
        name.size() <= 255 && std::none_of(name.begin(), name.end(), [](unsigned char c) {
          return c == '/' || c == '\\' || c < 0x20 || c == 0x7f;
        });
    const bool safetensors = name.size() > kExtension.size() && name.ends_with(kExtension);
    if (!plain || !safetensors || name.front() == '.') {
      refuse("tensor " + files::in_quotes(tensor_) +
             ": expected the plain name of a .safetensors file in this folder, found " +
             files::in_quotes(name));
    }
  }

  WeightMap& map_;
  State state_ = State::Start;
  bool map_seen_ = false;
  std::string tensor_;
};

}  // namespace

WeightMap parse_weight_map(const std::string& path, uint64_t file_bytes,
                           const files::ReadBytes& read) {
  if (file_bytes > kMaxHeaderBytes) {
    throw Error(ExitCode::BadData, path + ": expected an index of at most " +
                                       std::to_string(kMaxHeaderBytes) + " bytes, found " +
                                       std::to_string(file_bytes));
  }
  std::string begin(std::min<uint64_t>(file_bytes, files::kRecognisedBytes), '\0');
  read(0, begin.data(), begin.size());
  files::refuse_git_lfs_pointer(path, begin);
  files::refuse_utf16(path, begin);
  WeightMap map;
  files::ByteStream bytes(path, read, 0, file_bytes);
  WeightMapSax sax(bytes, map);
  files::parse_strict_json(bytes, sax);
  if (!sax.map_seen() || map.empty()) {
    throw Error(ExitCode::BadData, path + ": no tensors in \"weight_map\"");
  }
  return map;
}

}  // namespace sherd::detail
