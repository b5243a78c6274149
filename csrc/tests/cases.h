// Which cases the kernels are tried on, and how ranges of blocks are dealt out: one after another, or
// every range on a thread of its own. Starting a thread under ThreadSanitizer takes 0.3 ms, so there
// fewer cases are run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/matrices.h"

#if defined(LEARNSOLVE_TEST_THREADS)
#include <thread>
#endif

namespace learnsolve::test {

#if defined(LEARNSOLVE_TEST_THREADS)
constexpr bool kThreads = true;
inline const std::vector<int64_t> column_counts{1, 3, 33};
#else
constexpr bool kThreads = false;
inline const std::vector<int64_t> column_counts{0, 1, 2, 3, 7, 16, 33, 64, 100};
#endif

struct Partition {
  std::string name;
  std::vector<int64_t> bounds;  // 0 = bounds[0] <= bounds[1] <= ... = number of blocks
};

// The whole first: the other results are compared with it. An empty range is a legal one.
inline std::vector<Partition> partitions(int64_t n_blocks) {
  return {{"whole", {0, n_blocks}},
          {"halves", {0, n_blocks / 2, n_blocks}},
          {"uneven", {0, 0, n_blocks / 5, n_blocks / 5 + n_blocks / 3, n_blocks}}};
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

// f(A, its transpose, k) for every pattern and number of columns.
template <class I, class F>
void for_each_case(Random& random, const F& f) {
  for (const Pattern& pattern : patterns(random))
    for (const int64_t block_weight : {48, 400}) {
      const Structure<I> A = structure<I>(pattern, block_weight);
      if (kThreads && A.n_blocks() < 4) continue;
      for (const int64_t k : column_counts)
        if (block_weight == 48 || k == 1)  // only vectors care for the length of a block
          f(A, transposed(A, block_weight), k);
    }
}

}  // namespace learnsolve::test
