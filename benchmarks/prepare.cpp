// How fast data is prepared, beside the tokenizer's own rate on one thread, and how much memory
// that and the start of a prepared run take.
//
//   build/release/bin/prepare MODEL_FOLDER [--megabytes N] [--memory MIB] [--samples]
//
// Writes N MB (default 120) of records of a prompt and a completion into a temporary folder, of
// words that a fixed seed draws. With --samples, records are short: 120 MB are about a million.
// Then, each in a process of its own: encodes 8 MB on one thread; prepares all; opens the store,
// packs nothing, lays out 32 samples. Prints seconds, MB/s and the peak of the resident memory of
// each.

#include "llm/inputs/prepare.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "benchmarks/program.h"
#include "llm/inputs/batch.h"
#include "llm/inputs/sampler.h"
#include "llm/text/record_prompt.h"
#include "llm/text/records.h"

namespace sherd::benchmarks {
namespace {

namespace fs = std::filesystem;
using llm::inputs::open_source;

constexpr double kMebibyte = 1 << 20;
constexpr double kMegabyte = 1e6;

struct PrepareFlags {
  std::string model;
  double megabytes = 120;
  std::int64_t memory_mib = 512;
  bool short_records = false;
};

// Words of two to nine letters, some far more frequent than others.
class Words {
 public:
  std::string next() {
    std::string word;
    const std::uint64_t rank = draw() % (draw() % 20'000 + 1);
    std::uint64_t letters = rank * 0x9e3779b97f4a7c15U + 1;
    for (std::uint64_t i = 0; i < 2 + letters % 8; ++i) {
      word += static_cast<char>('a' + (letters >> (5 * i + 3)) % 26);
    }
    return word;
  }

 private:
  std::uint64_t draw() {
    state_ ^= state_ << 13U;
    state_ ^= state_ >> 7U;
    state_ ^= state_ << 17U;
    return state_ >> 16U;
  }
  std::uint64_t state_ = 88'172'645'463'325'252U;
};

std::string text_of(Words& words, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += (i == 0 ? "" : i % 13 == 12 ? ". " : " ") + words.next();
  }
  return text;
}

std::int64_t write_records(const fs::path& path, const PrepareFlags& flags) {
  std::ofstream out(path);
  Words words;
  std::int64_t records = 0;
  for (double bytes = 0; bytes < flags.megabytes * kMegabyte; ++records) {
    const std::string line = R"({"prompt": ")" + text_of(words, flags.short_records ? 6 : 60) +
                             R"(?", "completion": ")" +
                             text_of(words, flags.short_records ? 6 : 120) + ".\"}\n";
    out << line;
    bytes += static_cast<double>(line.size());
  }
  return records;
}

// MiB that /proc/self/status has under a name. Pages of files are shared by the processes of a
// host, and the system takes them back when memory is short.
double resident(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) {
      return std::atof(line.c_str() + name.size() + 1) / 1024;
    }
  }
  return 0;
}

// Runs `work` in a child, and prints its time, its rate and its peak of memory.
double measured(const char* name, double megabytes, const std::function<void()>& work) {
  std::fflush(stdout);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  if (status != 0) {
    std::fprintf(stderr, "%s failed\n", name);
    std::exit(70);
  }
  const double rate = megabytes / taken.count();
  std::printf("%-28s %8.2f s %8.2f MB/s   peak %7.1f MiB\n", name, taken.count(), rate,
              static_cast<double>(usage.ru_maxrss) * 1024 / kMebibyte);
  return rate;
}

// The tokenizer alone: reading and parsing are not measured.
void encode_alone(const fs::path& file, const llm::text::PromptEncoder& encoder, double megabytes) {
  std::ifstream in(file);
  double bytes = 0;
  std::string lines;
  for (std::string line; bytes < megabytes * kMegabyte && std::getline(in, line);) {
    lines += line + "\n";
    bytes += static_cast<double>(line.size());
  }
  const auto records = llm::text::parse_jsonl(lines, file.string(), {}, {});
  const auto begin = std::chrono::steady_clock::now();
  std::size_t tokens = 0;
  for (const llm::text::Question& record : records.questions) {
    tokens += llm::text::encode_record(encoder, record.question, record.answers[0].text).ids.size();
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  std::printf("one thread alone             %8.2f s %8.2f MB/s   %zu tokens\n", taken.count(),
              bytes / kMegabyte / taken.count(), tokens);
}

int run(const PrepareFlags& flags) {
  std::string name = (fs::temp_directory_path() / "sherd-prepare-XXXXXX").string();
  const fs::path folder = ::mkdtemp(name.data());
  const fs::path file = folder / "records.jsonl";
  const std::int64_t records = write_records(file, flags);
  const double megabytes = static_cast<double>(fs::file_size(file)) / kMegabyte;
  std::printf("%s, %ld cores; %.1f MB, %ld records\n", processor().c_str(),
              ::sysconf(_SC_NPROCESSORS_ONLN), megabytes, records);
  const auto encoder = [&] {
    return llm::text::PromptEncoder(llm::text::Tokenizer::from_folder(flags.model), {2048, 32});
  };
  const llm::inputs::PrepareOptions options = {.folder = folder / "stores",
                                               .memory_bytes = flags.memory_mib << 20};
  measured("(with its start)", 8, [&] { encode_alone(file, encoder(), 8); });
  measured("prepare", megabytes, [&] {
    const auto made = llm::inputs::prepare(open_source(file, {}, {}), encoder(), options);
    std::printf("%s\n", made.report.sentence().c_str());
  });
  measured("start of a prepared run", megabytes, [&] {
    const auto found =
        llm::inputs::prepare(open_source(file, {}, folder / "stores/sources"), encoder(), options);
    const auto samples = static_cast<std::int64_t>(found.store->size());
    llm::inputs::Sampler sampler(samples, 32, 0);
    const auto batch = llm::inputs::collate(llm::inputs::Samples(found.store), sampler.batch(0));
    std::printf(
        "first batch: %ld tokens; of this process alone %.1f MiB, mapped pages of files %.1f MiB\n",
        batch.tokens(), resident("RssAnon"), resident("RssFile"));
  });
  measured("(the tokenizer's start)", megabytes, [&] { static_cast<void>(encoder()); });
  fs::remove_all(folder);
  return 0;
}

PrepareFlags flags_of_prepare(int argc, char** argv) {
  PrepareFlags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--megabytes" && i + 1 < argc) {
      flags.megabytes = std::atof(argv[++i]);
    } else if (word == "--memory" && i + 1 < argc) {
      flags.memory_mib = std::atoll(argv[++i]);
    } else if (word == "--samples") {
      flags.short_records = true;
    } else if (flags.model.empty() && !word.starts_with("-")) {
      flags.model = word;
    } else {
      flags.model.clear();
      break;
    }
  }
  if (flags.model.empty()) {
    std::fprintf(stderr, "usage: %s MODEL_FOLDER [--megabytes N] [--memory MIB] [--samples]\n",
                 argv[0]);
    std::exit(64);
  }
  return flags;
}

}  // namespace
}  // namespace sherd::benchmarks

int main(int argc, char** argv) {
  return sherd::benchmarks::run(sherd::benchmarks::flags_of_prepare(argc, argv));
}
