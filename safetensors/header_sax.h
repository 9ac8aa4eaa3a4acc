#pragma once
// The grammar of a safetensors header, event by event.

#include <set>
#include <string>

#include "safetensors/header.h"

namespace sherd::detail {

/// Fills a Header from JSON events. Checks form, types and caps; the caller checks what the offsets
/// mean together. As the format's own reader does, it takes a null `__metadata__` for none and
/// passes over unknown keys of a tensor.
class HeaderSax : public files::StrictSax {
 public:
  HeaderSax(files::ByteStream& bytes, Header& header) : StrictSax(bytes), header_(header) {}

 protected:
  void on_null() override;
  void on_unsigned(uint64_t value) override;
  void on_string(std::string& value) override;
  void on_key(std::string& name) override;
  void on_start_object() override;
  void on_end_object() override;
  void on_start_array() override;
  void on_end_array() override;
  [[nodiscard]] std::string expected() const override;

 private:
  // What comes next. A "…Value" waits for the value of a key.
  enum class State {
    Start,
    Top,
    TensorValue,
    Tensor,
    DtypeValue,
    ShapeValue,
    Shape,
    OffsetsValue,
    Offsets,
    MetadataValue,
    Metadata,
    MetadataEntryValue
  };

  void on_top_key(std::string& name);
  void on_tensor_key(const std::string& name);
  void on_metadata_key(const std::string& name);
  void finish_tensor();
  [[nodiscard]] std::string tensor_text() const {
    return "tensor " + files::in_quotes(tensor_.name);
  }

  Header& header_;
  State state_ = State::Start;
  bool metadata_seen_ = false;
  std::string metadata_key_;
  // The tensor that is being read, and which of its keys have been.
  TensorRecord tensor_;
  std::set<std::string> keys_seen_;
  size_t offsets_count_ = 0;
};

}  // namespace sherd::detail
