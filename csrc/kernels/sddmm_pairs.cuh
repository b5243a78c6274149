// Gradients on a pattern from pairs of blocks of vectors of several iterations of a loop: several pairs are
// added in one pass over the entries.
#pragma once

#include "kernels/chunk_pass.cuh"

namespace learnsolve::cuda {

// Some pairs of blocks of vectors, (u, v): out_p += <u_i, v_j> for the entries p = (i, j) of a pattern, one
// pair after another, so that no bit depends on how pairs are grouped. All members that share their values
// are added up. Entries are distributed, not rows, so the lengths of the rows do not matter.
template <class T, class I>
struct EntryPairs {
  static constexpr int kMost = 8;
  const I* row;
  const I* idx;
  int64_t entries, k, batch, out_step;
  T* out;
  Vectors<const T> u[kMost], v[kMost];
  int count;
  LS_BOTH bool adds_up() const { return batch > 1 && out_step == 0; }
};

template <class Team, class T, class I>
LS_DEVICE void entry_pairs(const Team& team, const EntryPairs<T, I>& P, int64_t p, Members members) {
  const int64_t i = P.row[p] * P.k, j = P.idx[p] * P.k;
  typename Team::template Own<T> part;
  T* out = P.out + (P.out_step ? members.b0 * P.out_step : 0) + p;
  T total = *out;
  for (int q = 0; q < P.count; ++q)
    for (int64_t b = members.b0; b < members.b1; ++b) {
      const T* u = P.u[q].of(b) + i;
      const T* v = P.v[q].of(b) + j;
      team.each([&](int lane) {
        T sum = 0;
        for (int64_t c = lane; c < P.k; c += Team::size) sum += u[c] * v[c];
        part[lane] = sum;
      });
      total += team.sum(part);
    }
  team.first([&] { *out = total; });
}

template <int Lanes, class T, class I>
LS_KERNEL(kThreads)
entry_pairs_kernel(LS_ARGUMENT EntryPairs<T, I> P) {
  for_members(P.adds_up(), P.batch, [&](Members members) {
    for_items<Lanes>(P.entries, [&](const auto& team, int64_t p) { entry_pairs(team, P, p, members); });
  });
}

// The row of each entry.
template <class I>
LS_KERNEL(kThreads)
rows_of_entries_kernel(const I* ptr, int64_t rows, I* row) {
  for_items<32>(rows, [&](const auto& team, int64_t i) {
    team.each([&](int lane) {
      for (int64_t p = ptr[i] + lane; p < ptr[i + 1]; p += 32) row[p] = static_cast<I>(i);
    });
  });
}

}  // namespace learnsolve::cuda
