// Loops that lose time to other processes have their caller work alone for a while; uneven ones do not.
#include "ops/contention.h"

#include "tests/cases.h"

namespace learnsolve::test {
namespace {

constexpr int64_t us = 1'000, ms = 1'000'000;

// At t: the caller's part takes 50 us, that of the other thread as long, and it ends after `wall`.
void loop(Contention& c, int64_t t, int64_t wall) {
  const int64_t own = c.watches() ? 50 * us : 0;  // what is not watched is not measured
  c.judge({t + wall, wall, 50 * us, own, 2 * own});
}

void alone_after_a_loss() {
  Contention c;
  require(!c.alone(0) && !c.watches(), "contention: nothing is known at first");
  loop(c, 0, 4 * ms);  // the parts may be uneven
  require(!c.alone(4 * ms) && c.watches(), "contention: a wait has loops watched");
  loop(c, 5 * ms, ms);
  require(c.alone(6 * ms) && c.alone(20 * ms) && !c.alone(21 * ms),
          "contention: 16 times the loss of 0.9 ms");
  loop(c, 100 * ms, ms);
  require(c.alone(129 * ms) && !c.alone(130 * ms), "contention: twice as long if the next try loses as well");
  for (int64_t i = 0; i < 64; ++i) loop(c, 200 * ms, 60 * us);
  require(!c.watches(), "contention: tries that lose nothing end it");
  for (int64_t i = 0; i < 2; ++i) loop(c, 300 * ms, ms);
  require(c.alone(315 * ms) && !c.alone(316 * ms), "contention: what was is forgotten");
  for (int64_t i = 0; i < 20; ++i) loop(c, 400 * ms, 900 * ms);
  require(!c.alone(5'400 * ms), "contention: not for longer than 4 s");
}

void together() {
  Contention c;
  for (int64_t t = 0; t < 100 * ms; t += ms) loop(c, t, 60 * us);
  require(!c.watches(), "contention: even parts are not watched");
  loop(c, 0, ms);
  for (int64_t t = 0; t < 100 * ms; t += 20 * ms) {
    c.judge({t + 10 * ms, 10 * ms, ms, ms, 11 * ms});        // uneven parts
    c.judge({t + 19 * ms, 9 * ms, 8 * ms, 2 * ms, 4 * ms});  // the caller was interrupted
    require(!c.alone(t + 20 * ms), "contention: uneven parts and interruptions of the caller are no loss");
  }
}

}  // namespace

LS_TEST(contention) {
  alone_after_a_loss();
  together();
}

}  // namespace learnsolve::test
