// Analysis of one CSR pattern: validity, transpose, diagonal, blocks of rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/pieces.h"

namespace learnsolve::analysis {

// learnsolve/matrix/pattern.py has a message for each kind, in this order.
enum class FaultKind { none, first, decreasing, last, column_range, duplicate, unsorted };

struct Fault {
  FaultKind kind = FaultKind::none;
  int64_t position = 0;  // in crow_indices for the first three kinds, else in col_indices
  int64_t value = 0;
};

// All of crow_indices is checked before a single column is read through it.
template <class I>
Fault validate(const I* ptr, int64_t rows, const I* idx, int64_t nnz, int64_t cols) {
  Pulse pulse;
  if (ptr[0] != 0) return {FaultKind::first, 0, static_cast<int64_t>(ptr[0])};
  for (int64_t i = 0; i < rows; ++i)
    if (pulse(1), ptr[i + 1] < ptr[i])
      return {FaultKind::decreasing, i + 1, static_cast<int64_t>(ptr[i + 1])};
  if (ptr[rows] != nnz) return {FaultKind::last, rows, static_cast<int64_t>(ptr[rows])};
  for (int64_t i = 0; i < rows; ++i) {
    int64_t previous = -1;
    pulse(ptr[i + 1] - ptr[i] + 1);
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
      const int64_t j = idx[p];
      if (j < 0 || j >= cols) return {FaultKind::column_range, p, j};
      if (j == previous) return {FaultKind::duplicate, p, j};
      if (j < previous) return {FaultKind::unsorted, p, j};
      previous = j;
    }
  }
  return {};
}

// Counting sort by column. tidx comes out sorted because rows are visited in order; perm[q] is the
// place in the original of entry q of the transpose. O(rows + cols + nnz).
template <class I>
void transpose(const I* ptr, int64_t rows, const I* idx, int64_t cols, I* tptr, I* tidx, I* perm) {
  Pulse pulse;
  std::fill(tptr, tptr + cols + 1, I(0));
  for (int64_t i = 0; i < rows; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) ++tptr[idx[p] + 1];
  }
  for (int64_t j = 0; j < cols; ++j) pulse(1), tptr[j + 1] += tptr[j];
  std::vector<I> next(tptr, tptr + cols);
  for (int64_t i = 0; i < rows; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
      const I q = next[idx[p]]++;
      tidx[q] = static_cast<I>(i);
      perm[q] = static_cast<I>(p);
    }
  }
}

// Is a square matrix its transpose? The entries above the diagonal come, by rows, in the order in which those
// of each column come below it.
enum class Symmetry { none, of_pattern, of_values };
template <class I, class T>
Symmetry symmetry_of(const I* ptr, int64_t n, const I* idx, const T* values) {
  std::vector<I> next(ptr, ptr + n);  // of each row, the first entry that has not been met from above
  bool equal = true;
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    int64_t p = next[i];  // must be the first from the diagonal on
    if ((p > ptr[i] && idx[p - 1] >= i) || (p < ptr[i + 1] && idx[p] < i)) return Symmetry::none;
    if (p < ptr[i + 1] && idx[p] == i) equal &= values[p] == values[p], ++p;
    for (; p < ptr[i + 1]; ++p) {
      const int64_t j = idx[p], q = next[j]++;
      if (q == ptr[j + 1] || idx[q] != i) return Symmetry::none;
      equal &= values[p] == values[q];
    }
  }
  return equal ? Symmetry::of_values : Symmetry::of_pattern;
}

// The row of each entry.
template <class I>
void row_indices(const I* ptr, int64_t rows, I* out) {
  Pulse pulse;
  for (int64_t i = 0; i < rows; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) out[p] = static_cast<I>(i);
  }
}

// Place of the diagonal entry of each of the first n rows, -1 where there is none. Columns are sorted.
template <class I>
void diagonal_positions(const I* ptr, int64_t n, const I* idx, I* positions) {
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    pulse(8);  // a binary search
    const I* begin = idx + ptr[i];
    const I* end = idx + ptr[i + 1];
    const I* at = std::lower_bound(begin, end, static_cast<I>(i));
    positions[i] = at != end && *at == i ? static_cast<I>(at - idx) : I(-1);
  }
}

// Does row i + 1 continue row i as kernels/views.h says (equal length, columns plus one, perm plus
// length)?
template <class I>
bool continues(const I* ptr, const I* idx, const I* perm, int64_t i) {
  const int64_t a = ptr[i], b = ptr[i + 1], length = b - a;
  if (length == 0 || ptr[i + 2] - b != length) return false;
  for (int64_t l = 0; l < length; ++l)
    if (idx[b + l] != idx[a + l] + 1 || (perm && perm[b + l] != perm[a + l] + length)) return false;
  return true;
}

// The table of kernels/views.h: rows (first row, uniform length or 0), a last row (rows, 0).
// A uniform run of at least `shortest` rows makes blocks of its own; what lies between is gathered. No
// block weighs more than `target` entries and rows unless a single row does.
template <class I>
std::vector<I> row_blocks(const I* ptr, int64_t rows, const I* idx, const I* perm, int64_t target) {
  constexpr int64_t shortest = 8;
  std::vector<I> table;
  int64_t open = 0;  // first row of the irregular block that is being gathered
  const auto weight = [&](int64_t from, int64_t to) {
    return static_cast<int64_t>(ptr[to] - ptr[from]) + to - from;
  };
  const auto emit = [&](int64_t from, int64_t to, int64_t length) {
    int64_t begin = from;
    for (int64_t i = from; i < to; ++i)
      if (i > begin && weight(begin, i + 1) > target) {
        table.push_back(static_cast<I>(begin)), table.push_back(static_cast<I>(length));
        begin = i;
      }
    if (begin < to) table.push_back(static_cast<I>(begin)), table.push_back(static_cast<I>(length));
  };
  Pulse pulse;
  int64_t i = 0;
  while (i < rows) {
    int64_t end = i + 1;
    while (end < rows && continues(ptr, idx, perm, end - 1)) pulse(ptr[end + 1] - ptr[end] + 1), ++end;
    pulse(ptr[end] - ptr[end - 1] + 1);
    const int64_t length = ptr[i + 1] - ptr[i];
    if (end - i >= shortest && length <= 32) {
      emit(open, i, 0);
      emit(i, end, length);
      open = end;
    }
    i = end;
  }
  emit(open, rows, 0);
  table.push_back(static_cast<I>(rows)), table.push_back(I(0));
  return table;
}

// A largest matching of rows and columns: the structural rank of a pattern.
//
// Augmenting paths by depth-first search; before descending, a row checks whether one of its columns is free
// (I. S. Duff, "On algorithms for obtaining a maximum transversal", ACM Trans. Math. Software 7 (1981)).
// O(rows nnz) at worst, about O(nnz) in practice.

// row_of[j] becomes the row that column j is matched with, or -1.
template <class I>
void match_rows(const I* ptr, int64_t rows, const I* idx, int64_t cols, I* row_of) {
  for (int64_t j = 0; j < cols; ++j) row_of[j] = -1;
  std::vector<I> free(ptr, ptr + rows);  // of each row: entries before this place have no free column
  std::vector<I> at(rows);               // of each row on the path: the entry to the next row
  std::vector<I> seen(rows, I(-1)), path;
  Pulse pulse;
  for (int64_t start = 0; start < rows; ++start) {
    path.assign(1, static_cast<I>(start));
    seen[start] = static_cast<I>(start);
    at[start] = ptr[start];
    while (!path.empty()) {
      const I i = path.back();
      pulse(1);
      while (free[i] < ptr[i + 1] && row_of[idx[free[i]]] >= 0) pulse(1), ++free[i];
      if (free[i] < ptr[i + 1]) {
        // Every row of the path gives up its column to the row before it on the path.
        row_of[idx[free[i]]] = i;
        for (std::size_t r = path.size() - 1; r-- > 0;) row_of[idx[at[path[r]]]] = path[r];
        break;
      }
      while (at[i] < ptr[i + 1] && seen[row_of[idx[at[i]]]] == static_cast<I>(start)) pulse(1), ++at[i];
      if (at[i] < ptr[i + 1]) {
        const I next = row_of[idx[at[i]]];
        seen[next] = static_cast<I>(start);
        at[next] = ptr[next];
        path.push_back(next);
      } else {
        path.pop_back();  // it has been seen: the row before continues with its next entry
      }
    }
  }
}

}  // namespace learnsolve::analysis
