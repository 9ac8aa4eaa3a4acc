#include "ops/plain_operators.h"

namespace sherd::ops {
namespace {

thread_local int guards = 0;

}  // namespace

PlainOperators::PlainOperators() {
  ++guards;
}
PlainOperators::~PlainOperators() {
  --guards;
}
bool PlainOperators::active() {
  return guards > 0;
}

}  // namespace sherd::ops
