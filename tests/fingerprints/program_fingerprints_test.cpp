// SHA-256 of the weights that short runs of the program end with, on each path of the processor:
// families, dtypes, ranks and accumulation. Matrix products differ in their last bits between kinds
// of processor, so the record is kept by kind; of what a kind has no record of the test says
// SKIPPED.
//
//     SHERD_RECORD=1 build/dev/tests/program_fingerprints_test     adds this machine's kind

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

const char* const kProgramRecord =
    SHERD_TEST_SOURCE_DIR "/tests/fingerprints/recorded_by_processor.txt";

/// Of the first processor, by name.
std::map<std::string, std::string> fields_of_processor() {
  std::ifstream file("/proc/cpuinfo");
  std::map<std::string, std::string> fields;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const size_t colon = line.find(':');
    fields.emplace(line.substr(0, line.find_first_of("\t:")),
                   colon + 2 < line.size() ? line.substr(colon + 2) : "");
  }
  return fields;
}

/// "AuthenticAMD-25-17": what decides which kernels the libraries choose.
std::string kind_of_processor() {
  auto fields = fields_of_processor();
  return fields["vendor_id"] + "-" + fields["cpu family"] + "-" + fields["model"];
}

struct ProgramCase {
  const char* path;  ///< ATEN_CPU_CAPABILITY
  const char* model;
  const char* dtype;
  int ranks;
  const char* micro_batch;
};

std::string name_of(const ProgramCase& c) {
  return kind_of_processor() + " " + c.path + " " + c.model + " " + c.dtype + " " +
         std::to_string(c.ranks) + "-ranks micro-batch-" + c.micro_batch;
}

/// Those of LibTorch that the processor has.
std::vector<const char*> paths() {
  const std::string flags = fields_of_processor()["flags"] + " ";
  std::vector<const char*> found = {"default"};
  if (flags.find(" avx2 ") != std::string::npos) {
    found.push_back("avx2");
  }
  if (flags.find(" avx512bw ") != std::string::npos) {
    found.push_back("avx512");
  }
  return found;
}

std::vector<ProgramCase> program_cases() {
  std::vector<ProgramCase> cases;
  for (const char* path : paths()) {
    for (const char* model : {"stories260k-hf", "tiny-bloom-hf"}) {
      for (const char* dtype : {"float32", "bfloat16"}) {
        cases.push_back({path, model, dtype, 1, "12"});
        cases.push_back({path, model, dtype, 2, "2"});
      }
    }
  }
  return cases;
}

std::string fingerprint_of(const ProgramCase& c) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const std::string model = std::string(SHERD_TEST_SOURCE_DIR) + "/tests/data/" + c.model;
  Arguments verb = {"train",
                    "--model.path",
                    model,
                    "--data.train",
                    kQuestions,
                    "--train.output",
                    output.string(),
                    "--train.max_steps",
                    "5",
                    "--train.global_batch",
                    "12",
                    "--train.micro_batch",
                    c.micro_batch,
                    "--data.max_length",
                    "128",
                    "--precision.param_dtype",
                    c.dtype};
  expect_code(0, c.ranks == 1 ? verb : on_ranks(c.ranks, verb),
              {std::string("ATEN_CPU_CAPABILITY=") + c.path});
  const std::string weights = exported_weights(output);
  unsigned char digest[32];
  EVP_Digest(weights.data(), weights.size(), digest, nullptr, EVP_sha256(), nullptr);
  std::ostringstream text;
  for (const unsigned char byte : digest) {
    text << std::hex << static_cast<int>(byte) / 16 << static_cast<int>(byte) % 16;
  }
  return text.str();
}

std::map<std::string, std::string> read_record() {
  std::ifstream file(kProgramRecord);
  std::map<std::string, std::string> known;
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.rfind(' ');
    known[line.substr(0, at)] = line.substr(at + 1);
  }
  return known;
}

TEST(ProgramFingerprints, AreThoseRecordedForThisKindOfProcessor) {
  std::map<std::string, std::string> known = read_record();
  const bool writing = std::getenv("SHERD_RECORD") != nullptr;
  std::string not_recorded;
  for (const ProgramCase& c : program_cases()) {
    if (!writing && !known.contains(name_of(c))) {
      not_recorded += "\n  " + name_of(c);
      continue;
    }
    const std::string digest = fingerprint_of(c);
    if (writing) {
      known[name_of(c)] = digest;
    }
    EXPECT_EQ(known[name_of(c)], digest) << name_of(c);
  }
  if (writing) {
    std::ofstream file(kProgramRecord);
    for (const auto& [key, digest] : known) {
      file << key << ' ' << digest << '\n';
    }
  }
  if (!not_recorded.empty()) {
    GTEST_SKIP() << "SKIPPED: not recorded for this kind of processor:" << not_recorded;
  }
}

}  // namespace
}  // namespace sherd::test
