// Gradients of the values of a triangular solve (kernels/sptrsv.h).
#pragma once

#include "kernels/sddmm.h"
#include "kernels/sptrsv_row.h"

namespace learnsolve::LEARNSOLVE_ISA {

template <class T>
LS_INLINE void subtract(T* at, T g, bool accumulate) {
  *at = accumulate ? *at - g : -g;
}

// Rows i .. i + n - 1 of a uniform run, L entries each, one column.
template <int L, class T, class I>
LS_INLINE void gradient_run(const CsrView<T, I>& A, int64_t i, int64_t n, int64_t stride, const T* u,
                            const T* w, T* ga, bool accumulate) {
  constexpr int V = kLanes<T>;
  const int64_t first = A.ptr[i];
  const T* ws[L];
  T* at[L];
  bool dense = stride == L;
#pragma GCC unroll 8
  for (int l = 0; l < L; ++l) {
    ws[l] = w + A.idx[first + l];
    at[l] = ga + (A.perm ? static_cast<int64_t>(A.perm[first + l]) : first + l);
    dense = dense && at[l] == at[0] + l;
  }
  int64_t t = 0;
  if constexpr (kShuffles<L, T>) {
    LaneWeaver<L, T> lanes;
    for (; dense && t + V <= n; t += V) {
      const auto ui = load(u + i + t);
#pragma GCC unroll 8
      for (int l = 0; l < L; ++l) lanes.lanes[l] = rounded(-ui * load(ws[l] + t));
#pragma GCC unroll 8
      for (int s = 0; s < L; ++s) {
        T* to = at[0] + t * L + s * V;
        prefetch<true>(to);
        store(to, accumulate ? load(to) + lanes.weave(s) : lanes.weave(s));
      }
    }
  }
  for (; t < n; ++t)
#pragma GCC unroll 8
    for (int l = 0; l < L; ++l) subtract(at[l] + t * stride, rounded(u[i + t] * ws[l][t]), accumulate);
}

template <bool Perm, bool Accumulate, class T, class I>
LS_INLINE void gradient_rows(const CsrView<T, I>& A, int64_t i, int64_t end, const T* LS_RESTRICT u,
                             const T* LS_RESTRICT w, T* LS_RESTRICT ga) {
  for (; i < end; ++i) {
    const T ui = u[i];
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
      subtract(ga + (Perm ? static_cast<int64_t>(A.perm[p]) : p), rounded(ui * w[A.idx[p]]), Accumulate);
  }
}

// -<u_i, w_j> for the entries (i, j) of rows r0 <= i < r1, which are in the order of their places.
template <class T, class I>
void sptrsv_gradient(const TriangleView<T, I>& S, int64_t r0, int64_t r1, const T* u, const T* w, int64_t k,
                     T* ga, bool accumulate) {
  const CsrView<T, I>& A = S.A;
  if (k > 1) {
    for (int64_t i = r0; i < r1; ++i)
      for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
        subtract(ga + (A.perm ? static_cast<int64_t>(A.perm[p]) : p),
                 row_row_dot(u + i * k, w + static_cast<int64_t>(A.idx[p]) * k, k), accumulate);
    return;
  }
  for (int64_t t = 0; t < S.n_blocks; ++t) {
    const I* block = S.blocks + 3 * t;
    const int64_t i = block[0] > r0 ? block[0] : r0, end = block[3] < r1 ? block[3] : r1, stride = block[2];
    if (i >= end) continue;
    switch (block[1]) {
      case 1: gradient_run<1>(A, i, end - i, stride, u, w, ga, accumulate); break;
      case 2: gradient_run<2>(A, i, end - i, stride, u, w, ga, accumulate); break;
      case 3: gradient_run<3>(A, i, end - i, stride, u, w, ga, accumulate); break;
      case 4: gradient_run<4>(A, i, end - i, stride, u, w, ga, accumulate); break;
      case 5: gradient_run<5>(A, i, end - i, stride, u, w, ga, accumulate); break;
      default:
        if (A.perm)
          accumulate ? gradient_rows<true, true>(A, i, end, u, w, ga)
                     : gradient_rows<true, false>(A, i, end, u, w, ga);
        else
          accumulate ? gradient_rows<false, true>(A, i, end, u, w, ga)
                     : gradient_rows<false, false>(A, i, end, u, w, ga);
    }
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
