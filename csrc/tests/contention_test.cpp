// Loops that lose time to other processes have their caller work alone for a while; uneven ones do not.
#include "ops/contention.h"

#include "tests/cases.h"

namespace learnsolve::test {
namespace {

constexpr int64_t us = 1'000, ms = 1'000'000;

void alone_after_a_loss() {
  Contention c;
  require(!c.alone(0) && !c.watches(0), "contention: nothing is known at first");
  c.judge({0, 50 * us, 4 * ms, 0, 0}, false);  // a wait of 4 ms, which may be uneven parts
  require(!c.alone(4 * ms) && c.watches(5 * ms), "contention: a wait has loops watched");
  c.judge({5 * ms, 5 * ms + 50 * us, 8 * ms, 50 * us, 100 * us}, true);  // 2.9 ms are lost
  require(c.alone(8 * ms + 16 * 29 * ms / 10 - ms), "contention: alone for a multiple of the loss");
  const int64_t again = 8 * ms + 16 * 29 * ms / 10 + ms;
  require(!c.alone(again) && c.watches(again), "contention: then another try");
  c.judge({again, again + 50 * us, again + ms, 50 * us, 100 * us}, true);
  require(c.alone(again + 80 * ms) && !c.alone(again + 100 * ms), "contention: a loss again, twice as long");
  const int64_t later = again + 3'000 * ms;
  require(!c.alone(later) && !c.watches(later), "contention: forgotten");
  for (int64_t t = later; t < later + 60'000 * ms; t += 1'500 * ms)
    c.judge({t, t + 50 * us, t + 900 * ms, 50 * us, 100 * us}, true);
  require(!c.alone(later + 63'000 * ms), "contention: never for longer than a second");
}

void together() {
  Contention c;
  for (int64_t t = 0; t < 100 * ms; t += ms) c.judge({t, t + 50 * us, t + 60 * us, 0, 0}, false);
  require(!c.watches(0) && !c.watches(100 * ms), "contention: even parts are not watched");
  c.judge({0, ms, 10 * ms, 0, 0}, false);
  for (int64_t t = 0; t < 100 * ms; t += 10 * ms) {
    c.judge({t, t + ms, t + 10 * ms, ms, 11 * ms}, true);        // the other part has ten times the work
    c.judge({t, t + 8 * ms, t + 9 * ms, 2 * ms, 4 * ms}, true);  // the caller itself was interrupted
    require(!c.alone(t + 10 * ms), "contention: uneven parts and interruptions of the caller are no loss");
  }
}

}  // namespace

LS_TEST(contention) {
  alone_after_a_loss();
  together();
}

}  // namespace learnsolve::test
