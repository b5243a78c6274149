// A largest matching of rows and columns: the structural rank of a pattern.
//
// Augmenting paths by depth-first search; before descending, a row checks whether one of its columns is free
// (I. S. Duff, "On algorithms for obtaining a maximum transversal", ACM Trans. Math. Software 7 (1981)).
// O(rows nnz) at worst, about O(nnz) in practice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/interrupt.h"

namespace learnsolve::analysis {

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
