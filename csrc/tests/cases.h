// The cases that the kernels are tested on, and how ranges of blocks are distributed: one after another, or
// every range on a thread of its own. Starting a thread under ThreadSanitizer takes 0.3 ms, so there fewer
// cases are run.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/matrices.h"

#if defined(LEARNSOLVE_TEST_THREADS)
#include <thread>
#endif

namespace learnsolve::test {

#if defined(LEARNSOLVE_TEST_THREADS)
constexpr bool kThreads = true;
inline const std::vector<int64_t> column_counts{1, 33};
#else
constexpr bool kThreads = false;
inline const std::vector<int64_t> column_counts{0, 1, 2, 3, 7, 13, 16, 22, 33, 64, 100};
#endif

struct Partition {
  std::string name;
  std::vector<int64_t> bounds;  // 0 = bounds[0] <= bounds[1] <= ... = number of blocks
};

// The whole first: the other results are compared with it. An empty range is a legal one.
inline std::vector<Partition> partitions(int64_t n_blocks) {
  return {{"whole", {0, n_blocks}}, {"parts", {0, 0, n_blocks / 5, n_blocks / 5 + n_blocks / 2, n_blocks}}};
}

template <class F>
void for_ranges(const Partition& partition, const F& f) {
  const auto& bounds = partition.bounds;
#if defined(LEARNSOLVE_TEST_THREADS)
  std::vector<std::thread> threads;
  for (size_t r = 1; r + 1 < bounds.size(); ++r) threads.emplace_back(f, bounds[r], bounds[r + 1]);
  f(bounds[0], bounds[1]);
  for (std::thread& thread : threads) thread.join();
#else
  for (size_t r = 0; r + 1 < bounds.size(); ++r) f(bounds[r], bounds[r + 1]);
#endif
}

// What an output holds before a kernel writes it: whatever is not written is seen.
template <class T>
Array<T> unwritten(int64_t n) {
  Array<T> a(n);
  for (int64_t i = 0; i < n; ++i) a[i] = std::numeric_limits<T>::quiet_NaN();
  return a;
}

// f(A, its transpose, k) for every pattern and number of columns. Only products with one vector depend on the
// length of a block.
template <class I, class F>
void for_each_case(Random& random, const F& f) {
  const auto run = [&](const Pattern& pattern, int64_t k, int64_t block_weight) {
    const Structure<I> A = structure<I>(pattern, block_weight);
    if (kThreads && A.n_blocks() < 4) return;
    f(A, transposed(A, block_weight), k);
  };
  for (const Pattern& pattern : patterns(random)) {
    for (const int64_t k : column_counts) run(pattern, k, 48);
    run(pattern, 1, 400);
  }
  for (const Pattern& pattern : vector_patterns())
    for (const int64_t block_weight : {48, 400}) run(pattern, 1, block_weight);
}

}  // namespace learnsolve::test
