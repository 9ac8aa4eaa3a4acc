#pragma once
// The files of a data set as they are read.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/text/bad_sample.h"
#include "llm/text/questions.h"
#include "llm/text/records.h"

namespace llm::inputs {

/// Which samples of a file are used, where a share of them is kept from training.
enum class Side { All, Training, HeldOut };

/// How a data file is written, and what its bad samples lead to.
struct FileReading {
  config::DataFormat format = config::DataFormat::Auto;
  text::Columns columns = {};
  text::BadSamplePolicy bad = {};
  Side side = Side::All;
  double held_out = 0;  ///< the share that Side::Training leaves out
};

struct NamedBytes {
  std::string name;
  std::string bytes;
};

/// A data set's file, or several, which are one data set. Bytes are there where it was read as a
/// whole: its questions, their tokens and its digest come from the same ones.
struct DataFile {
  std::string name;               ///< its path, which may hold a `*`
  std::vector<NamedBytes> files;  ///< one at least, in the order of their names
  std::string sha256;             ///< of several files that of their digests, one after the other
  FileReading reading = {};       ///< its format is never Auto
  bool are_questions = false;     ///< about contexts: read as a whole; else records, one by one
  std::string note = {};          ///< for people: its kind where that was recognised; else empty
};

/// What Auto means for a file, before its records are looked at: jsonl, csv or parquet by the
/// ending of its name (.jsonl, .ndjson, .csv, .tsv, .parquet, before .gz or .zst); else parquet
/// where it begins as such files do, json where it begins with '[', jsonl where its first line is a
/// record, and squad otherwise.
config::DataFormat format_of(const text::DataBytes& file);

/// The files that a path means, in the order of their names: those of its folder whose names are
/// its last part, a `*` standing for any characters; or the one that has just this name. Throws
/// sherd::Error(InputMissing) where a `*` stands for no file.
std::vector<std::string> files_of(const std::filesystem::path& path);

/// The path with one `*` that means these files and no others; none where there is no such path.
std::optional<std::string> pattern_of(const std::vector<std::string>& files);

/// Finds files_of(path) and their format by their beginnings: neither bytes nor a digest. Throws as
/// read_data_file() does.
DataFile find_data_file(const std::filesystem::path& path, const FileReading& reading = {});

/// Reads files_of(path). Throws as it does, and sherd::Error: InputMissing if a file cannot be
/// read, BadData if one is text in UTF-16, if the path is a folder that `save_to_disk` wrote, or if
/// Auto means something else for one than for another (empty files have no format).
DataFile read_data_file(const std::filesystem::path& path, const FileReading& reading = {});

/// How the records of a file are read. The format is none that is read as a whole.
[[nodiscard]] text::RecordReading record_reading_of(const text::DataBytes& file,
                                                    const FileReading& reading);

/// Takes the samples of the other side away. Returns how many.
std::int64_t keep_side(text::QuestionFile& file, const FileReading& reading);
/// Refuses a data set of which `data.held_out` leaves nothing. `all`: its samples.
[[noreturn]] void refuse_empty_side(const DataFile& source, std::int64_t all);

/// Whether a sample is in the share that is kept from training: a hash of its texts decides, so
/// that equal samples are on one side, in any file and order. `context` is that of its question, or
/// empty.
[[nodiscard]] bool is_held_out(const text::Question& question, std::string_view context,
                               double share);

/// Where a record stands, as its id tells: "line 3", of several files "line 3 of a.jsonl". A
/// question's id is its own. `files`: those of the data set.
[[nodiscard]] std::string place_of(const text::Question& record,
                                   const std::vector<NamedBytes>& files);

/// Returns the good questions about contexts of the file's side: of several files in their order. A
/// question whose id another file has too is bad. Some of several files may be empty. Throws
/// sherd::Error as `text::parse_squad` and `parse_parquet` do, and BadData if there is no good
/// question at all, or none on that side.
text::QuestionFile parse_questions(const DataFile& file);

}  // namespace llm::inputs
