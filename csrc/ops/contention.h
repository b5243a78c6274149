// Are threads worth it while other processes want the cores?
//
// A loop ends with its slowest thread. Where that one waits for a core, for time slices of other processes,
// the caller waits with it: a pass of 50 us then takes milliseconds. A loop that took longer than its caller
// alone would have is paid for: the caller works alone for a multiple of what was lost, then tries again;
// twice as long if the next tries lose as well. This bounds the loss to a small part of the whole.
//
// Loops of uneven parts have threads wait for one another too. Only the processors' time of all parts tells
// them apart, and it takes 0.5 us to read: it is read in some loops after one with a noticeable wait.
#pragma once

#include <algorithm>
#include <cstdint>

namespace learnsolve {

// When a loop ended, how long it took, and the caller's own part of it; if watched, the processors' time of
// that part and of all. Nanoseconds.
struct LoopTimes {
  int64_t end, wall, own, own_work, work;
};

// What a calling thread knows.
class Contention {
 public:
  bool alone(int64_t now) const { return now < alone_until; }
  bool watches() const { return watched > 0; }

  void judge(const LoopTimes& t) {
    if (watched == 0) {
      if (t.wall - t.own > kNoticeable) watched = kWatched;
      return;
    }
    // Alone, the caller would have been interrupted as often as it was in its own part.
    const double own = static_cast<double>(t.own), own_work = static_cast<double>(t.own_work);
    const double pace = std::max(own / std::max(own_work, 1.0), 1.0);
    const int64_t lost = t.wall - static_cast<int64_t>(pace * static_cast<double>(t.work));
    if (lost > kNoticeable) {
      pause = std::min(std::max(kPrice * lost, 2 * pause), kLongest);
      alone_until = t.end + pause;
      watched = kWatched;
    } else if (--watched == 0) {
      pause = 0;
    }
  }

 private:
  static constexpr int64_t kNoticeable = 300'000, kPrice = 16, kLongest = 4'000'000'000, kWatched = 64;
  int64_t alone_until = 0, pause = 0, watched = 0;  // loops that are still watched
};

}  // namespace learnsolve
