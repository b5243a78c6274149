// The union of two CSR patterns, and where the entries of each stand in it (kernels/union_plan.h).
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/interrupt.h"
#include "kernels/union_plan.h"

namespace learnsolve::analysis {

template <class I>
struct Union {
  std::vector<I> ptr, idx, starts;
  std::vector<uint8_t> codes;
};

// Columns are sorted and unique in every row of both. O(rows + nnz of both).
template <class I>
Union<I> merge_patterns(const I* a_ptr, const I* a_idx, const I* b_ptr, const I* b_idx, int64_t rows) {
  Union<I> u;
  u.ptr.reserve(rows + 1);
  u.ptr.push_back(0);
  u.idx.reserve(a_ptr[rows] > b_ptr[rows] ? a_ptr[rows] : b_ptr[rows]);
  Pulse pulse;
  for (int64_t i = 0; i < rows; ++i) {
    pulse(a_ptr[i + 1] - a_ptr[i] + b_ptr[i + 1] - b_ptr[i] + 1);
    I p = a_ptr[i], q = b_ptr[i];
    while (p < a_ptr[i + 1] || q < b_ptr[i + 1]) {
      const int64_t at = static_cast<int64_t>(u.idx.size());
      if (at % kUnionChunk == 0) u.starts.push_back(p), u.starts.push_back(q);
      if (at % 4 == 0) u.codes.push_back(0);
      const bool more_a = p < a_ptr[i + 1], more_b = q < b_ptr[i + 1];
      const bool in_a = more_a && (!more_b || a_idx[p] <= b_idx[q]);
      const bool in_b = more_b && (!more_a || b_idx[q] <= a_idx[p]);
      u.codes.back() |= static_cast<uint8_t>((in_a | in_b << 4) << at % 4);
      u.idx.push_back(in_a ? a_idx[p] : b_idx[q]);
      p += in_a, q += in_b;
    }
    u.ptr.push_back(static_cast<I>(u.idx.size()));
  }
  u.starts.push_back(a_ptr[rows]), u.starts.push_back(b_ptr[rows]);
  return u;
}

// Places in a and in b of the entries that both have. Columns are sorted and unique in every row of both.
struct Common {
  std::vector<int64_t> a, b;
};

template <class I>
Common common_positions(const I* a_ptr, const I* a_idx, const I* b_ptr, const I* b_idx, int64_t rows) {
  Common common;
  Pulse pulse;
  for (int64_t i = 0; i < rows; ++i) {
    pulse(a_ptr[i + 1] - a_ptr[i] + b_ptr[i + 1] - b_ptr[i] + 1);
    for (int64_t p = a_ptr[i], q = b_ptr[i]; p < a_ptr[i + 1] && q < b_ptr[i + 1];) {
      const I in_a = a_idx[p], in_b = b_idx[q];
      if (in_a == in_b) common.a.push_back(p), common.b.push_back(q);
      p += in_a <= in_b, q += in_b <= in_a;
    }
  }
  return common;
}

}  // namespace learnsolve::analysis
