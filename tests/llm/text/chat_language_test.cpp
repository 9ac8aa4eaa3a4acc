// The language of templates where it is Python's, and each message of a template that is refused.

#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/text/chat_template.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::text {
namespace {

std::string rendered_text(const std::string& chat_template) {
  const sherd::test::TempFolder folder;
  const nlohmann::ordered_json messages = {
      {{"role", "user"}, {"content", "Hi"}, {"parts", {1e16, 1e-7, 0.5}}, {"none", nullptr}}};
  const nlohmann::ordered_json arguments = {{"big", 18446744073709551615U}, {"nothing", nullptr}};
  return ChatTemplate::from_file(folder.write("t.jinja", chat_template))
      .render(messages, nullptr, arguments, "2026-03-09T07:05:03")
      .text;
}

// What Jinja2 3.1.6 gives in the sandbox of transformers 5.24.0.
TEST(ChatLanguage, IsPythons) {
  const std::pair<std::string, std::string> cases[] = {
      {"{{ 1 + 2 * 3 - 4 % 3 }}", "6"},
      {"{{ 7 % -3 }} {{ -7 % 3 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }}", "-2 2 1.5 0.5"},
      {"{{ 10 - 2 + 3 - 4 }} {{ 2 ** 3 ** 2 }} {{ 7 // 2 * 2 }}", "7 64 6"},
      {"{{ true + 1 }} {{ 1 + 0.5 + true }} {{ big + 1 }} {{ big * 2 }}",
       "2 2.5 18446744073709551616 36893488147419103230"},
      {"{{ 'a' ~ 1 ~ 1e16 ~ none ~ nowhere ~ true }}", "a11e+16NoneTrue"},
      {"{{ [1, 'a', none] + [2.0] }} {{ (1,) + (2,) }} {{ [0] * 3 }} {{ 2 * 'ab' }}{{ true * 'c' "
       "}}",
       "[1, 'a', None, 2.0] (1, 2) [0, 0, 0] ababc"},
      {"{{ ('a',) }} {{ {'k': [1e-7, {'x': ()}]} }} {{ [] * 100000000 }}",
       "('a',) {'k': [1e-07, {'x': ()}]} []"},
      {"{{ messages[0].parts }} {{ messages[0].parts | tojson }}",
       "[1e+16, 1e-07, 0.5] [1e+16, 1e-07, 0.5]"},
      {"{{ '%s is %d' % ('x', 3) }} {{ '%.2f' % 1 }} {{ '{}-{}'.format(1, 'b') }}",
       "x is 3 1.00 1-b"},
      {"{{ '<b>' | safe + '<i>' }} {{ '<i>' + '<b>' | safe }} {{ '<b>' | safe ~ '<i>' }}",
       "<b>&lt;i&gt; &lt;i&gt;<b> <b><i>"},
      {"{{ 'a' in 'abc' and 'x' not in ['y'] and not 1 == 2 and [1] == [1] }}", "True"},
      {"{{ 'abc'[1] }}{{ 'abc'[-1:] }}{{ messages[::-1][0].content[0:1] }}{{ [[1, 2]][0][1] }}",
       "bcH2"},
      {"{{ 1 if [1] == [2] else 'no' }}{{ [2] is in([[2]]) }}{{ 3 is ge(2) }}{{ 2 is not none }}{{ "
       "'a1' is lower }}{{ 'aB' is upper }}",
       "noTrueTrueTrueTrueFalse"},
      {"{{ 'x--y'.split('-', 1)[1] }} {{ ','.join(['a', 'b']) }} {{ 'aXb'.swapcase() }}",
       "-y a,b AxB"},
      {"{%- set ns = namespace(a=[]) -%}{%- for m in messages -%}{%- set ns.a = ns.a + [m.role] -%}"
       "{%- endfor -%}{{ ns.a }}",
       "['user']"},
      {"{% for k, v in {'a': 1}.items() if k != 'b' %}{{ k ~ v }}{% endfor %}", "a1"},
      {"{% macro m(x, y='p' + 'q') %}{{ x ~ y }}{% endmacro %}{{ m('-' * 2) }}", "--pq"},
      {"{% set x | upper %}a{{ 'b' + 'c' }}{% endset %}{{ x }}", "ABC"},
      {"{{ messages | map(attribute='role') | list | tojson }}", "[\"user\"]"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(rendered_text(text), expected) << text;
  }
}

TEST(ChatLanguage, RefusesWithAReason) {
  const std::pair<std::string, std::string> cases[] = {
      {"{{ 'a' + 1 }}", "unsupported operands of +: string and number"},
      {"{{ [1] + (2,) }}", "unsupported operands of +: sequence and sequence"},
      {"{{ [1] * 'a' }}", "unsupported operands of *: sequence and string"},
      {"{{ [1] % 2 }}", "unsupported operands of %: sequence and number"},
      {"{{ 1 % 0 }}", "%: the divisor is 0"},
      {"{{ 1.5 % 0 }}", "%: the divisor is 0"},
      {"{{ 10 ** 38 + 10 ** 38 }}", "+: the integer has more than 128 bits"},
      {"{{ 10 ** 30 * 10 ** 30 }}", "*: the integer has more than 128 bits"},
      {"{% for x in nothing %}{% endfor %}", "None is not iterable"},
      {"{{ messages | map(attribute='role') | tojson }}",
       "tojson: a generator is no JSON: use the filter list before it"},
      {"{{ nowhere | tojson }}", "tojson: a value of type undefined is no JSON"},
      {"{{ {(1,): 2} | tojson }}", "tojson: a key of type sequence"},
      {"{{ 1 | tojson(separators=['a']) }}", "tojson: separators should be two texts"},
      {"{{ ','.join([1]) }}", "join: the items should be texts"},
      {"{{ 'a'.strip(1) }}", "strip: should be a text"},
      {"{{ 'a'.split(1) }}", "split: the separator should be a text"},
      {"{{ 'a'.split('') }}", "split: the separator is empty"},
      {"{{ 'a'.partition('') }}", "partition: the separator is empty"},
      {"{{ 'a'.index('b') }}", "index: the text is not there"},
      {"{{ 'a'.ljust(3, 'xy') }}", "the fill should be one character"},
      {"{{ [[1], [2]] | sum }}", "a sum of lists needs start=[]"},
      {"{{ 'x' is startingwith('x') }}", "test startingwith is unknown"},
      {"{{ strftime_now('%Q') }}", "strftime_now: not a format of dates"},
  };
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text);
    sherd::test::expect_error([&, &one = text] { static_cast<void>(rendered_text(one)); },
                              sherd::ExitCode::BadData, {"line 1: ", part});
  }
}

}  // namespace
}  // namespace llm::text
