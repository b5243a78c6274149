// Greedy coloring of the graph of a square pattern: i and j are neighbors if there is an entry (i, j) or
// (j, i), i != j.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "analysis/interrupt.h"

namespace learnsolve::analysis {

// f(j) for every neighbor j of i, given the pattern and its transpose; once or twice.
template <class I, class F>
void for_each_neighbor(const I* ptr, const I* idx, const I* tptr, const I* tidx, int64_t i, const F& f) {
  for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p)
    if (idx[p] != i) f(static_cast<int64_t>(idx[p]));
  for (int64_t p = tptr[i]; p < tptr[i + 1]; ++p)
    if (tidx[p] != i) f(static_cast<int64_t>(tidx[p]));
}

// In the order of the rows, or of their numbers of neighbors (most first, rows with as many in order), each
// gets the smallest color that none of its neighbors has: at most as many colors as a row has neighbors,
// and one more. Returns the number of colors. O(n + nnz), and a sort for `largest_first`.
template <class I>
int64_t greedy_coloring(const I* ptr, int64_t n, const I* idx, const I* tptr, const I* tidx,
                        bool largest_first, I* colors) {
  std::vector<int64_t> order(n), seen(n, -1);
  Pulse pulse;
  const auto size = [&](int64_t i) { return ptr[i + 1] - ptr[i] + tptr[i + 1] - tptr[i] + 1; };
  std::iota(order.begin(), order.end(), int64_t{0});
  if (largest_first) {
    std::vector<int64_t> degree(n, 0);
    for (int64_t i = 0; i < n; ++i) {
      pulse(size(i));
      for_each_neighbor(ptr, idx, tptr, tidx, i, [&](int64_t j) {
        if (seen[j] != i) seen[j] = i, ++degree[i];
      });
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return pulse(1), degree[a] > degree[b]; });
  }
  std::fill(colors, colors + n, I(-1));
  std::vector<int64_t> taken;  // taken[c] = i: a neighbor of i has color c
  for (const int64_t i : order) {
    pulse(size(i));
    for_each_neighbor(ptr, idx, tptr, tidx, i, [&](int64_t j) {
      if (colors[j] >= 0) taken[colors[j]] = i;
    });
    size_t c = 0;
    while (c < taken.size() && taken[c] == i) ++c;
    if (c == taken.size()) taken.push_back(-1);
    colors[i] = static_cast<I>(c);
  }
  return static_cast<int64_t>(taken.size());
}

// Rows by color, in order within one: those of color c stand at rows[first[c]] .. rows[first[c + 1] - 1].
template <class I>
void group_by_color(const I* colors, int64_t n, int64_t count, I* first, I* rows) {
  std::fill(first, first + count + 1, I(0));
  for (int64_t i = 0; i < n; ++i) ++first[colors[i] + 1];
  for (int64_t c = 0; c < count; ++c) first[c + 1] += first[c];
  std::vector<I> next(first, first + count);
  for (int64_t i = 0; i < n; ++i) rows[next[colors[i]]++] = static_cast<I>(i);
}

}  // namespace learnsolve::analysis
