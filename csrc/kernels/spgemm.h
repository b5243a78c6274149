// The three derivatives of the trilinear form
//
//     Phi(a, b, g) = sum_f a[i(f)] b[j(f)] g[t(f)]
//
// over the products f of C = A B: dPhi/dg is C (spgemm_rows), dPhi/da the gradient for A
// (spgemm_left), dPhi/db that for B (spgemm_columns, which can give dPhi/da in the same pass).
//
// Products are numbered in the order of A's entries and, for each entry (i, k), of the entries of row k of B.
// t(f), the place in C, is read from a plan, or found without one. It is negative for a product that C has
// no entry for. Each result is summed in an order that depends on the patterns alone.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/lanes.h"

namespace learnsolve::LEARNSOLVE_ISA {

// t(f) from the plan.
template <bool Masked>
struct PlannedPlace {
  const int32_t* LS_RESTRICT positions;
  template <class I>
  LS_INLINE void begin(const ProductView<I>&, int64_t) {}
  template <class I>
  LS_INLINE void end(const ProductView<I>&, int64_t) {}
  LS_INLINE int64_t at(int64_t f, int64_t) const { return positions[f]; }
  LS_INLINE bool missing(int64_t t) const { return Masked && t < 0; }
};

// t(f) from an array over the columns of C that holds the places of one row's entries, -1 elsewhere.
template <class I>
struct MarkedPlace {
  const I* LS_RESTRICT columns;
  I* LS_RESTRICT marker;
  LS_INLINE void begin(const ProductView<I>& P, int64_t i) {
    for (int64_t t = P.c_ptr[i]; t < P.c_ptr[i + 1]; ++t) marker[P.c_idx[t]] = static_cast<I>(t);
  }
  LS_INLINE void end(const ProductView<I>& P, int64_t i) {
    for (int64_t t = P.c_ptr[i]; t < P.c_ptr[i + 1]; ++t) marker[P.c_idx[t]] = I(-1);
  }
  LS_INLINE int64_t at(int64_t, int64_t q) const { return marker[columns[q]]; }
  LS_INLINE bool missing(int64_t t) const { return t < 0; }
};

template <class T, class I, class Place>
LS_INLINE void product_rows(const ProductView<I>& P, Place place, int64_t r0, int64_t r1, int64_t f,
                            const T* LS_RESTRICT a, const T* LS_RESTRICT b, T* LS_RESTRICT c,
                            bool accumulate) {
  if (!accumulate)
    for (int64_t t = P.c_ptr[r0]; t < P.c_ptr[r1]; ++t) c[t] = 0;
  for (int64_t i = r0; i < r1; ++i) {
    place.begin(P, i);
    for (int64_t p = P.a_ptr[i]; p < P.a_ptr[i + 1]; ++p) {
      const int64_t k = P.a_idx[p], end = P.b_ptr[k + 1];
      const T ap = a[p];
      for (int64_t q = P.b_ptr[k]; q < end; ++q, ++f) {
        const int64_t t = place.at(f, q);
        if (!place.missing(t)) c[t] += ap * b[q];
      }
    }
    place.end(P, i);
  }
}

template <class T, class I, class Place>
LS_INLINE void left_rows(const ProductView<I>& P, Place place, int64_t r0, int64_t r1, int64_t f,
                         const T* LS_RESTRICT g, const T* LS_RESTRICT b, T* LS_RESTRICT ga, bool accumulate) {
  for (int64_t i = r0; i < r1; ++i) {
    place.begin(P, i);
    for (int64_t p = P.a_ptr[i]; p < P.a_ptr[i + 1]; ++p) {
      const int64_t k = P.a_idx[p], end = P.b_ptr[k + 1];
      T s = accumulate ? ga[p] : T(0);
      for (int64_t q = P.b_ptr[k]; q < end; ++q, ++f) {
        const int64_t t = place.at(f, q);
        if (!place.missing(t)) s += g[t] * b[q];
      }
      ga[p] = s;
    }
    place.end(P, i);
  }
}

// Rows k of B with the column k of A, entry e of which is entry perm[e] of A, in row a_idx[e]; its products
// begin with number starts[e].
template <bool Left, class T, class I, class Place>
LS_INLINE void planned_columns(const ProductView<I>& P, Place place, int64_t k0, int64_t k1,
                               const T* LS_RESTRICT a, const T* LS_RESTRICT b, const T* LS_RESTRICT g,
                               T* LS_RESTRICT ga, T* LS_RESTRICT gb, bool accumulate_ga, bool accumulate_gb) {
  for (int64_t k = k0; k < k1; ++k) {
    const int64_t begin = P.b_ptr[k], end = P.b_ptr[k + 1];
    if (!accumulate_gb)
      for (int64_t q = begin; q < end; ++q) gb[q] = 0;
    for (int64_t e = P.a_ptr[k]; e < P.a_ptr[k + 1]; ++e) {
      const int64_t p = P.perm[e];
      const T ap = a[p];
      T s = Left && accumulate_ga ? ga[p] : T(0);
      int64_t f = P.starts[e];
      for (int64_t q = begin; q < end; ++q, ++f) {
        const int64_t t = place.at(f, q);
        if (place.missing(t)) continue;
        const T gt = g[t];
        if (Left) s += gt * b[q];
        gb[q] += ap * gt;
      }
      if (Left) ga[p] = s;
    }
  }
}

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
// C further by a constant. As many rows at once as a vector has lanes, all by the indices of the first row;
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

// The first of idx[t .. end) that is not less than j, by steps that double: rows of B are often much shorter
// than those of C.
template <class I>
LS_INLINE int64_t first_not_less(const I* idx, int64_t t, int64_t end, I j) {
  int64_t step = 1;
  while (t + step <= end && idx[t + step - 1] < j) t += step, step *= 2;
  while (step > 0) {
    if (t + step <= end && idx[t + step - 1] < j) t += step;
    step /= 2;
  }
  return t;
}

// The same without a plan: row k of B is looked up in each row of C that it adds to, both sorted.
template <bool Left, class T, class I>
LS_INLINE void searched_columns(const ProductView<I>& P, int64_t k0, int64_t k1, const T* LS_RESTRICT a,
                                const T* LS_RESTRICT b, const T* LS_RESTRICT g, T* LS_RESTRICT ga,
                                T* LS_RESTRICT gb, bool accumulate_ga, bool accumulate_gb) {
  for (int64_t k = k0; k < k1; ++k) {
    const int64_t begin = P.b_ptr[k], end = P.b_ptr[k + 1];
    if (!accumulate_gb)
      for (int64_t q = begin; q < end; ++q) gb[q] = 0;
    for (int64_t e = P.a_ptr[k]; e < P.a_ptr[k + 1]; ++e) {
      const int64_t p = P.perm[e], i = P.a_idx[e], c_end = P.c_ptr[i + 1];
      const T ap = a[p];
      T s = Left && accumulate_ga ? ga[p] : T(0);
      int64_t t = P.c_ptr[i];
      for (int64_t q = begin; q < end; ++q) {
        const I j = P.b_idx[q];
        t = first_not_less(P.c_idx, t, c_end, j);
        if (t == c_end) break;
        if (P.c_idx[t] != j) continue;
        if (Left) s += g[t] * b[q];
        gb[q] += ap * g[t];
      }
      if (Left) ga[p] = s;
    }
  }
}

// Rows r0 <= i < r1, the first product of which has number f; `uniform`, as uniform_product_rows says.
// `marker`: a place for each column of C for the search, all -1 before and after; not read if there is a
// plan.
template <class T, class I>
void spgemm_rows(const ProductView<I>& P, int64_t r0, int64_t r1, int64_t f, bool uniform, const T* a,
                 const T* b, T* c, I* marker, bool accumulate) {
  if (!P.positions) return product_rows(P, MarkedPlace<I>{P.b_idx, marker}, r0, r1, f, a, b, c, accumulate);
  if (uniform) {
    const int64_t done = accumulate ? uniform_product_rows<true>(P, r0, r1, f, a, b, c)
                                    : uniform_product_rows<false>(P, r0, r1, f, a, b, c);
    for (int64_t p = P.a_ptr[r0]; p < P.a_ptr[r0 + 1]; ++p)
      f += done * (P.b_ptr[P.a_idx[p] + 1] - P.b_ptr[P.a_idx[p]]);
    r0 += done;
  }
  if (P.masked)
    product_rows(P, PlannedPlace<true>{P.positions}, r0, r1, f, a, b, c, accumulate);
  else
    product_rows(P, PlannedPlace<false>{P.positions}, r0, r1, f, a, b, c, accumulate);
}

template <class T, class I>
void spgemm_left(const ProductView<I>& P, int64_t r0, int64_t r1, int64_t f, const T* g, const T* b, T* ga,
                 I* marker, bool accumulate) {
  if (!P.positions)
    left_rows(P, MarkedPlace<I>{P.b_idx, marker}, r0, r1, f, g, b, ga, accumulate);
  else if (P.masked)
    left_rows(P, PlannedPlace<true>{P.positions}, r0, r1, f, g, b, ga, accumulate);
  else
    left_rows(P, PlannedPlace<false>{P.positions}, r0, r1, f, g, b, ga, accumulate);
}

template <bool Left, class T, class I>
LS_INLINE void columns_pass(const ProductView<I>& P, int64_t k0, int64_t k1, bool uniform, const T* a,
                            const T* b, const T* g, T* ga, T* gb, bool add_a, bool add_b) {
  if (!P.positions) return searched_columns<Left>(P, k0, k1, a, b, g, ga, gb, add_a, add_b);
  if (uniform && add_a)
    k0 += add_b ? uniform_columns<Left, true, true>(P, k0, k1, a, b, g, ga, gb)
                : uniform_columns<Left, true, false>(P, k0, k1, a, b, g, ga, gb);
  else if (uniform)
    k0 += add_b ? uniform_columns<Left, false, true>(P, k0, k1, a, b, g, ga, gb)
                : uniform_columns<Left, false, false>(P, k0, k1, a, b, g, ga, gb);
  if (P.masked)
    planned_columns<Left>(P, PlannedPlace<true>{P.positions}, k0, k1, a, b, g, ga, gb, add_a, add_b);
  else
    planned_columns<Left>(P, PlannedPlace<false>{P.positions}, k0, k1, a, b, g, ga, gb, add_a, add_b);
}

// Rows k0 <= k < k1 of B. In P, a_ptr, a_idx and perm are the structure of A^T. Without ga (and b) only gb.
template <class T, class I>
void spgemm_columns(const ProductView<I>& P, int64_t k0, int64_t k1, bool uniform, const T* a, const T* b,
                    const T* g, T* ga, T* gb, bool add_a, bool add_b) {
  if (ga)
    columns_pass<true>(P, k0, k1, uniform, a, b, g, ga, gb, add_a, add_b);
  else
    columns_pass<false>(P, k0, k1, uniform, a, b, g, ga, gb, add_a, add_b);
}

}  // namespace learnsolve::LEARNSOLVE_ISA
