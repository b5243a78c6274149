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

#include "kernels/spgemm_uniform.h"

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
