// Templates come from strangers: each ends in a text or an error, within two seconds and 256 MiB,
// and never with the process.

#include <exception>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "llm/text/chat_template.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using sherd::test::TempFolder;
using ::testing::HasSubstr;

constexpr double kMaxSeconds = 2;
constexpr rlim_t kMaxBytes = 256 << 20;
// Rendering maps a stack of that size, and touches little of it.
constexpr rlim_t kStackBytes = 256 << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;  // the shadow memory needs terabytes of addresses, and time
#else
constexpr bool kIsSanitized = false;
#endif

rlim_t mapped_bytes() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  return pages * static_cast<rlim_t>(::getpagesize());
}

struct Ending {
  int status = 0;
  std::string answer;
  double seconds = 0;
  rlim_t peak_bytes = 0;
};

// The text of a render, or its error.
std::string answer_of(const std::filesystem::path& file, const nlohmann::ordered_json& messages) {
  const nlohmann::ordered_json tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  try {
    return ChatTemplate::from_file(file)
        .render(messages, nullptr, tokens, "2026-03-09T07:05:03")
        .text;
  } catch (const TemplateError& error) {
    return error.message();
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Renders in a process that may map no more than the limits allow.
Ending render_apart(const std::filesystem::path& file, const nlohmann::ordered_json& messages) {
  const TempFolder folder;
  const auto out = folder.path() / "answer";
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{mapped_bytes() + kStackBytes + kMaxBytes, RLIM_INFINITY};
    if (!kIsSanitized) {
      ::setrlimit(RLIMIT_AS, &limit);
    }
    std::ofstream(out, std::ios::binary) << answer_of(file, messages);
    ::_exit(0);
  }
  Ending ending;
  rusage used{};
  ::wait4(child, &ending.status, 0, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  ending.seconds = seconds(used.ru_utime) + seconds(used.ru_stime);
  ending.peak_bytes = static_cast<rlim_t>(used.ru_maxrss) << 10;
  ending.answer = sherd::test::bytes_of(out);
  return ending;
}

void expect_within_limits(const Ending& ending) {
  EXPECT_EQ(ending.status, 0) << "the process ended";
  if (!kIsSanitized) {
    EXPECT_LE(ending.seconds, kMaxSeconds);
    EXPECT_LE(ending.peak_bytes, kMaxBytes);
  }
}

const nlohmann::ordered_json& two_messages() {
  static const nlohmann::ordered_json messages = {{{"role", "user"}, {"content", "Hi"}},
                                                  {{"role", "assistant"}, {"content", "Hello"}}};
  return messages;
}

// Runs templates; each has to give an answer with that part in it.
struct Hostile {
  std::string text;
  std::string part;
};

void expect_answers(const std::vector<Hostile>& all) {
  const TempFolder folder;
  for (const Hostile& one : all) {
    SCOPED_TRACE(one.text.substr(0, 200));
    const Ending ending = render_apart(folder.write("t.jinja", one.text), two_messages());
    expect_within_limits(ending);
    EXPECT_THAT(ending.answer, HasSubstr(one.part));
  }
}

std::string times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

constexpr const char* kNested = "values are nested more than 200 deep";
constexpr const char* kUnprintable = "a value is too deep or too long to be printed";
constexpr const char* kTooMuch = "a value holds more than 500000 values or 16777216 bytes";
constexpr const char* kTooManySteps = "it takes more steps than a conversation can need";

// A namespace can hold itself.
TEST(ChatLimits, ValuesThatHoldThemselvesEndInAnError) {
  const std::string one = "{% set a = namespace() %}{% set a.x = a %}";
  const std::string two = one + "{% set b = namespace() %}{% set b.x = b %}";
  expect_answers({
      {one + "{{ a }}", kUnprintable},
      {one + "{{ 'a' ~ a }}", kUnprintable},
      {one + "{{ a | string }}", kUnprintable},
      {one + "{{ a | safe }}", kUnprintable},
      {one + "{{ raise_exception(a) }}", kUnprintable},
      {one + "{{ a | tojson }}", "tojson: a value that is too deep or too long"},
      {one + "{{ a | upper }}", kNested},
      {one + "{{ a | pprint }}", kNested},
      {one + "{{ [a, a] | join }}", kNested},
      {one + "{{ '-'.join([a]) }}", kNested},
      {one + "{{ '%s' % a }}", kNested},
      {one + "{{ '{}'.format(a) }}", kNested},
      {one + "{{ {a: 1} | length }}", kNested},
      {one + "{{ {'k': 1}[a] }}", kNested},
      {one + "{{ {'k': 1}.get(a) }}", kNested},
      {one + "{{ a in 'abc' }}", kNested},
      {two + "{{ a == b }}", kNested},
      {two + "{{ a not in [b] }}", kNested},
      {two + "{{ a < b and true }}", kNested},
      {two + "{{ a is eq(b) }}", kNested},
      {two + "{{ a is in([b]) }}", kNested},
      {two + "{{ [a] | select('eq', b) | list }}", kNested},
      {two + "{{ [a, b] | sort }}", kNested},
      {two + "{{ [a, b] | unique | list }}", kNested},
      {two + "{{ [a].count(b) }}", kNested},
      {two + "{% for x in [a, b] %}{{ loop.changed(x) }}{% endfor %}", kNested},
  });
}

// Ten times ten times ten ...: little memory holds what nobody could print or compare.
TEST(ChatLimits, SharedValuesAreNotPrintedOrComparedWithoutEnd) {
  const std::string x =
      "{% set x = ['a'] %}" + times(30, "{% set x = [x, x, x, x, x, x, x, x, x, x] %}");
  const std::string y =
      "{% set y = ['a'] %}" + times(30, "{% set y = [y, y, y, y, y, y, y, y, y, y] %}");
  expect_answers({
      {x + "{{ x }}", kUnprintable},
      {x + "{{ ('' ~ x) | length }}", kUnprintable},
      {x + "{{ x | trim }}", kUnprintable},
      {x + "{{ x | tojson }}", "tojson: a value that is too deep or too long"},
      {x + "{{ x | join }}", kTooMuch},
      {x + "{{ '%s' % (x,) }}", kTooMuch},
      {x + y + "{{ x == y }}", kTooMuch},
      {x + y + "{{ [x, y] | sort }}", kTooMuch},
  });
  const std::string deep =
      "{% set ns = namespace(x=[]) %}{% for i in range(20000) %}{% for j in range(9) %}"
      "{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
  expect_answers({{deep + "x", "x"}, {deep + "{{ ns.x }}", kUnprintable}});
}

TEST(ChatLimits, WorkIsPaidForBeforeItIsDone) {
  const std::string many = "{% for i in range(99999) %}";
  const std::string text = "{% set s = 'a' * 1000000 %}";
  expect_answers({
      {many + many + "{{ 'x' * 2000 }}{% endfor %}{% endfor %}",
       "it writes more than 1048576 bytes"},
      {many + many + "{% set x = 1 %}{% endfor %}{% endfor %}", kTooManySteps},
      {"{% set x = [range(50000) | list + [1]] %}{% set y = [range(50000) | list + [2]] %}" + many +
           "{% if x == y %}{% endif %}{% endfor %}",
       kTooManySteps},
      {text + many + "{% set y = s[-1] %}{% endfor %}", kTooManySteps},
      {text + many + "{% set y = s[9:] %}{% endfor %}", kTooManySteps},
      {text + many + "{% set y = s.find('b') %}{% endfor %}", kTooManySteps},
      {text + many + "{% if s is lower %}{% endif %}{% endfor %}", kTooManySteps},
      {text + many + "{% set y = 'a'.strip(s) %}{% endfor %}", kTooManySteps},
      {"{% set f = '%s' * 1000 %}{% set a = (1,) * 1000 %}" + many +
           "{% set y = f % a %}{% endfor %}",
       kTooManySteps},
      {text + "{{ s | batch(1) | list | length }}", kTooManySteps},
      {text + "{{ s.strip('b' * 1000000 ~ 'a') | length }}", "0"},
      {"{% set x = range(99999) | list %}" + many + "{% set y = x.count(-1) %}{% endfor %}",
       kTooManySteps},
      {"{% set ns = namespace(x=[1]) %}" + many + "{% set ns.x = ns.x[0:] %}{% endfor %}x", "x"},
      {"{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}"
       "{% endfor %}{{ ns.l | length }}",
       "it makes a list of more than 500000 items"},
      {"{{ [1] | slice(1000000000) | list | length }}", kTooManySteps},
      {"{{ ('a' * 99999) | replace('a', 'b' * 99999) | length }}", kTooManySteps},
      {"{{ 1" + times(20000, " ~ 1") + " }}", "line 1: a tag holds more than 4096 words and signs"},
      {"\n{{ " + times(3000, "(") + "1" + times(3000, ")") + " }}",
       "line 2: a tag holds more than"},
      {times(3000, "{% if true %}") + times(3000, "{% endif %}"), "recursion"},
      {times(50000, "{{1}}"), "1111"},
      {std::string(300 << 10, 'x'), "it has 307200 bytes, more than 262144"},
  });
}

TEST(ChatLimits, LongTextsAndFormatsAreRefusedBeforeTheyAreMade) {
  expect_answers({
      {"{{ 'a' * 10000000000 }}", "*: it makes a text of more than 1048576 bytes"},
      {"{{ [0] * 10000000000 }}", "it makes a list of more than 500000 items"},
      {"{% set a, b = [0] * 400000 %}", "sequence of wrong length"},
      {"{% set x = 'a' * 600000 %}{{ x + x }}", "+: it makes a text of more than 1048576 bytes"},
      {"{% set x = 'a' * 600000 %}{{ (x ~ x) | upper }}",
       "it works on a text of more than 1048576 bytes"},
      {"{{ ('x' * 999999).join(['a'] * 9) }}", "join: it makes a text of more than 1048576 bytes"},
      {"{{ 'a'.ljust(10000000000) }}", "it makes a text of more than 1048576 bytes"},
      {"{{ '%010000000000d' % 1 }}", "a format has a width of more than 10000"},
      {"{{ '%*d' % (100000000, 1) }}", "a format has a width of more than 10000"},
      {"{{ '{:.100000000f}'.format(1.0) }}", "a format has a width of more than 10000"},
      {"{{ ('{0}' * 99999).format('a' * 99999) }}",
       "a format makes a text of more than 16777216 bytes"},
      {"{{ messages | tojson(indent=65) }}", "tojson: an indent of more than 64"},
      {"{{ messages | tojson(indent='x' * 65) }}", "tojson: an indent of more than 64"},
      {"{{ messages | tojson(separators=['x' * 65, ':']) }}",
       "tojson: a separator of more than 64 bytes"},
      {"{% set x = '\\x01' * 600000 %}{{ (x ~ x) | tojson }}",
       "tojson: a value that is too deep or too long"},
      {"{{ strftime_now('%Y' * 4000) }}", "strftime_now: not a format of dates"},
  });
}

TEST(ChatLimits, HoldForTheHostileTemplatesOfTheGoldens) {
  SHERD_NEEDS_EXTRA_DATA("chat/hostile/cases.jsonl");
  const auto folder = *sherd::test::extra_data("chat");
  const TempFolder made;
  std::ifstream file(folder / "hostile/cases.jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const auto question = nlohmann::ordered_json::parse(line);
    const std::string name = question["name"];
    SCOPED_TRACE(name);
    auto path = folder / "hostile" / (name + ".jinja");
    if (question.contains("template_pieces")) {
      std::string text;
      for (const auto& piece : question["template_pieces"]) {
        text += times(piece[1], piece[0]);
      }
      path = made.write(name + ".jinja", text);
    } else if (question.contains("template_file")) {
      path = folder / question["template_file"].get<std::string>();
    }
    nlohmann::ordered_json messages = question["messages"];
    if (messages.is_object()) {
      auto all = messages["first"];
      for (int i = 0; i < messages["times"]; ++i) {
        all.insert(all.end(), messages["repeat"].begin(), messages["repeat"].end());
      }
      messages = std::move(all);
    }
    const Ending ending = render_apart(path, messages);
    expect_within_limits(ending);
    if (question.value("expected", "") == "text" && question.contains("text")) {
      EXPECT_EQ(ending.answer, question["text"]);
    }
  }
  EXPECT_EQ(cases, 70);
}

}  // namespace
}  // namespace llm::text
