// Are threads worth it while other processes want the cores?
//
// A loop ends with its slowest thread. Where that one waits for a core, for a time slice of some other
// process, all others wait with it: passes of 50 us then take milliseconds. So a loop that took longer than
// its caller alone would have is paid for: the caller works alone for a multiple of what was lost, then tries
// again; twice as long each time that the next try loses as well. This bounds the loss to a small part of the
// whole.
//
// Loops of uneven parts have threads wait for one another too. Only the processors' time of all parts tells
// them apart, and it takes 0.5 us to read: it is read for some time after a thread waited noticeably.
#pragma once

#include <algorithm>
#include <cstdint>

namespace learnsolve {

// When a loop began, when its caller was through with its own part, when all were; if watched, the
// processors' time of the caller's part and of all. Nanoseconds.
struct LoopTimes {
  int64_t begin, own_end, end, own_work, work;
};

// What a calling thread knows.
class Contention {
 public:
  bool alone(int64_t now) const { return now < alone_until; }
  bool watches(int64_t now) const { return now < watch_until; }

  void judge(const LoopTimes& t, bool watched) {
    if (!watched) {
      if (t.end - t.own_end > kNoticeable) watch(t.end);
      return;
    }
    // Alone, the caller would have been interrupted as often as it was in its own part.
    const double own = static_cast<double>(std::max<int64_t>(t.own_end - t.begin, 1));
    const double pace = std::max(own / static_cast<double>(std::max<int64_t>(t.own_work, 1)), 1.0);
    const int64_t lost = t.end - t.begin - static_cast<int64_t>(pace * static_cast<double>(t.work));
    if (lost <= kNoticeable) return;
    const bool again = t.begin < alone_until + pause;
    pause = std::min(std::max(kPrice * lost, again ? 2 * pause : 0), kLongest);
    alone_until = t.end + pause;
    watch(alone_until);
  }

 private:
  static constexpr int64_t kNoticeable = 300'000, kPrice = 16, kLongest = 1'000'000'000, kWatch = 20'000'000;
  int64_t alone_until = 0, pause = 0, watch_until = 0;

  // For as long again as the pause before, at least.
  void watch(int64_t from) { watch_until = from + std::max(pause, kWatch); }
};

}  // namespace learnsolve
