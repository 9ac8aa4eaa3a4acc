#include "launch/slurm_job.h"

#include <algorithm>
#include <string_view>

#include "sherd/error.h"

namespace sherd::launch {

namespace {

constexpr int kMostNodes = 100'000;
// sbatch reads an option into a buffer of 8 KiB.
constexpr std::size_t kLongestOption_bytes = 4000;
constexpr std::string_view kLettersAndDigits =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ExitCode::Usage, "no job file: " + why);
}

bool has_control_character(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

void check(const SlurmJob& job) {
  const auto in_range = [](int number) { return number >= 1 && number <= kMostNodes; };
  if (!in_range(job.nodes) || !in_range(job.ranks_per_node) || !in_range(job.cpus_per_rank)) {
    refuse("a job has at least one node, one rank on each, and one core for each");
  }
  for (const std::string& option : job.options) {
    if (!option.starts_with("-") || has_control_character(option)) {
      refuse("'" + option + "' after -- is not an option of sbatch, such as --time=1:00:00");
    }
    if (option.size() > kLongestOption_bytes) {
      refuse("'" + option.substr(0, 40) + "…' after -- is longer than sbatch reads, " +
             std::to_string(kLongestOption_bytes) + " bytes");
    }
  }
  const auto has_line_end = [](const std::string& text) {
    return text.find_first_of("\r\n") != std::string::npos;
  };
  if (std::any_of(job.setup.begin(), job.setup.end(), has_line_end)) {
    refuse("--setup is one line; give it several times for several");
  }
}

bool is_plain(const std::string& text) {
  return text.find_first_not_of(std::string(kLettersAndDigits) + "/._-+=:,@%") == std::string::npos;
}

// As sbatch reads it back: quotes and backslashes mean what they mean between the shell's ", and an
// '#' outside them begins a comment.
std::string option_word(const std::string& option) {
  if (is_plain(option)) {
    return option;
  }
  const std::size_t equals = option.find('=');
  const std::size_t begin =
      equals == std::string::npos || !is_plain(option.substr(0, equals)) ? 0 : equals + 1;
  std::string word = option.substr(0, begin) + '"';
  for (const char c : option.substr(begin)) {
    word += c == '"' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
  }
  return word + '"';
}

bool names(const std::vector<std::string>& options, const std::string& option) {
  return std::any_of(options.begin(), options.end(), [&](const std::string& given) {
    return given == option || given.starts_with(option + "=");
  });
}

// The user's options override these. Ranks are placed on nodes in blocks: HYBRID_SHARD expects
// consecutive ranks on one node.
std::string options_of(const SlurmJob& job) {
  std::vector<std::string> all = {"--nodes=" + std::to_string(job.nodes),
                                  "--ntasks-per-node=" + std::to_string(job.ranks_per_node),
                                  "--cpus-per-task=" + std::to_string(job.cpus_per_rank),
                                  "--distribution=block"};
  if (job.gpus) {
    all.push_back("--gpus-per-node=" + std::to_string(job.ranks_per_node));
  }
  all.push_back("--signal=TERM@" + std::to_string(job.stop_seconds));
  all.insert(all.end(), {"--requeue", "--open-mode=append", "--output=%x-%j.out"});
  std::string lines;
  for (const std::string& option : all) {
    if (!names(job.options, option.substr(0, option.find('=')))) {
      lines += "#SBATCH " + option + "\n";
    }
  }
  for (const std::string& option : job.options) {
    lines += "#SBATCH " + option_word(option) + "\n";
  }
  return lines;
}

// Each task of Slurm's runs it. To srun 75 is a bad exit: it would kill those that still save. One
// that lost a peer ends by itself, and srun ends what is left two minutes after the first.
std::string on_all_tasks(const std::vector<std::string>& command) {
  std::string line = "srun --cpus-per-task=$SLURM_CPUS_PER_TASK --kill-on-bad-exit=0 --wait=600";
  for (const std::string& word : command) {
    line += " " + shell_word(word);
  }
  return line + "\n";
}

// A port that nobody listens on here, on the first node, where rank 0 will be.
constexpr const char* kFreePort = R"(for try in {1..100}; do
    export MASTER_PORT=$((10000 + RANDOM % 20000))
    listens=":$(printf %04X $MASTER_PORT) [0-9A-F:]* 0A "
    grep -q "$listens" /proc/net/tcp /proc/net/tcp6 2>/dev/null || break
done
)";

std::string requeue(const SlurmJob& job) {
  const std::string again = "scontrol requeue $SLURM_JOB_ID\n";
  const std::string begin =
      job.nodes > 1
          ? "# 75: stopped on request. 76: a node or a rank was lost. The same command "
            "resumes.\nif [ $code -eq 75 ] || { [ $code -eq 76 ] && [ "
            "\"${SLURM_RESTART_COUNT:-0}\" -lt " +
                std::to_string(SlurmJob::kMostRestartsAfterALoss) + " ]; }; then\n"
          : "if [ $code -eq 75 ]; then        # stopped on request: the same command resumes\n";
  if (job.checkpoints.empty()) {
    return begin + "    " + again + "    exit $code\nfi\n";
  }
  return begin +
         "    if [ \"$(newest)\" = \"$before\" ] && [ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ]; then\n"
         "        echo \"stopped twice without a checkpoint in between, not queued again: is the "
         "time limit shorter than a step and a save?\" >&2\n"
         "    else\n        " +
         again + "        exit $code\n    fi\nfi\n";
}

}  // namespace

std::string slurm_job_name(std::string text) {
  const std::string allowed = std::string(kLettersAndDigits) + "._=-";
  std::replace_if(
      text.begin(), text.end(), [&](char c) { return allowed.find(c) == std::string::npos; }, '_');
  return text.empty() ? "sherd" : text;
}

std::string shell_word(const std::string& text) {
  if (!text.empty() && is_plain(text)) {
    return text;
  }
  std::string word = "'";
  for (const char c : text) {
    word += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return word + "'";
}

std::string slurm_job_file(const SlurmJob& job) {
  check(job);
  std::string file = "#!/bin/bash\n" + options_of(job) + "\n";
  for (const std::string& line : job.setup) {
    file += line + "\n";
  }
  file +=
      "# Each task is a rank. Rank 0 is on the first node, whose name all ranks find in the job's "
      "list.\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n";
  file += kFreePort;
  if (!job.checkpoints.empty()) {
    file += "newest() { ls " + shell_word(job.checkpoints) +
            "/step-*[0-9]/manifest.json 2>/dev/null | tail -n 1; }\nbefore=$(newest)\n";
  }
  if (job.test.empty()) {
    file += on_all_tasks(job.command) + "code=$?\n";
  } else {
    file += on_all_tasks(job.test) + "code=$?\nif [ $code -eq 0 ]; then\n    " +
            on_all_tasks(job.command) + "    code=$?\nfi\n";
  }
  file += requeue(job);
  if (!job.code_file.empty()) {
    file += "echo $code > " + shell_word(job.code_file) + "\n";
  }
  return file + "exit $code\n";
}

}  // namespace sherd::launch
