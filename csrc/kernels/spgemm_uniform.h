// Sparse products over uniform blocks of rows: as many rows at once as a vector has lanes, by the indices of
// the first one (kernels/spgemm.h).
#pragma once

#include "kernels/csr_view.h"
#include "kernels/lanes.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Lanes p[0], p[stride], ...
template <class T>
LS_INLINE typename Lanes<T>::vector gather(const T* LS_RESTRICT p, int64_t stride) {
  typename Lanes<T>::vector v;
#pragma GCC unroll 8
  for (int e = 0; e < kLanes<T>; ++e) v[e] = p[e * stride];
  return v;
}
template <class T>
LS_INLINE void spread(T* LS_RESTRICT p, int64_t stride, typename Lanes<T>::vector v) {
#pragma GCC unroll 8
  for (int e = 0; e < kLanes<T>; ++e) p[e * stride] = v[e];
}

// A uniform block of rows: each repeats the one before, its entries, those of its rows of B and its places in
// C shifted by a constant. As many rows at once as a vector has lanes, all by the indices of the first row;
// every sum has the order that it has in product_rows. Rows of C hold at most kUniformLength entries. Returns
// how many rows are done.
inline constexpr int kUniformLength = 128;

template <int W, bool Accumulate, class T, class I>
LS_INLINE int64_t uniform_product_tiles(const ProductView<I>& P, int64_t r0, int64_t rows, int64_t n,
                                        int64_t f0, const T* LS_RESTRICT a, const T* LS_RESTRICT b,
                                        T* LS_RESTRICT c) {
  constexpr int V = kLanes<T>;
  typename Lanes<T>::vector sums[kUniformLength][W], ap[W];
  const int64_t p0 = P.a_ptr[r0], entries = P.a_ptr[r0 + 1] - p0;
  const int64_t c0 = P.c_ptr[r0], length = P.c_ptr[r0 + 1] - c0;
  for (; n + W * V <= rows; n += W * V) {
    T* LS_RESTRICT cn = c + c0 + n * length;
    for (int64_t t = 0; t < length; ++t)
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w)
        sums[t][w] = Accumulate ? gather(cn + t + w * V * length, length) : typename Lanes<T>::vector{};
    int64_t f = f0;
    for (int64_t p = p0; p < p0 + entries; ++p) {
      const int64_t k = P.a_idx[p], q0 = P.b_ptr[k], m = P.b_ptr[k + 1] - q0;
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) ap[w] = gather(a + p + (n + w * V) * entries, entries);
      const T* LS_RESTRICT bn = b + q0 + n * m;
      for (int64_t j = 0; j < m; ++j, ++f) {
        const int64_t t = P.positions[f];
        if (t < 0) continue;
#pragma GCC unroll 4
        for (int w = 0; w < W; ++w) sums[t - c0][w] += ap[w] * gather(bn + j + w * V * m, m);
      }
    }
    for (int64_t t = 0; t < length; ++t)
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) spread(cn + t + w * V * length, length, sums[t][w]);
  }
  return n;
}

// Four vectors at once: their sums do not wait for one another, 83 us instead of 104 for the square of a
// tridiagonal matrix of 16384 rows, float64 (and 190 by product_rows).
template <bool Accumulate, class T, class I>
LS_INLINE int64_t uniform_product_rows(const ProductView<I>& P, int64_t r0, int64_t r1, int64_t f, const T* a,
                                       const T* b, T* c) {
  const int64_t n = uniform_product_tiles<4, Accumulate>(P, r0, r1 - r0, 0, f, a, b, c);
  return uniform_product_tiles<1, Accumulate>(P, r0, r1 - r0, n, f, a, b, c);
}

// The same for a uniform block of rows k of B and columns of A, for both gradients.
template <bool Left, bool AddA, bool AddB, class T, class I>
LS_INLINE int64_t uniform_columns(const ProductView<I>& P, int64_t k0, int64_t k1, const T* LS_RESTRICT a,
                                  const T* LS_RESTRICT b, const T* LS_RESTRICT g, T* LS_RESTRICT ga,
                                  T* LS_RESTRICT gb) {
  constexpr int V = kLanes<T>;
  typename Lanes<T>::vector bs[kUniformLength], sums[kUniformLength];
  const int64_t q0 = P.b_ptr[k0], m = P.b_ptr[k0 + 1] - q0;
  const int64_t e0 = P.a_ptr[k0], entries = P.a_ptr[k0 + 1] - e0;
  int64_t n = 0;
  for (; n + V <= k1 - k0; n += V) {
    for (int64_t j = 0; j < m; ++j) {
      if (Left) bs[j] = gather(b + q0 + n * m + j, m);
      sums[j] = AddB ? gather(gb + q0 + n * m + j, m) : typename Lanes<T>::vector{};
    }
    for (int64_t e = e0; e < e0 + entries; ++e) {
      const int64_t p = P.perm[e], stride = P.perm[e + entries] - p, at = p + n * stride;
      const int32_t* LS_RESTRICT first = P.positions + P.starts[e];
      const int32_t* LS_RESTRICT second = P.positions + P.starts[e + entries];
      const auto ap = gather(a + at, stride);
      typename Lanes<T>::vector s{};
      if (Left && AddA) s = gather(ga + at, stride);
      for (int64_t j = 0; j < m; ++j) {
        const int64_t t = first[j], step = second[j] - t;
        if (t < 0) continue;
        const auto gt = gather(g + t + n * step, step);
        if (Left) s += gt * bs[j];
        sums[j] += ap * gt;
      }
      if (Left) spread(ga + at, stride, s);
    }
    for (int64_t j = 0; j < m; ++j) spread(gb + q0 + n * m + j, m, sums[j]);
  }
  return n;
}

}  // namespace learnsolve::LEARNSOLVE_ISA
