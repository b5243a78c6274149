// The pattern of incomplete factors by levels of fill, ILU(k) and IC(k).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "analysis/fill_row.h"
#include "analysis/interrupt.h"

namespace learnsolve::analysis {

struct RowsOfColumns {
  std::vector<int64_t> ptr{0}, idx;
};

// The entries (i, j) with lev_ij <= most. lev_ij is zero for an entry of A and on the diagonal, else
// min_k (lev_ik + lev_kj + 1), k < min(i, j). An entry above `most` cannot lower another one to it: it is
// dropped when met. O(products of the elimination on the result).
template <class I>
RowsOfColumns level_fill(const I* ptr, int64_t n, const I* idx, int64_t most) {
  RowsOfColumns found;
  std::vector<int64_t> upper(n), level;  // where row k is right of its diagonal; the level of each entry
  FillRow<int64_t> row(n);
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    row.begin(i);
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) row.insert(idx[p], 0);
    const auto put = [&](int64_t j, int64_t l) { found.idx.push_back(j), level.push_back(l); };
    for (int64_t k = row.next(); k >= 0; k = row.next()) {
      const int64_t step = row[k] + 1, end = found.ptr[k + 1];
      put(k, row[k]);
      pulse(end - upper[k] + 1);
      for (int64_t q = upper[k]; q < end; ++q) {
        const int64_t j = found.idx[q], l = step + level[q];
        if (l > most) continue;
        int64_t& known = row.at(j, l);
        known = std::min(known, l);
      }
    }
    put(i, 0);
    upper[i] = static_cast<int64_t>(found.idx.size());
    std::sort(row.right().begin(), row.right().end());
    for (const int64_t j : row.right()) put(j, row[j]);
    found.ptr.push_back(static_cast<int64_t>(found.idx.size()));
  }
  return found;
}

}  // namespace learnsolve::analysis
