// Rows distributed evenly, whatever their lengths: the merge path of Merrill and Garland ("Merge-based
// parallel sparse matrix-vector multiplication", 2016).
//
// The path of a matrix visits its entries in order and, after those of each row, the row's end: rows + nnz
// items. Pieces of equal length are equal work, whatever the lengths of the rows. A point of the path is the
// number of rows that have ended and the number of entries that have been passed.
#pragma once

#include "kernels/team.cuh"

namespace learnsolve::cuda {

struct PathPoint {
  int64_t row, entry;
};

// From one point to another: rows first.row <= i < last.row end here, row last.row begins or goes on.
struct PathPiece {
  PathPoint first, last;
};

// The end of row i is item ptr[i + 1] + i. The number of ends before item `at`, which lies between lo and hi.
template <class Ptr>
LS_BOTH int64_t rows_ended(const Ptr& ptr, int64_t lo, int64_t hi, int64_t at) {
  while (lo < hi) {
    const int64_t mid = (lo + hi) / 2;
    if (static_cast<int64_t>(ptr[mid + 1]) + mid < at)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

// The row of entry p, one of lo to hi.
template <class Ptr>
LS_BOTH int64_t row_of_entry(const Ptr& ptr, int64_t lo, int64_t hi, int64_t p) {
  while (lo < hi) {
    const int64_t mid = (lo + hi) / 2;
    if (ptr[mid + 1] <= p)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

// How rows are distributed. Without a table each is a piece of its own. Else line t of the table is the point
// of item t `width`, the last line the end of the path, and each stretch between two lines makes `parts`
// pieces. The arrays may be anything that is indexed like one: tests use some that are too large for any
// memory.
template <class I, class Ptr = const I*, class Table = const I*>
struct Schedule {
  Ptr ptr;
  Table table;
  int64_t rows, nnz;
  int64_t stretches;
  int width, parts;

  LS_BOTH int64_t pieces() const { return table ? stretches * parts : rows; }

  LS_BOTH PathPoint line(int64_t t) const { return {table[2 * t], table[2 * t + 1]}; }

  // Where piece s begins, 0 <= s <= pieces().
  LS_BOTH PathPoint point(int64_t s) const {
    if (!table) return {s, ptr[s]};
    const int64_t t = s / parts, part = s % parts;
    if (t == stretches) return {rows, nnz};
    if (part == 0) return line(t);
    const int64_t items = rows + nnz, at = t * width + part * (width / parts);
    if (at >= items) return {rows, nnz};
    const int64_t row = rows_ended(ptr, line(t).row, line(t + 1).row, at);
    return {row, at - row};
  }
  LS_BOTH PathPiece piece(int64_t s) const { return {point(s), point(s + 1)}; }

  // Is there a row that piece s leaves open, and is s the first piece that does?
  LS_BOTH bool opens(int64_t s) const {
    const int64_t row = point(s + 1).row;
    return row < rows && (s == 0 || point(s).row != row);
  }
  // The last piece that leaves open what piece s does.
  LS_BOTH int64_t last_of(int64_t s) const {
    const int64_t row = point(s + 1).row;
    int64_t lo = s, hi = pieces() - 1;
    while (lo < hi) {
      const int64_t mid = (lo + hi + 1) / 2;
      if (point(mid + 1).row == row)
        lo = mid;
      else
        hi = mid - 1;
    }
    return lo;
  }
};

}  // namespace learnsolve::cuda
