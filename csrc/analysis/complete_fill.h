// The complete fill of a Cholesky factor, by its elimination tree.
// Source: Liu, "The role of elimination trees in sparse factorization", SIAM J. Matrix Anal. Appl. 11 (1990).
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "analysis/interrupt.h"

namespace learnsolve::analysis {

// L by rows, the diagonal last; empty if it has more than `most` entries, whose number `entries` is.
struct CompleteRows {
  int64_t entries = 0;
  std::vector<int64_t> ptr, idx;
};

namespace detail {

// Below the diagonal of A + A^T, its rows and columns permuted: row order[i] becomes row i. Unsorted, with
// entries that come twice.
template <class I>
void lower_rows(const I* ptr, int64_t n, const I* idx, const I* order, std::vector<int64_t>& rows,
                std::vector<int64_t>& columns) {
  std::vector<int64_t> inverse(n);
  for (int64_t i = 0; i < n; ++i) inverse[order[i]] = i;
  const auto each = [&](const auto& f) {
    for (int64_t r = 0; r < n; ++r)
      for (int64_t p = ptr[r]; p < ptr[r + 1]; ++p)
        if (const int64_t a = inverse[r], b = inverse[idx[p]]; a != b) f(std::max(a, b), std::min(a, b));
  };
  rows.assign(n + 1, 0);
  each([&](int64_t i, int64_t) { ++rows[i + 1]; });
  std::partial_sum(rows.begin(), rows.end(), rows.begin());
  columns.resize(rows[n]);
  std::vector<int64_t> next(rows.begin(), rows.end() - 1);
  each([&](int64_t i, int64_t j) { columns[next[i]++] = j; });
}

// f(i, k) for the entries of L below the diagonal, row by row: those on the way up the tree from the columns
// of A's row.
template <class F>
void row_subtrees(const std::vector<int64_t>& rows, const std::vector<int64_t>& columns,
                  const std::vector<int64_t>& parent, const F& f) {
  const auto n = static_cast<int64_t>(parent.size());
  std::vector<int64_t> row(n, -1);  // the last that came by
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    row[i] = i;
    for (int64_t p = rows[i]; p < rows[i + 1]; ++p)
      for (int64_t k = columns[p]; row[k] != i; k = parent[k]) pulse(1), row[k] = i, f(i, k);
  }
}

}  // namespace detail

// Of A + A^T with row order[i] as row i. O(nnz log n) for the tree, then O(entries).
template <class I>
CompleteRows complete_fill(const I* ptr, int64_t n, const I* idx, const I* order, int64_t most) {
  std::vector<int64_t> rows, columns, parent(n, -1), ancestor(n, -1);
  detail::lower_rows(ptr, n, idx, order, rows, columns);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = rows[i]; p < rows[i + 1]; ++p)
      for (int64_t k = columns[p], up; k != -1 && k < i; k = up) {  // shortcuts to the root, of which i is
        up = std::exchange(ancestor[k], i);
        if (up == -1) parent[k] = i;
      }
  CompleteRows L;
  L.ptr.assign(n + 1, 0);
  std::vector<int64_t> next(n + 1, 0);  // of each column: its first place by columns, then the next one
  detail::row_subtrees(rows, columns, parent, [&](int64_t i, int64_t k) { ++L.ptr[i + 1], ++next[k + 1]; });
  for (int64_t i = 0; i < n; ++i) L.ptr[i + 1] += L.ptr[i] + 1, next[i + 1] += next[i];
  L.entries = L.ptr[n];
  if (L.entries > most) return L;
  // Twice in order: rows within columns, then columns within rows.
  std::vector<int64_t> below(next[n]), begin(next.begin(), next.end());
  detail::row_subtrees(rows, columns, parent, [&](int64_t i, int64_t k) { below[next[k]++] = i; });
  L.idx.resize(L.entries);
  std::vector<int64_t> place(L.ptr.begin(), L.ptr.end() - 1);
  for (int64_t k = 0; k < n; ++k) {
    L.idx[place[k]++] = k;
    for (int64_t q = begin[k]; q < begin[k + 1]; ++q) L.idx[place[below[q]]++] = k;
  }
  return L;
}

}  // namespace learnsolve::analysis
