// The distribution of loops over threads: torch's, unless other processes want the cores (ops/contention.h).
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <exception>
#include <mutex>
#include <thread>

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

// What is left to do of a loop, for its caller to wait for. OpenMP would spin for milliseconds of processor
// time, on the core perhaps that the other thread waits for; a caller that sleeps leaves that to it.
class Left {
 public:
  explicit Left(int64_t items) : left(items) {}
  void done(int64_t items) { left -= items; }
  void wait(int64_t own) const {
    const int64_t begin = now(), patience = std::clamp<int64_t>(own, 100'000, 1'000'000);
    while (left > 0) {
      const int64_t waited = now() - begin;
      if (waited > patience)
        std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<int64_t>(waited / 8, 1'000'000)));
    }
  }

 private:
  std::atomic<int64_t> left;
};

// f(i0, i1) over ranges of begin <= i < end, of at least `grain` where there are several.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  if (begin >= end) return;
  if (end - begin <= grain || threads_here() == 1) return f(begin, end);
  LoopTimes times{};
  const bool watched = contention.watches();
  const int64_t start = now();
  std::atomic<int64_t> work{0};
  Left left(end - begin);
  torch::stable::parallel_for(begin, end, grain, [&](int64_t i0, int64_t i1) {
    struct Part {  // done even if f throws
      Left& left;
      int64_t items;
      ~Part() { left.done(items); }
    };
    const int64_t own_start = now();
    int64_t used = watched ? -processor_time() : 0;
    {
      const Part part{left, i1 - i0};
      f(i0, i1);
      if (watched) work += used += processor_time();
    }
    if (i0 != begin) return;  // the caller has the first range
    times.own_work = used, times.own = now() - own_start;
    left.wait(times.own);
  });
  times.end = now(), times.wall = times.end - start, times.work = work;
  contention.judge(times);
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
