// Analysis of triangular systems: the entries that a solve reads, runs of rows that repeat one another, and
// levels of rows that do not depend on each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "analysis/pieces.h"

namespace learnsolve::analysis {

// Does entry (i, j) lie on diagonal k or below it (upper: above it)?
inline bool in_triangle(int64_t i, int64_t j, bool upper, int64_t k) {
  return upper ? j - i >= k : j - i <= k;
}

// The diagonal that a triangle ends with: the main one, or the next where its ones are not read.
inline int64_t last_diagonal(bool upper, bool unit) { return unit ? (upper ? 1 : -1) : 0; }

template <class I>
struct Triangle {
  std::vector<I> ptr, idx, perm;
};

// Where the columns of row i, which are sorted, pass from one side to the other.
template <class I>
int64_t triangle_bound(const I* ptr, const I* idx, int64_t i, bool upper, int64_t k) {
  int64_t p = ptr[i];
  while (p < ptr[i + 1] && in_triangle(i, idx[p], upper, k) != upper) ++p;
  return p;
}

// Where the rows of the triangle from diagonal k on begin, and the number of its entries.
template <class I>
std::vector<I> triangle_rows(const I* ptr, int64_t n, const I* idx, bool upper, int64_t k) {
  std::vector<I> rows(n + 1, 0);
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    const int64_t bound = triangle_bound(ptr, idx, i, upper, k);
    rows[i + 1] = static_cast<I>(rows[i] + (upper ? ptr[i + 1] - bound : bound - ptr[i]));
  }
  return rows;
}

// The triangle; perm is the place of each entry in the values. `from` is the perm of the structure itself, or
// null.
template <class I>
Triangle<I> triangle(const I* ptr, int64_t n, const I* idx, const I* from, bool upper, std::vector<I> rows) {
  Triangle<I> t{std::move(rows), {}, {}};
  t.idx.resize(t.ptr[n]), t.perm.resize(t.ptr[n]);
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = t.ptr[i], length = t.ptr[i + 1] - at,
                  p = upper ? ptr[i + 1] - length : int64_t{ptr[i]};
    pulse(length + 1);
    for (int64_t l = 0; l < length; ++l) {
      t.idx[at + l] = idx[p + l];
      t.perm[at + l] = from ? from[p + l] : static_cast<I>(p + l);
    }
  }
  return t;
}

// The table of kernels/triangular.h: rows (first row, length, stride), a last row (n, 0, 0). A run of rows is
// uniform if all have `length` entries, columns advance by one from row to row and places by `stride`;
// rows between such runs get length 0.
template <class I>
std::vector<I> triangle_blocks(const I* ptr, int64_t n, const I* idx, const I* perm) {
  constexpr int64_t shortest = 8, longest = 32;
  std::vector<I> table;
  const auto emit = [&](int64_t first, int64_t length, int64_t stride) {
    for (const int64_t v : {first, length, stride}) table.push_back(static_cast<I>(v));
  };
  const auto place = [&](int64_t p) { return perm ? static_cast<int64_t>(perm[p]) : p; };
  const auto continues = [&](int64_t i, int64_t length, int64_t stride) {
    const int64_t a = ptr[i], b = ptr[i + 1];
    if (ptr[i + 2] - b != length) return false;
    for (int64_t l = 0; l < length; ++l)
      if (idx[b + l] != idx[a + l] + 1 || place(b + l) != place(a + l) + stride) return false;
    return true;
  };
  Pulse pulse;
  int64_t open = 0, i = 0;
  while (i < n) {
    const int64_t length = ptr[i + 1] - ptr[i];
    int64_t end = i + 1, stride = 0;
    if (length > 0 && length <= longest && end < n && ptr[i + 2] - ptr[i + 1] == length) {
      stride = place(ptr[i + 1]) - place(ptr[i]);
      while (end < n && continues(end - 1, length, stride)) pulse(length + 1), ++end;
    }
    pulse(length + 1);
    if (end - i >= shortest) {
      if (open < i) emit(open, 0, 0);
      emit(i, length, stride);
      open = end;
    }
    i = end;
  }
  if (open < n) emit(open, 0, 0);
  emit(n, 0, 0);
  return table;
}

template <class I>
struct Schedule {
  std::vector<I> order, levels;  // rows by level; where each level begins in them, and n
};

// Rows in levels such that the rows of a level depend on rows of earlier levels alone, for the lower
// triangle. The same levels from last to first serve its transpose. For the upper triangle: those of its
// transpose.
template <class I>
Schedule<I> level_schedule(const I* ptr, int64_t n, const I* idx, bool upper) {
  std::vector<I> level(n, 0);
  int64_t depth = 0;
  Pulse pulse;
  for (int64_t t = 0; t < n; ++t) {
    const int64_t i = upper ? n - 1 - t : t;
    pulse(ptr[i + 1] - ptr[i] + 1);
    I own = 0;
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p)
      if (in_triangle(i, idx[p], upper, last_diagonal(upper, true)))
        own = std::max(own, static_cast<I>(level[idx[p]] + 1));
    level[i] = own;
    depth = std::max<int64_t>(depth, own + 1);
  }
  Schedule<I> s;
  s.levels.assign(depth + 1, 0);
  for (I& own : level) {
    if (upper) own = static_cast<I>(depth - 1 - own);
    ++s.levels[own + 1];
  }
  for (int64_t l = 0; l < depth; ++l) s.levels[l + 1] += s.levels[l];
  std::vector<I> next(s.levels.begin(), s.levels.end() - 1);
  s.order.resize(n);
  for (int64_t i = 0; i < n; ++i) s.order[next[level[i]]++] = static_cast<I>(i);
  return s;
}

}  // namespace learnsolve::analysis
