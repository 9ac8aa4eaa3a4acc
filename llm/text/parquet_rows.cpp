#include "llm/text/parquet_rows.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace llm::text {

ParquetRows::ParquetRows(std::string_view bytes, std::string name,
                         const std::vector<std::string>& wanted)
    : name_(std::move(name)) {
  const std::string names = nlohmann::json(wanted).dump();
  sherd_parquet* rows = nullptr;
  checked(
      [&](char** error) {
        return sherd_text_parquet_open(slice_of(bytes), slice_of(names), &rows, error);
      },
      name_ + ": ");
  rows_.reset(rows);
}

std::vector<std::string> ParquetRows::columns() const {
  char* names = nullptr;
  std::size_t length = 0;
  checked([&](char** error) {
    return sherd_text_parquet_columns(rows_.get(), &names, &length, error);
  });
  const OwnedString owned(names);
  return nlohmann::json::parse(std::string_view(names, length)).get<std::vector<std::string>>();
}

std::optional<std::string> ParquetRows::next() {
  char* row = nullptr;
  std::size_t length = 0;
  checked([&](char** error) { return sherd_text_parquet_next(rows_.get(), &row, &length, error); },
          name_ + ": ");
  const OwnedString owned(row);
  return row == nullptr ? std::nullopt : std::optional<std::string>(std::in_place, row, length);
}

}  // namespace llm::text
