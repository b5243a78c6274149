// Gradients on a pattern from pairs of blocks of vectors of several iterations of a loop: several pairs are
// added in one pass over the entries.
#pragma once

#include "kernels/chunk_pass.cuh"
#include "kernels/groups.cuh"

namespace learnsolve::cuda {

// Some pairs of blocks of vectors, (u, v): out_p += <u_i, v_j> for the entries p = (i, j) of a pattern, one
// pair after another, so that no bit depends on how pairs are grouped. Entries are distributed, not rows, so
// the lengths of the rows do not matter. A column that does not act adds nothing, whatever it holds.
template <class T, class I>
struct EntryPairs {
  static constexpr int kMost = 8;
  const I* row;
  const I* idx;
  int64_t entries, k;
  Groups groups;
  BatchResult<T> out;
  Vectors<const T> acts;  // a number for each column, or none: all act
  Vectors<const T> u[kMost], v[kMost];
  int count;
};

template <int Lanes, class T, class I>
LS_KERNEL(kThreads)
entry_pairs_kernel(LS_ARGUMENT EntryPairs<T, I> P) {
  for_members(P.groups, [&](const Members& members) {
    T* const out = P.out.of(members);
    for_items<Lanes>(P.entries, [&](const auto& team, int64_t p) {
      const int64_t i = P.row[p] * P.k, j = P.idx[p] * P.k;
      T total = out[p];
      for (int q = 0; q < P.count; ++q)
        for (int64_t b = members.b0; b < members.b1; ++b) {
          const T* u = P.u[q].of(b) + i;
          const T* v = P.v[q].of(b) + j;
          const T* acts = P.acts.of(b);
          T part = 0;
          for (int64_t c = team.lane; c < P.k; c += Lanes)
            if (!acts || acts[c] != T(0)) part += u[c] * v[c];
          total += team.sum(part);
        }
      if (team.first()) out[p] = total;
    });
  });
}

// The row of each entry.
template <class I>
LS_KERNEL(kThreads)
rows_of_entries_kernel(const I* ptr, int64_t rows, I* row) {
  for_items<32>(rows, [&](const auto& team, int64_t i) {
    for (int64_t p = ptr[i] + team.lane; p < ptr[i + 1]; p += 32) row[p] = static_cast<I>(i);
  });
}

}  // namespace learnsolve::cuda
