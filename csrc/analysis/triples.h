// The order of triples (row, column, value) that come in any order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "analysis/interrupt.h"

namespace learnsolve::analysis {

// order: the triples by row and column, those of one place as they came. first: where each place begins in
// it.
struct Triples {
  std::vector<int64_t> ptr, idx, order, first;
};

// Rows lie in 0 .. m - 1. A counting sort by row, then every row by itself: O(m + entries log(entries of a
// row)).
inline Triples sort_triples(const int64_t* rows, const int64_t* cols, int64_t entries, int64_t m) {
  struct Entry {
    int64_t column, number;
  };
  Pulse pulse;
  std::vector<int64_t> next(m + 1, 0);
  for (int64_t e = 0; e < entries; ++e) pulse(1), ++next[rows[e] + 1];
  for (int64_t i = 0; i < m; ++i) pulse(1), next[i + 1] += next[i];
  std::vector<Entry> sorted(entries);
  for (int64_t e = 0; e < entries; ++e) pulse(1), sorted[next[rows[e]]++] = {cols[e], e};

  Triples out;
  out.ptr.assign(m + 1, 0);
  out.order.resize(entries);
  int64_t begin = 0;  // next[i] is now where row i ends
  for (int64_t i = 0; i < m; ++i) {
    const int64_t end = next[i];
    const auto before = [&](const Entry& a, const Entry& b) { return pulse(1), a.column < b.column; };
    if (!std::is_sorted(sorted.begin() + begin, sorted.begin() + end, before))
      std::stable_sort(sorted.begin() + begin, sorted.begin() + end, before);
    for (int64_t e = begin; e < end; ++e) {
      if (e == begin || sorted[e].column != sorted[e - 1].column) {
        out.idx.push_back(sorted[e].column);
        out.first.push_back(e);
      }
      out.order[e] = sorted[e].number;
    }
    out.ptr[i + 1] = static_cast<int64_t>(out.idx.size());
    pulse(end - begin + 1);
    begin = end;
  }
  return out;
}

}  // namespace learnsolve::analysis
