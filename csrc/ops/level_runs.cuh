// Runs of narrow levels, which one launch takes, and wide ones, each of which is a launch of its own.
#pragma once

#include <cstdint>

namespace learnsolve {

// run(from, to) for the levels from <= l < to of a run, wide(l) for a level that is not narrow(l); the last
// level first if `reversed`.
template <class Narrow, class Run, class Wide>
void for_level_runs(int64_t count, bool reversed, const Narrow& narrow, const Run& run, const Wide& wide) {
  const auto level = [&](int64_t n) { return reversed ? count - 1 - n : n; };
  for (int64_t n = 0; n < count; ++n) {
    int64_t end = n;
    while (end < count && narrow(level(end))) ++end;
    if (end == n) {
      wide(level(n));
    } else {
      reversed ? run(count - end, count - n) : run(n, end);
      n = end - 1;
    }
  }
}

}  // namespace learnsolve
