// `sherd chat` on a terminal.

#include <csignal>
#include <fstream>

#include "tests/e2e/on_terminal.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

class ChatOnTerminal : public testing::Test {
 protected:
  ChatOnTerminal() {
    std::ofstream(model_ / "chat_template.jinja")
        << "{{ bos_token }}{% for m in messages %}{{ m.content }} {% endfor %}";
  }
  Arguments chat(const std::string& most_tokens) const {
    return {"chat", model_.string(), "--max-new-tokens", most_tokens};
  }

  // Interrupts an answer that has begun; it may have ended by then.
  std::string shown_with_interrupt() const {
    OnTerminal program(chat("400"), OnTerminal::Output::All);
    program.wait_for("> ");
    program.type("Once upon a time\n");
    program.wait_for(",");
    program.signal(SIGINT);
    program.type("\x04");
    const Ended ended = program.finish();
    EXPECT_EQ(ended.code, 0) << ended.out;
    return ended.out;
  }

  TempFolder folder_;
  fs::path model_ = copy_of_model(folder_.path() / "model");
};

TEST_F(ChatOnTerminal, AsksAnswersAndEnds) {
  OnTerminal program(chat("3"), OnTerminal::Output::All);
  program.wait_for("/help lists the commands; Ctrl-D ends.");
  program.wait_for("> ");
  program.type("Once upon a time\n");
  program.wait_for("after --max-new-tokens 3.");
  program.type("\x04");  // Ctrl-D
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 0) << ended.out;
}

TEST_F(ChatOnTerminal, StopsAnAnswerOnInterrupt) {
  std::string shown;
  for (int tries = 0; tries < 20 && shown.find("The answer is stopped") == std::string::npos;
       ++tries) {
    shown = shown_with_interrupt();
  }
  EXPECT_THAT(shown, HasSubstr("The answer is stopped; what is written belongs to the"));
}

TEST_F(ChatOnTerminal, GoesOnAfterAnInterruptOfAnEmptyLine) {
  OnTerminal program(chat("3"), OnTerminal::Output::All);
  program.wait_for("> ");
  program.signal(SIGINT);
  program.wait_for("/exit or Ctrl-D ends.");
  program.type("Once upon a time\n");
  program.wait_for("after --max-new-tokens 3.");
  program.type("/exit\n");
  EXPECT_EQ(program.finish().code, 0);
}

TEST_F(ChatOnTerminal, RunsOnOneRank) {
  const Ended ended =
      Program(chat("3"), {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2",
                          "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"})
          .finish();
  EXPECT_EQ(ended.code, 64);
  EXPECT_THAT(ended.err, HasSubstr("sherd chat runs on one rank"));
}

}  // namespace
}  // namespace sherd::test
