// Sums over the columns of rows, and over the members of a batch that share the result.
#pragma once

#include "kernels/chunk_pass.cuh"
#include "kernels/groups.cuh"

namespace learnsolve::cuda {

// out_i += sum_c (u_ic + a_c w_ic) w_ic, or u_ic w_ic without a, over the columns that act: all without acts.
template <class T>
struct RowDots {
  Vectors<const T> acts, a, u, w;
  int64_t n, k;
  Groups groups;
  BatchResult<T> out;
};

template <int Lanes, class T>
LS_KERNEL(kThreads)
row_dots_kernel(LS_ARGUMENT RowDots<T> P) {
  for_members(P.groups, [&](const Members& members) {
    T* const out = P.out.of(members);
    for_items<Lanes>(P.n, [&](const auto& team, int64_t i) {
      T sum = 0;
      for (int64_t b = members.b0; b < members.b1; ++b) {
        const T* const acts = P.acts.of(b);
        const T* const a = P.a.of(b);
        for (int64_t c = team.lane; c < P.k; c += Lanes) {
          if (acts && acts[c] == T(0)) continue;
          const T w = P.w.of(b)[i * P.k + c], u = P.u.of(b)[i * P.k + c];
          sum += a ? (u + a[c] * w) * w : u * w;
        }
      }
      const T total = team.sum(sum);
      if (team.first()) out[i] += total;
    });
  });
}

}  // namespace learnsolve::cuda
