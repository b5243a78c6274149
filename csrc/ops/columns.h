// The columns that an adjoint works on: those with a cotangent that is not zero.
#pragma once

#include "ops/check.h"

namespace learnsolve {

// Blocks of columns n x all, and those of their columns with a cotangent that is not zero, n x count.
class LearningColumns {
 public:
  LearningColumns(int64_t n_, int64_t all_) : n(n_), all(all_), left(all_), learns(all_, 0) {}

  // Marks the columns of v that are not zero.
  template <class T>
  void look(const T* v, int64_t rows) {
    if (!v) return;
    for (int64_t i = 0; i < rows && left > 0; ++i)
      for (int64_t j = 0; j < all; ++j)
        if (v[i * all + j] != T(0) && !learns[j]) learns[j] = 1, --left;
  }

  // All columns if only a few are inactive: copying columns costs a pass over every vector. Never a single
  // one of several: sums over a single column have another order.
  void choose() {
    int64_t found = all - left;
    if (found == 0) return;
    const bool every = 4 * found > 3 * all;
    if (found == 1 && !every) *std::find(learns.begin(), learns.end(), 0) = 1;
    for (int64_t j = 0; j < all; ++j) {
      if (!every && !learns[j]) continue;
      if (runs.empty() || runs.back().from + runs.back().length < j) runs.push_back({j, count, 0});
      ++count, ++runs.back().length;
    }
  }

  bool some() const { return count < all; }

  // The cache lines that are read of a row are too far from those of the next for the machine to predict, so
  // they are prefetched.
  template <class T>
  void take(const T* from, T* to) const {
    constexpr int64_t line = 64 / sizeof(T), ahead = 16;
    parallel_for(0, n, std::max<int64_t>(kGrain / all, 1), [&](int64_t i0, int64_t i1) {
      for (int64_t i = i0; i < i1; ++i) {
        if (some() && i + ahead < n)
          for (const Run& run : runs)
            for (int64_t j = 0; j < run.length; j += line)
              __builtin_prefetch(from + (i + ahead) * all + run.from + j);
        for (const Run& run : runs)
          for (int64_t j = 0; j < run.length; ++j) to[i * count + run.to + j] = from[i * all + run.from + j];
      }
    });
  }
  template <class T>
  void put(const T* from, T* to) const {
    for (int64_t i = 0; i < n; ++i)
      for (const Run& run : runs)
        for (int64_t j = 0; j < run.length; ++j) to[i * all + run.from + j] = from[i * count + run.to + j];
  }

  int64_t count = 0;  // of those chosen
  int64_t column(int64_t j) const {
    for (const Run& run : runs)
      if (j < run.to + run.length) return run.from + j - run.to;
    return -1;
  }

 private:
  struct Run {
    int64_t from, to, length;
  };
  int64_t n, all, left;  // left: not marked
  std::vector<char> learns;
  std::vector<Run> runs;  // the columns chosen as ranges, and where they go among themselves
};

}  // namespace learnsolve
