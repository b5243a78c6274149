// The distribution of loops over threads: torch's, unless other processes want the cores (ops/contention.h).
#pragma once

#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <exception>
#include <mutex>

#include "ops/contention.h"

namespace learnsolve {

// Fewer multiply-adds than this are not worth a second thread: waking one costs about 5 us.
constexpr int64_t kGrain = 24576;

inline int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
// What this thread has had of a processor.
inline int64_t processor_time() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
}

inline thread_local Contention contention;

// A thread that works on a member of a batch, while others work on others, distributes nothing further.
inline thread_local bool one_of_members = false;
inline int64_t threads_here() {
  if (one_of_members) return 1;
  const int64_t threads = torch::stable::get_num_threads();
  return threads == 1 || contention.alone(now()) ? 1 : threads;
}

// What is left to do of a loop, for its caller to wait for. OpenMP would spin for milliseconds, on the core
// perhaps that the other thread waits for.
class Left {
 public:
  explicit Left(int64_t items) : left(items) {}
  void wait() const {
    for (const int64_t begin = now(); left.load() > 0 && now() - begin < kSpin;) {
    }
    for (int64_t some; (some = left.load()) > 0;) left.wait(some);
  }
  void done(int64_t items) {
    if ((left -= items) == 0) left.notify_one();
  }

 private:
  static constexpr int64_t kSpin = 50'000;  // ns; threads whose parts are even wait for less
  std::atomic<int64_t> left;
};

// f(i0, i1) over ranges of begin <= i < end, of at least `grain` where there are several.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  if (begin >= end) return;
  if (end - begin <= grain || threads_here() == 1) return f(begin, end);
  LoopTimes times{now(), 0, 0, 0, 0};
  const bool watched = contention.watches(times.begin);
  std::atomic<int64_t> work{0};
  Left left(end - begin);
  torch::stable::parallel_for(begin, end, grain, [&](int64_t i0, int64_t i1) {
    struct Part {  // done even if f throws
      Left& left;
      int64_t items;
      ~Part() { left.done(items); }
    };
    int64_t used = watched ? -processor_time() : 0;
    {
      const Part part{left, i1 - i0};
      f(i0, i1);
      if (watched) work += used += processor_time();
    }
    if (i0 != begin) return;  // the caller has the first range
    times.own_work = used, times.own_end = now();
    left.wait();
  });
  times.end = now(), times.work = work;
  contention.judge(times, watched);
}

// f(b) for the members of a batch, `passes` passes of `work` multiply-adds each: several members at a time,
// unless they are fewer than the threads and a pass alone has work for several. What f throws is thrown again
// when all have ended.
template <class F>
void parallel_members(int64_t batch, int64_t work, int64_t passes, const F& f) {
  const int64_t all = threads_here(), threads = std::min(batch, all);
  if (threads < 2 || batch * work * passes < 2 * kGrain || (batch < all && work >= 2 * kGrain)) {
    for (int64_t b = 0; b < batch; ++b) f(b);
    return;
  }
  std::atomic<int64_t> next{0};  // they may end after different numbers of iterations
  std::exception_ptr thrown;
  std::mutex throwing;
  parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    one_of_members = true;
    try {
      for (int64_t b; (b = next++) < batch;) f(b);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(throwing);
      if (!thrown) thrown = std::current_exception();
    }
    one_of_members = false;
  });
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace learnsolve
