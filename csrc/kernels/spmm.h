// y_i = sum_p a_p x_{j(p)}  over the entries p of row i, for one vector or k columns (row-major).
//
// The loop over rows is separate from what is done with a row's result (the epilogue), so that
// products, residuals and relaxation sweeps share it. An epilogue has
//     rows(i, n, s)        s[0..n): results of rows i .. i + n - 1, one column
//     columns(i, j, n, s)  s[0..n): results of row i, columns j .. j + n - 1
//     begin(b), end(b)     around the rows of block b
// Each result is summed in an order that depends on its row alone: no partition of the blocks over
// threads can change a bit.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/irregular_rows.h"
#include "kernels/lanes.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Vectors of a row of x that are worked on together: sums that stay in registers.
#if defined(__AVX2__)
inline constexpr int kTileVectors = 8;
#else
inline constexpr int kTileVectors = 4;
#endif

// A block whose rows all have L entries and whose columns advance by one: x is read contiguously. Entry l of
// the first row is at first[l] and meets x at columns[l]; `apart`: a structure with `perm`, whose entry l
// forms a sequence of its own. This is a function, not inlined and without the index type, so that 32- and
// 64-bit indices share it. Its copy of the epilogue keeps the sums in registers.
template <int L, class T, class Epilogue>
LS_FUNCTION void uniform_rows(const T* const* first, const T* const* columns, bool apart, int64_t r0,
                              int64_t n, Epilogue& epilogue) {
  constexpr int V = kRows<T>;
  const T* LS_RESTRICT a[L];
  const T* LS_RESTRICT xs[L];
#pragma GCC unroll 16
  for (int l = 0; l < L; ++l) a[l] = first[l], xs[l] = columns[l];
  Epilogue out = epilogue;
  int64_t t = 0;
  T s[V];
  if constexpr (kShuffles<L, T>) {
    LanePicker<L, T> lanes;
    if (apart) {
      // `t + V < n`: the last vector reads up to the entry of row t + V.
      for (; t + V < n; t += V) {
        typename Lanes<T>::vector sum{};
#pragma GCC unroll 16
        for (int l = 0; l < L; ++l) {
          if (l % 2 == 0) prefetch(a[L - 1] + t * L + l * V);
          lanes.read(a[l] + t * L);
          sum += lanes.pick(0) * load(xs[l] + t);
        }
        store(s, sum);
        out.rows(r0 + t, V, s);
      }
    } else {
      for (; t + V <= n; t += V) {
        typename Lanes<T>::vector sum{};
        lanes.read(a[0] + t * L);
#pragma GCC unroll 16
        for (int l = 0; l < L; l += 2) prefetch(a[0] + t * L + l * V);
#pragma GCC unroll 16
        for (int l = 0; l < L; ++l) sum += lanes.pick(l) * load(xs[l] + t);
        store(s, sum);
        out.rows(r0 + t, V, s);
      }
    }
  }
  for (; t + V <= n; t += V) {
    for (int e = 0; e < V; ++e) s[e] = a[0][(t + e) * L] * xs[0][t + e];
#pragma GCC unroll 16
    for (int l = 1; l < L; ++l)
      for (int e = 0; e < V; ++e) s[e] += a[l][(t + e) * L] * xs[l][t + e];
    out.rows(r0 + t, V, s);
  }
  for (; t < n; ++t) {
    s[0] = a[0][t * L] * xs[0][t];
#pragma GCC unroll 16
    for (int l = 1; l < L; ++l) s[0] += a[l][t * L] * xs[l][t];
    out.rows(r0 + t, 1, s);
  }
  epilogue = out;
}

// Where the entries of the first row of a uniform block are, and what they meet in x.
inline constexpr int64_t kLongestUniform = 9;
template <class T, class I>
LS_INLINE void uniform_entries(const CsrView<T, I>& A, int64_t r0, int64_t length, const T* x, int64_t k,
                               const T** a, const T** xs) {
  for (int64_t l = 0, p = A.ptr[r0]; l < length; ++l, ++p) {
    a[l] = A.values + (A.perm ? static_cast<int64_t>(A.perm[p]) : p);
    xs[l] = x + static_cast<int64_t>(A.idx[p]) * k;
  }
}

template <class T, class I, class Epilogue>
LS_INLINE void vector_block(const CsrView<T, I>& A, int64_t r0, int64_t r1, int64_t length, bool many,
                            const T* x, Epilogue& out) {
  const T *a[kLongestUniform], *xs[kLongestUniform];
  uniform_entries(A, r0, length < kLongestUniform ? length : kLongestUniform, x, 1, a, xs);
  const int64_t n = r1 - r0;
  switch (length) {
    case 1: return uniform_rows<1>(a, xs, A.perm, r0, n, out);
    case 2: return uniform_rows<2>(a, xs, A.perm, r0, n, out);
    case 3: return uniform_rows<3>(a, xs, A.perm, r0, n, out);
    case 4: return uniform_rows<4>(a, xs, A.perm, r0, n, out);
    case 5: return uniform_rows<5>(a, xs, A.perm, r0, n, out);
    case 6: return uniform_rows<6>(a, xs, A.perm, r0, n, out);
    case 7: return uniform_rows<7>(a, xs, A.perm, r0, n, out);
    case 9: return uniform_rows<9>(a, xs, A.perm, r0, n, out);
    default:
      if (A.perm)
        irregular_rows<true>(A, r0, r1, many, x, out);
      else
        irregular_rows<false>(A, r0, r1, many, x, out);
  }
}

template <class T, class I>
LS_INLINE T value_at(const CsrView<T, I>& A, int64_t p) {
  return A.values[A.perm ? static_cast<int64_t>(A.perm[p]) : p];
}

// N vectors of one row of the result: the rows of x are read as vectors, the sums stay in registers.
template <int N, class T, class I, class Epilogue>
LS_INLINE void row_tile(const CsrView<T, I>& A, int64_t i, int64_t j, const T* LS_RESTRICT x, int64_t k,
                        Epilogue& out) {
  constexpr int V = kLanes<T>;
  typename Lanes<T>::vector sum[N] = {};
  for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) {
    const T a = value_at(A, p);
    const T* LS_RESTRICT xr = x + static_cast<int64_t>(A.idx[p]) * k + j;
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) sum[c] += a * load(xr + c * V);
  }
  T s[N * V];
#pragma GCC unroll 8
  for (int c = 0; c < N; ++c) store(s + c * V, sum[c]);
  out.columns(i, j, N * V, s);
}

// The last k - j <= N columns, fewer than a vector has lanes.
template <int N, class T, class I, class Epilogue>
LS_INLINE void row_columns(const CsrView<T, I>& A, int64_t i, int64_t j, const T* LS_RESTRICT x, int64_t k,
                           Epilogue& out) {
  if constexpr (N > 1) {
    if (k - j < N) return row_columns<N - 1>(A, i, j, x, k, out);
  }
  T s[N] = {};
  for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) {
    const T a = value_at(A, p);
    const T* LS_RESTRICT xr = x + static_cast<int64_t>(A.idx[p]) * k + j;
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) s[c] += a * xr[c];
  }
  out.columns(i, j, N, s);
}

// Tiles of N vectors, what is left over in tiles of N/2, ..., 1 vectors and at last in single columns.
template <int N, class T, class I, class Epilogue>
LS_INLINE void row_tiles(const CsrView<T, I>& A, int64_t i, int64_t j, const T* x, int64_t k, Epilogue& out) {
  constexpr int V = kLanes<T>;
  for (; j + N * V <= k; j += N * V) row_tile<N>(A, i, j, x, k, out);
  if (j == k) return;
  if constexpr (N > 1)
    row_tiles<N / 2>(A, i, j, x, k, out);
  else
    row_columns<V - 1>(A, i, j, x, k, out);
}

// K columns of a block as in `uniform_rows`, fewer than a vector has lanes: V rows are K vectors of x. Row by
// row 2 columns take 3.5 times as long as one.
template <int K, class T, class Epilogue>
LS_FUNCTION void narrow_rows(const T* const* first, const T* const* columns, int64_t length, int64_t r0,
                             int64_t n, Epilogue& epilogue) {
  constexpr int V = kLanes<T>;
  typename Lanes<T>::mask row[K];
  for (int e = 0; e < K * V; ++e) row[e / V][e % V] = e / K;
  Epilogue out = epilogue;
  T s[K * V];
  int64_t t = 0;
  for (; t + V <= n; t += V) {
    typename Lanes<T>::vector sum[K] = {};
    for (int64_t l = 0; l < length; ++l) {
      typename Lanes<T>::vector a;
#pragma GCC unroll 8
      for (int e = 0; e < V; ++e) a[e] = first[l][(t + e) * length];
#pragma GCC unroll 4
      for (int v = 0; v < K; ++v) sum[v] += __builtin_shuffle(a, row[v]) * load(columns[l] + t * K + v * V);
    }
#pragma GCC unroll 4
    for (int v = 0; v < K; ++v) store(s + v * V, sum[v]);
#pragma GCC unroll 8
    for (int e = 0; e < V; ++e) out.columns(r0 + t + e, 0, K, s + e * K);
  }
  for (; t < n; ++t) {
    for (int c = 0; c < K; ++c) s[c] = 0;
    for (int64_t l = 0; l < length; ++l)
      for (int c = 0; c < K; ++c) s[c] += first[l][t * length] * columns[l][t * K + c];
    out.columns(r0 + t, 0, K, s);
  }
  epilogue = out;
}

// Several columns, row after row. A and its blocks are copied too: their pointers stay in registers (float64,
// 8 columns: 129 us instead of 159).
template <class T, class I, class Epilogue>
LS_FUNCTION void column_rows(CsrView<T, I> A, const RowBlocks<I> blocks, int64_t b0, int64_t b1, const T* x,
                             int64_t k, Epilogue out) {
  for (int64_t b = b0; b < b1; ++b) {
    const int64_t r0 = blocks.table[2 * b], r1 = blocks.table[2 * b + 2], length = blocks.table[2 * b + 1];
    out.begin(b);
    if ((k == 2 || k == 3) && length > 0 && length <= kLongestUniform) {
      const T *a[kLongestUniform], *xs[kLongestUniform];
      uniform_entries(A, r0, length, x, k, a, xs);
      if (k == 2)
        narrow_rows<2>(a, xs, length, r0, r1 - r0, out);
      else
        narrow_rows<3>(a, xs, length, r0, r1 - r0, out);
    } else {
      for (int64_t i = r0; i < r1; ++i) row_tiles<kTileVectors>(A, i, 0, x, k, out);
    }
    out.end(b);
  }
}

// All rows of the blocks b0 <= b < b1. The epilogue is notified where a block begins and ends. It is copied:
// through a reference its sums would stay in memory, because every store of a result could alias them.
template <class T, class I, class Epilogue>
inline void for_each_row(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                         const T* x, int64_t k, const Epilogue& epilogue) {
  if (k != 1) return column_rows(A, blocks, b0, b1, x, k, epilogue);
  Epilogue out = epilogue;
  const bool many = A.ptr[blocks.table[2 * b1]] - A.ptr[blocks.table[2 * b0]] >= kLongRange;
  for (int64_t b = b0; b < b1; ++b) {
    out.begin(b);
    vector_block(A, blocks.table[2 * b], blocks.table[2 * b + 2], blocks.table[2 * b + 1], many, x, out);
    out.end(b);
  }
}

// y = A x, or y += A x.
template <class T, bool Accumulate>
struct Store {
  T* LS_RESTRICT y;
  int64_t k;
  void begin(int64_t) {}
  void end(int64_t) {}
  LS_INLINE void rows(int64_t i, int n, const T* s) {
    for (int e = 0; e < n; ++e) y[i + e] = Accumulate ? y[i + e] + s[e] : s[e];
  }
  LS_INLINE void columns(int64_t i, int64_t j, int n, const T* s) {
    T* LS_RESTRICT row = y + i * k + j;
    for (int c = 0; c < n; ++c) row[c] = Accumulate ? row[c] + s[c] : s[c];
  }
};

template <class T, class I>
void spmm(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const T* x, int64_t k,
          T* y, bool accumulate) {
  if (accumulate) {
    Store<T, true> out{y, k};
    for_each_row(A, blocks, b0, b1, x, k, out);
  } else {
    Store<T, false> out{y, k};
    for_each_row(A, blocks, b0, b1, x, k, out);
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
