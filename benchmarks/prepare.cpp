// How fast data is prepared, beside the tokenizer's own rate on one thread, and how much memory
// that and the start of a prepared run take.
//
//   build/release/bin/prepare MODEL_FOLDER [--data FILE | --megabytes N [--samples]] [--memory MIB]
//
// Prepares a file of records or conversations. Without one, writes N MB (default 120) of records of
// a prompt and a completion into a temporary folder, of words that a fixed seed draws. With
// --samples, records are short: 120 MB are about a million. Then, each in a process of its own:
// reads, renders and encodes the first 8 MB, timed apart, on one thread and on one per core;
// prepares all; opens the store and lays out
// 32 samples; opens it and packs all samples into rows of 2048 tokens. Prints seconds, MB/s of the
// file and the peak of the resident memory of each.

#include "llm/inputs/prepare.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "benchmarks/program.h"
#include "llm/inputs/batch.h"
#include "llm/inputs/record_source.h"
#include "llm/inputs/rows.h"
#include "llm/inputs/sampler.h"
#include "llm/text/chat_encoder.h"
#include "llm/text/chosen_template.h"
#include "llm/text/record_prompt.h"

namespace sherd::benchmarks {
namespace {

namespace fs = std::filesystem;
using llm::inputs::open_source;

constexpr double kMebibyte = 1 << 20;
constexpr double kMegabyte = 1e6;

struct PrepareFlags {
  std::string model;
  std::string data;
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

void write_records(const fs::path& path, const PrepareFlags& flags) {
  std::ofstream out(path);
  Words words;
  for (double bytes = 0; bytes < flags.megabytes * kMegabyte;) {
    const std::string line = R"({"prompt": ")" + text_of(words, flags.short_records ? 6 : 60) +
                             R"(?", "completion": ")" +
                             text_of(words, flags.short_records ? 6 : 120) + ".\"}\n";
    out << line;
    bytes += static_cast<double>(line.size());
  }
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

llm::text::PromptEncoder encoder_of(const std::string& model) {
  const auto tokenizer = llm::text::Tokenizer::from_folder(model);
  llm::text::PromptOptions options;
  if (auto chat = llm::text::chat_template_of("model", model)) {
    options.chat = std::make_shared<llm::text::ChatEncoder>(tokenizer, std::move(*chat),
                                                            llm::text::ChatOptions{});
  }
  return {tokenizer, {2048, 32}, options};
}

// One thread, over the first batches of a source: reading, rendering and encoding apart.
class Timed {
 public:
  Timed(const llm::inputs::Source& source, const llm::text::PromptEncoder& encoder)
      : reader_(llm::inputs::records_of(source, {})), encoder_(encoder) {}

  void run(double megabytes) {
    while (bytes_ < megabytes * kMegabyte) {
      std::optional<llm::inputs::ParsedBatch> batch;
      read_ += seconds_of([&] {
        if (auto next = reader_->next()) {
          batch = next->parse();
        }
      });
      if (!batch) {
        break;
      }
      for (std::size_t i = batch->begin; i < batch->end; ++i) {
        encode(batch->questions->questions[i]);
      }
    }
  }

  // Bytes in a second.
  [[nodiscard]] double reading() const { return bytes_ / read_; }
  [[nodiscard]] double templates() const { return bytes_ / rendered_; }
  [[nodiscard]] double tokenizer() const { return bytes_ / encoded_; }

 private:
  static double seconds_of(const std::function<void()>& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void encode(const llm::text::Question& record) {
    bytes_ += static_cast<double>(record.end_byte - record.begin_byte);
    if (!record.conversation) {
      encoded_ += seconds_of([&] {
        static_cast<void>(
            llm::text::encode_record(encoder_, record.question, record.answers[0].text));
      });
      return;
    }
    std::vector<llm::text::ChatSample> samples;
    rendered_ += seconds_of([&] { samples = encoder_.chat().samples(*record.conversation); });
    for (const llm::text::ChatSample& sample : samples) {
      encoded_ +=
          seconds_of([&] { static_cast<void>(encoder_.tokenizer().encode_whole(sample.text)); });
    }
  }

  std::unique_ptr<llm::inputs::RecordSource> reader_;
  const llm::text::PromptEncoder& encoder_;
  double bytes_ = 0;
  double read_ = 0;
  double rendered_ = 0;
  double encoded_ = 0;
};

// Threads that do the same at once, without anything beside them.
void time_threads(const llm::inputs::Source& source, const llm::text::PromptEncoder& encoder,
                  long threads) {
  constexpr double kMegabytes = 8;
  std::vector<std::unique_ptr<Timed>> timed;
  std::vector<std::future<void>> running;
  for (long i = 0; i < threads; ++i) {
    timed.push_back(std::make_unique<Timed>(source, encoder));
    running.push_back(
        std::async(std::launch::async, [&one = *timed.back()] { one.run(kMegabytes); }));
  }
  for (std::future<void>& one : running) {
    one.get();
  }
  const auto print = [&](const char* part, double (Timed::*rate)() const) {
    double sum = 0;
    for (const auto& one : timed) {
      sum += (*one.*rate)();
    }
    std::printf("%-9s on %ld thread%s %20.2f MB/s\n", part, threads, threads == 1 ? " " : "s",
                sum / kMegabyte);
  };
  print("reading", &Timed::reading);
  print("templates", &Timed::templates);
  print("tokenizer", &Timed::tokenizer);
}

int run(const PrepareFlags& flags) {
  std::string name = (fs::temp_directory_path() / "sherd-prepare-XXXXXX").string();
  const fs::path folder = ::mkdtemp(name.data());
  const fs::path file = flags.data.empty() ? folder / "records.jsonl" : fs::path(flags.data);
  if (flags.data.empty()) {
    write_records(file, flags);
  }
  const double megabytes = static_cast<double>(fs::file_size(file)) / kMegabyte;
  std::printf("%s, %ld cores; %.1f MB\n", processor().c_str(), ::sysconf(_SC_NPROCESSORS_ONLN),
              megabytes);
  const llm::inputs::PrepareOptions options = {.folder = folder / "stores",
                                               .memory_bytes = flags.memory_mib << 20};
  measured("(parts, each by itself)", 8, [&] {
    const auto encoder = encoder_of(flags.model);
    const auto source = open_source(file, {}, {});
    time_threads(source, encoder, 1);
    time_threads(source, encoder, ::sysconf(_SC_NPROCESSORS_ONLN));
  });
  measured("prepare", megabytes, [&] {
    const auto made =
        llm::inputs::prepare(open_source(file, {}, {}), encoder_of(flags.model), options);
    std::printf("%s\n", made.report.sentence().c_str());
  });
  measured("start of a prepared run", megabytes, [&] {
    const auto found = llm::inputs::prepare(open_source(file, {}, folder / "stores/sources"),
                                            encoder_of(flags.model), options);
    const auto samples = static_cast<std::int64_t>(found.store->size());
    llm::inputs::Sampler sampler(samples, 32, 0);
    const auto batch = llm::inputs::collate(llm::inputs::Samples(found.store), sampler.batch(0));
    std::printf(
        "first batch: %ld tokens; of this process alone %.1f MiB, mapped pages of files %.1f MiB\n",
        batch.tokens(), resident("RssAnon"), resident("RssFile"));
  });
  measured("packing at the start", megabytes, [&] {
    const auto found = llm::inputs::prepare(open_source(file, {}, folder / "stores/sources"),
                                            encoder_of(flags.model), options);
    const auto begin = std::chrono::steady_clock::now();
    const auto rows = llm::inputs::Rows::first_fit(llm::inputs::Samples(found.store), 2048, 0);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    std::printf("%zu samples in %ld rows in %.3f s; of this process alone %.1f MiB\n",
                found.store->size(), rows.size(), taken.count(), resident("RssAnon"));
  });
  measured("(the tokenizer's start)", megabytes,
           [&] { static_cast<void>(encoder_of(flags.model)); });
  fs::remove_all(folder);
  return 0;
}

PrepareFlags flags_of_prepare(int argc, char** argv) {
  PrepareFlags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--megabytes" && i + 1 < argc) {
      flags.megabytes = std::atof(argv[++i]);
    } else if (word == "--data" && i + 1 < argc) {
      flags.data = argv[++i];
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
    std::fprintf(
        stderr, "usage: %s MODEL_FOLDER [--data FILE | --megabytes N [--samples]] [--memory MIB]\n",
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
