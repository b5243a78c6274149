// Long analyses can be interrupted: every few milliseconds they call a function of the caller, which may
// throw.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace learnsolve::analysis {

// module.cpp sets it to a function that has Python handle its signals.
inline void (*on_pulse)() = nullptr;

// A loop calls it with the number of steps that it takes.
class Pulse {
 public:
  void operator()(int64_t steps) {
    left_ -= steps;
    if (left_ < 0) [[unlikely]]
      beat();
  }

 private:
  static constexpr int64_t kSteps = int64_t{1} << 21;
  void beat() {
    left_ = kSteps;
    if (on_pulse) on_pulse();
  }
  int64_t left_ = kSteps;
};

// Work in pieces that do not depend on one another, by several threads. How it is cut depends on its size
// alone, so that results do not depend on the number of threads.

// f(piece) for each of `pieces`; the calling thread takes part. What one throws is thrown here, at the end.
template <class F>
void in_pieces(int64_t pieces, int64_t threads, const F& f) {
  std::atomic<int64_t> next{0};
  std::exception_ptr thrown;
  std::mutex guard;
  const auto work = [&] {
    try {
      for (int64_t piece = next++; piece < pieces; piece = next++) f(piece);
    } catch (...) {
      const std::lock_guard lock(guard);
      thrown = std::current_exception();
      next = pieces;
    }
  };
  std::vector<std::thread> others;
  try {
    for (int64_t t = 1; t < std::min(threads, pieces); ++t) others.emplace_back(work);
  } catch (const std::exception&) {  // no memory for one more: these and this one do
  }
  work();
  for (std::thread& other : others) other.join();
  if (thrown) std::rethrow_exception(thrown);
}

// Where pieces of about equal numbers begin: pieces + 1 rows, by the sums before each row (rows + 1).
template <class S>
std::vector<int64_t> even_rows(const S* before, int64_t rows, int64_t pieces) {
  std::vector<int64_t> first{0};
  for (int64_t k = 1; k < pieces; ++k) {
    const S* at = std::lower_bound(before, before + rows, static_cast<S>(before[rows] / pieces * k));
    first.push_back(std::max<int64_t>(first.back(), at - before));
  }
  first.push_back(rows);
  return first;
}

}  // namespace learnsolve::analysis
