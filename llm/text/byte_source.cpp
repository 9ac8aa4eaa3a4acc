#include "llm/text/byte_source.h"

#include <algorithm>

#include "files/input.h"
#include "sherd/error.h"

namespace llm::text {

namespace {

constexpr std::string_view kGzip = ".gz";
constexpr std::string_view kZstandard = ".zst";

sherd_stream* stream_of(const DataBytes& file) {
  sherd_stream* stream = nullptr;
  if (file.bytes) {
    checked(
        [&](char** error) {
          return sherd_text_stream_open_bytes(slice_of(*file.bytes), &stream, error);
        },
        file.name + ": ");
    return stream;
  }
  const int descriptor = sherd::files::open_input(file.name).descriptor.release();
  checked(
      [&](char** error) { return sherd_text_stream_open_descriptor(descriptor, &stream, error); },
      file.name + ": ");
  return stream;
}

std::string_view compression_of(const sherd_stream* stream) {
  sherd_text_slice name{};
  sherd_text_stream_compression(stream, &name);
  return {name.bytes, name.length_bytes};
}

void require_what_its_name_says(const std::string& name, std::string_view compression) {
  const bool has_no_ending = without_compression(name).size() == name.size();
  if (has_no_ending || !compression.empty()) {
    return;
  }
  const bool is_gzip = name.ends_with(kGzip);
  throw sherd::Error(sherd::ExitCode::BadData,
                     name + ": its name ends in " + std::string(is_gzip ? kGzip : kZstandard) +
                         ", but it is no " + (is_gzip ? "gzip" : "Zstandard") +
                         " file: rename it, or fetch it again");
}

}  // namespace

std::string_view without_compression(std::string_view name) {
  for (const std::string_view ending : {kGzip, kZstandard}) {
    if (name.ends_with(ending)) {
      return name.substr(0, name.size() - ending.size());
    }
  }
  return name;
}

ByteSource::ByteSource(const DataBytes& file) : name_(file.name), stream_(stream_of(file)) {
  const std::string_view compression = compression_of(stream_.get());
  is_compressed_ = !compression.empty();
  require_what_its_name_says(name_, compression);
}

std::size_t ByteSource::read(std::span<char> buffer) {
  std::size_t read = 0;
  checked(
      [&](char** error) {
        return sherd_text_stream_read(stream_.get(), buffer.data(), buffer.size(), &read, error);
      },
      name_ + ": ");
  return read;
}

std::string first_bytes(const DataBytes& file, std::size_t bytes) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 20;
  ByteSource source(file);
  std::string begin;
  for (bool ends = false; !ends && begin.size() < bytes;) {
    const std::size_t before = begin.size();
    begin.resize(before + std::min(kAtOnce, bytes - before));
    const std::size_t more = source.read(std::span(begin).subspan(before));
    ends = before + more < begin.size();
    begin.resize(before + more);
  }
  return begin;
}

}  // namespace llm::text
