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

#include "kernels/vectors.h"
#include "kernels/views.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Sparse products over uniform blocks of rows: as many rows at once as a vector has lanes, by the indices of
// the first one.

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

// C = A B before anything is planned: columns and values of a row of C in one pass over its products
// (Gustavson). Source: Gustavson, "Two Fast Algorithms for Sparse Matrices: Multiplication and Permuted
// Transposition", ACM TOMS 4 (1978).

// Sorts columns [begin, end) of C together with their values, by insertion.
template <class T, class I>
LS_INLINE void insert_columns(int64_t begin, int64_t end, I* LS_RESTRICT c_idx, T* LS_RESTRICT c) {
  for (int64_t next = begin + 1; next < end; ++next) {
    const I j = c_idx[next];
    const T value = c[next];
    int64_t t = next;
    for (; t > begin && c_idx[t - 1] > j; --t) c_idx[t] = c_idx[t - 1], c[t] = c[t - 1];
    c_idx[t] = j, c[t] = value;
  }
}

// Rows from i on, entries from `end` on, until one that is too long to be sorted here: returns its number, or
// r1 when all rows are done. place[j], for the columns of that row, is where j is; before, it must be less
// than `end` for every column. C must have room for an entry per product.
//
// Each sum has the order that it has in product_rows, and so the same bits.
template <class T, class I>
int64_t spgemm_fused(const ProductView<I>& P, int64_t i, int64_t r1, int64_t end, const T* LS_RESTRICT a,
                     const T* LS_RESTRICT b, I* LS_RESTRICT place, I* LS_RESTRICT c_ptr, I* LS_RESTRICT c_idx,
                     T* LS_RESTRICT c) {
  constexpr int64_t kInserted = 16;
  for (; i < r1; ++i) {
    const int64_t begin = end;
    bool sorted = true;
    I last = -1;
    for (int64_t p = P.a_ptr[i]; p < P.a_ptr[i + 1]; ++p) {
      const int64_t k = P.a_idx[p], q1 = P.b_ptr[k + 1];
      const T ap = a[p];
      for (int64_t q = P.b_ptr[k]; q < q1; ++q) {
        const I j = P.b_idx[q];
        const bool fresh = place[j] < begin;
        const I t = fresh ? static_cast<I>(end) : place[j];
        place[j] = t;
        c_idx[end] = j;  // kept only if it is fresh
        sorted &= !fresh | (j > last);
        last = fresh ? j : last;
        end += fresh;
        const T sum = c[t];
        c[t] = (fresh ? T(0) : sum) + ap * b[q];
      }
    }
    c_ptr[i + 1] = static_cast<I>(end);
    if (sorted) continue;
    if (end - begin > kInserted) return i;
    insert_columns(begin, end, c_idx, c);
  }
  return r1;
}

// c = alpha a + beta b on the union of two patterns (kernels/views.h), and its adjoint.
//
// Four entries at a time: the next values of an operand are spread over the lanes in which it has an entry
// (one permute by a table of 16), the others cleared. The adjoint packs the lanes together and stores all
// four; the surplus is overwritten by the next store. Measured for a tridiagonal matrix, n = 32768, plus its
// random permutation (164k entries), float64, one thread: 75 us against 117 for stores through positions and
// 220 for loads through positions.

#if defined(__AVX2__)
#define LS_QUADS 1

// Lanes in words of 32 bits, which is what permutes take: W of them make a value.
template <int W>
struct QuadTables {
  alignas(32) int32_t spread[16][4 * W];  // lane l takes value number (bits set below l)
  alignas(32) int32_t keep[16][4 * W];
  alignas(32) int32_t pack[16][4 * W];  // lane l takes the value of the l-th bit that is set

  constexpr QuadTables() : spread(), keep(), pack() {
    for (int mask = 0; mask < 16; ++mask) {
      int set = 0;
      for (int l = 0; l < 4; ++l) {
        const bool here = mask >> l & 1;
        for (int w = 0; w < W; ++w) {
          spread[mask][l * W + w] = set * W + w;
          keep[mask][l * W + w] = here ? -1 : 0;
          if (here) pack[mask][set * W + w] = l * W + w;
        }
        set += here;
      }
    }
  }
};
template <int W>
inline constexpr QuadTables<W> quad_tables{};

template <class T>
struct Quad;
template <>
struct Quad<double> {
  typedef double vector __attribute__((vector_size(32), aligned(8), may_alias));
  typedef float words __attribute__((vector_size(32)));
  typedef int32_t lanes __attribute__((vector_size(32), may_alias));
};
template <>
struct Quad<float> {
  typedef float vector __attribute__((vector_size(16), aligned(4), may_alias));
  typedef float words __attribute__((vector_size(16)));
  typedef int32_t lanes __attribute__((vector_size(16), may_alias));
};

template <class T>
LS_INLINE typename Quad<T>::vector quad(const T* p) {
  return *reinterpret_cast<const typename Quad<T>::vector*>(p);
}
template <class T>
LS_INLINE typename Quad<T>::vector permute_quad(typename Quad<T>::vector v, const int32_t* table) {
  using Q = Quad<T>;
  return (typename Q::vector)LS_SHUFFLE((typename Q::words)v,
                                        *reinterpret_cast<const typename Q::lanes*>(table));
}
template <class T>
LS_INLINE typename Quad<T>::vector clear_quad(typename Quad<T>::vector v, const int32_t* table) {
  using Q = Quad<T>;
  return (typename Q::vector)((typename Q::lanes)v & *reinterpret_cast<const typename Q::lanes*>(table));
}
#endif

// Where four values from p on can be read; the last ones of the array are read from a padded copy.
template <class T>
struct Padded {
  const T* values;
  int64_t n, kept;
  T last[8];

  LS_INLINE Padded(const T* values_, int64_t n_) : values(values_), n(n_), kept(n_ < 4 ? n_ : 4) {
    for (int64_t i = 0; i < 8; ++i) last[i] = i < kept ? values[n - kept + i] : T(0);
  }
  LS_INLINE const T* at(int64_t p) const { return p + 4 <= n ? values + p : last + (p - (n - kept)); }
};

// Chunks chunk0 <= c < chunk1 of an output of n entries, for operands of na and nb. An absent entry is not
// multiplied: a NaN or an infinity among the factors meets no zero.
template <class T, class I>
void add(const uint8_t* codes, const I* starts, int64_t chunk0, int64_t chunk1, int64_t n, const T* a,
         int64_t na, const T* b, int64_t nb, T alpha, T beta, T* LS_RESTRICT c) {
  int64_t pa = starts[2 * chunk0], pb = starts[2 * chunk0 + 1];
  const int64_t end = chunk1 * kUnionChunk < n ? chunk1 * kUnionChunk : n;
  int64_t q = chunk0 * (kUnionChunk / 4);
#ifdef LS_QUADS
  constexpr const auto& tables = quad_tables<sizeof(T) / 4>;
  const int64_t quads = end / 4;
  const auto four = [&]<bool WholeA>(const T* at_a, const T* at_b) {
    const unsigned code = codes[q], ma = code & 15, mb = code >> 4;
    auto va = alpha * quad(at_a);
    if constexpr (!WholeA) va = clear_quad<T>(permute_quad<T>(va, tables.spread[ma]), tables.keep[ma]);
    const auto vb = clear_quad<T>(permute_quad<T>(beta * quad(at_b), tables.spread[mb]), tables.keep[mb]);
    *reinterpret_cast<typename Quad<T>::vector*>(c + 4 * q) = va + vb;
    pa += WholeA ? 4 : __builtin_popcount(ma);
    pb += __builtin_popcount(mb);
  };
  if (na == n)
    for (; q < quads && pb + 4 <= nb; ++q) four.template operator()<true>(a + pa, b + pb);
  else
    for (; q < quads && pa + 4 <= na && pb + 4 <= nb; ++q) four.template operator()<false>(a + pa, b + pb);
  const Padded<T> A(a, na), B(b, nb);
  for (; q < quads; ++q) four.template operator()<false>(A.at(pa), B.at(pb));
#endif
  for (int64_t i = 4 * q; i < end; ++i) {
    const int code = codes[i >> 2] >> (i & 3);
    T sum = 0;
    if (code & 1) sum = alpha * a[pa++];
    if (code & 16) sum += beta * b[pb++];
    c[i] = sum;
  }
  (void)na, (void)nb;
}

// The adjoint: ga and gb are the entries of g that A and B have, times the factors. Either may be null.
template <class T, class I>
void add_backward(const uint8_t* codes, const I* starts, int64_t chunk0, int64_t chunk1, int64_t n,
                  const T* g, T alpha, T beta, T* LS_RESTRICT ga, T* LS_RESTRICT gb) {
  int64_t pa = starts[2 * chunk0], pb = starts[2 * chunk0 + 1];
  const int64_t end = chunk1 * kUnionChunk < n ? chunk1 * kUnionChunk : n;
  int64_t q = chunk0 * (kUnionChunk / 4);
#ifdef LS_QUADS
  constexpr const auto& tables = quad_tables<sizeof(T) / 4>;
  const int64_t quads = end / 4;
  const int64_t end_a = starts[2 * chunk1], end_b = starts[2 * chunk1 + 1];  // the end of this part
  const bool whole = end_a - pa == end - 4 * q;
  const auto run = [&]<bool A, bool B, bool WholeA>() {
    using vector = typename Quad<T>::vector;
    for (; q < quads && (WholeA || !A || pa + 4 <= end_a) && (!B || pb + 4 <= end_b); ++q) {
      const unsigned code = codes[q], ma = code & 15, mb = code >> 4;
      const vector v = quad(g + 4 * q);
      if constexpr (A) {
        const vector va = alpha * v;
        *reinterpret_cast<vector*>(ga + pa) = WholeA ? va : permute_quad<T>(va, tables.pack[ma]);
      }
      if constexpr (B) *reinterpret_cast<vector*>(gb + pb) = permute_quad<T>(beta * v, tables.pack[mb]);
      pa += WholeA ? 4 : __builtin_popcount(ma);
      pb += __builtin_popcount(mb);
    }
  };
  if (ga && gb)
    whole ? run.template operator()<true, true, true>() : run.template operator()<true, true, false>();
  else
    ga ? run.template operator()<true, false, false>() : run.template operator()<false, true, false>();
#endif
  for (int64_t i = 4 * q; i < end; ++i) {
    const int code = codes[i >> 2] >> (i & 3);
    if (code & 1) {
      if (ga) ga[pa] = alpha * g[i];
      ++pa;
    }
    if (code & 16) {
      if (gb) gb[pb] = beta * g[i];
      ++pb;
    }
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
