#pragma once
// Rows of a Parquet file as JSON.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llm/text/c_interface.h"

namespace llm::text {

/// Rows of some columns of a file, one at a time.
class ParquetRows {
 public:
  /// `bytes` must live as long as this. Throws sherd::Error(BadData) that names `name` where they
  /// are no Parquet file.
  ParquetRows(std::string_view bytes, std::string name, const std::vector<std::string>& wanted);

  /// Names of all columns of the file.
  [[nodiscard]] std::vector<std::string> columns() const;
  /// A JSON object of the wanted columns; none at the end. Throws sherd::Error(BadData), naming row
  /// and column, where the file is damaged.
  std::optional<std::string> next();

 private:
  struct Close {
    void operator()(sherd_parquet* rows) const { sherd_text_parquet_close(rows); }
  };
  std::string name_;
  std::unique_ptr<sherd_parquet, Close> rows_;
};

}  // namespace llm::text
