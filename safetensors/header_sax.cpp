#include "safetensors/header_sax.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace sherd::detail {

std::string HeaderSax::expected() const {
  switch (state_) {
    case State::Start:
      return "an object of tensors";
    case State::TensorValue:
      return "an object with dtype, shape and data_offsets for " + tensor_text();
    case State::DtypeValue:
      return "a dtype's name for " + tensor_text();
    case State::ShapeValue:
      return "an array of dimensions for " + tensor_text();
    case State::Shape:
      return "a dimension (an integer from 0 on) of " + tensor_text();
    case State::OffsetsValue:
      return "an array of two data_offsets for " + tensor_text();
    case State::Offsets:
      return "a data offset (an integer from 0 on) of " + tensor_text();
    case State::MetadataValue:
      return "an object of strings for \"__metadata__\"";
    case State::MetadataEntryValue:
      return "a string for " + files::in_quotes(metadata_key_) + " in \"__metadata__\"";
    case State::Top:
    case State::Tensor:
    case State::Metadata:
      break;
  }
  return "a key";
}

void HeaderSax::on_key(std::string& name) {
  switch (state_) {
    case State::Top:
      return on_top_key(name);
    case State::Tensor:
      return on_tensor_key(name);
    default:
      return on_metadata_key(name);
  }
}

void HeaderSax::on_top_key(std::string& name) {
  if (name == "__metadata__") {
    if (std::exchange(metadata_seen_, true)) {
      refuse("\"__metadata__\" occurs twice in the header");
    }
    state_ = State::MetadataValue;
    return;
  }
  if (header_.tensors.size() == kMaxTensors) {
    refuse("more than " + std::to_string(kMaxTensors) + " tensors");
  }
  if (name.size() > kMaxNameBytes) {
    refuse("a tensor name of " + std::to_string(name.size()) + " bytes, at most " +
           std::to_string(kMaxNameBytes) + " are allowed: " + files::in_quotes(name));
  }
  if (std::any_of(name.begin(), name.end(),
                  [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    refuse("a control character in the tensor name " + files::in_quotes(name));
  }
  tensor_ = TensorRecord{};
  tensor_.name = name;
  keys_seen_.clear();
  state_ = State::TensorValue;
}

void HeaderSax::on_tensor_key(const std::string& name) {
  if (keys_seen_.size() == kMaxTensorKeys || name.size() > kMaxNameBytes) {
    refuse(tensor_text() + " has more than " + std::to_string(kMaxTensorKeys) +
           " keys, or one of more than " + std::to_string(kMaxNameBytes) + " bytes");
  }
  if (!keys_seen_.insert(name).second) {
    refuse(tensor_text() + " has " + files::in_quotes(name) + " twice");
  }
  if (name == "dtype") {
    state_ = State::DtypeValue;
  } else if (name == "shape") {
    state_ = State::ShapeValue;
  } else if (name == "data_offsets") {
    state_ = State::OffsetsValue;
  } else {
    ignore_value();  // as the format's own reader does
  }
}

void HeaderSax::on_metadata_key(const std::string& name) {
  if (header_.metadata.size() == kMaxMetadataEntries) {
    refuse("more than " + std::to_string(kMaxMetadataEntries) + " entries in \"__metadata__\"");
  }
  if (header_.metadata.count(name) != 0) {
    refuse(files::in_quotes(name) + " occurs twice in \"__metadata__\"");
  }
  metadata_key_ = name;
  state_ = State::MetadataEntryValue;
}

void HeaderSax::on_start_object() {
  switch (state_) {
    case State::Start:
      state_ = State::Top;
      return;
    case State::TensorValue:
      state_ = State::Tensor;
      return;
    case State::MetadataValue:
      state_ = State::Metadata;
      return;
    default:
      refuse_found("an object");
  }
}

void HeaderSax::on_end_object() {
  if (state_ == State::Tensor) {
    finish_tensor();
  }
  state_ = State::Top;  // after the outermost object, the parser refuses what follows
}

void HeaderSax::finish_tensor() {
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!keys_seen_.contains(key)) {
      refuse(tensor_text() + " has no " + key);
    }
  }
  tensor_.shape.shrink_to_fit();
  header_.tensors.push_back(std::move(tensor_));
}

void HeaderSax::on_start_array() {
  if (state_ == State::ShapeValue) {
    state_ = State::Shape;
  } else if (state_ == State::OffsetsValue) {
    state_ = State::Offsets;
    offsets_count_ = 0;
  } else {
    refuse_found("an array");
  }
}

void HeaderSax::on_end_array() {
  if (state_ == State::Offsets && offsets_count_ != 2) {
    refuse(tensor_text() + ": expected two data_offsets, found " + std::to_string(offsets_count_));
  }
  state_ = State::Tensor;
}

// Some writers have null for "no metadata".
void HeaderSax::on_null() {
  if (state_ != State::MetadataValue) {
    refuse_found("null");
  }
  state_ = State::Top;
}

void HeaderSax::on_unsigned(uint64_t value) {
  if (state_ != State::Shape && state_ != State::Offsets) {
    refuse_found("the number " + std::to_string(value));
  }
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    refuse(tensor_text() + ": the number " + std::to_string(value) + " is larger than 2^63 - 1");
  }
  if (state_ == State::Shape) {
    if (tensor_.shape.size() == kMaxRank) {
      refuse(tensor_text() + " has more than " + std::to_string(kMaxRank) + " dimensions");
    }
    tensor_.shape.push_back(static_cast<int64_t>(value));
    return;
  }
  if (offsets_count_ == 2) {
    refuse(tensor_text() + ": expected two data_offsets, found more");
  }
  (offsets_count_++ == 0 ? tensor_.begin_byte : tensor_.end_byte) = value;
}

void HeaderSax::on_string(std::string& value) {
  if (state_ == State::DtypeValue) {
    tensor_.dtype = find_dtype(value);
    if (tensor_.dtype == nullptr) {
      refuse(tensor_text() + ": expected a dtype of the format (F32, BF16, I64, …), found " +
             files::in_quotes(value));
    }
    state_ = State::Tensor;
  } else if (state_ == State::MetadataEntryValue) {
    header_.metadata.emplace(std::move(metadata_key_), value);
    state_ = State::Metadata;
  } else {
    refuse_found("the string " + files::in_quotes(value));
  }
}

}  // namespace sherd::detail
