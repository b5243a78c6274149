// One row of a triangular solve (kernels/sptrsv.h), one column or several.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/lanes.h"
#include "kernels/spmm.h"

namespace learnsolve::LEARNSOLVE_ISA {

// A product that must not be fused with the subtraction that follows: the compiler may fuse either factor
// of b r - m x, and would not do so consistently.
template <class V>
LS_INLINE V rounded(V v) {
#if defined(__x86_64__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
  return v;
}

// The entries of a row but the diagonal, farthest first: places far, far + step, ... `count` of them.
template <class T, class I>
struct TriangleRow {
  int64_t far, count, step;
  T reciprocal;

  LS_INLINE TriangleRow(const TriangleView<T, I>& S, int64_t i) {
    const int64_t begin = S.A.ptr[i], end = S.A.ptr[i + 1];
    count = end - begin - !S.unit;
    step = S.upper ? -1 : 1;
    far = S.upper ? end - 1 : begin;
    reciprocal = S.unit ? T(1) : T(1) / value_at(S.A, S.upper ? begin : end - 1);
  }
};

// Sums of long rows run side by side: one alone would wait for each addition.
inline constexpr int64_t kLongRow = 16;

// Row i, one column. `neighbor` is the result of the row before in the order of the sweep, if Chained.
template <bool Chained, class T, class I>
LS_INLINE T solve_row(const TriangleView<T, I>& S, const TriangleRow<T, I>& row, int64_t i, T bi, const T* x,
                      T neighbor) {
  T s = rounded(bi * row.reciprocal);
  int64_t p = row.far, left = row.count;
  if (left == 0) return s;
  const auto coefficient = [&](int64_t at) { return value_at(S.A, at) * row.reciprocal; };
  if (left > kLongRow) {
    T s1 = 0, s2 = 0, s3 = 0;
    for (; left > 4; left -= 4, p += 4 * row.step) {
      s -= coefficient(p) * x[S.A.idx[p]];
      s1 -= coefficient(p + row.step) * x[S.A.idx[p + row.step]];
      s2 -= coefficient(p + 2 * row.step) * x[S.A.idx[p + 2 * row.step]];
      s3 -= coefficient(p + 3 * row.step) * x[S.A.idx[p + 3 * row.step]];
    }
    s = (s + s1) + (s2 + s3);
  }
  for (; left > 1; --left, p += row.step) s -= coefficient(p) * x[S.A.idx[p]];
  const int64_t j = S.A.idx[p];
  if (Chained && j == i - row.step) return s - coefficient(p) * neighbor;
  return s - coefficient(p) * x[j];
}

// N vectors of row i.
template <int N, class T, class I>
LS_INLINE void solve_tile(const TriangleView<T, I>& S, const TriangleRow<T, I>& row, const T* bi, T* xi,
                          const T* x, int64_t k, int64_t c) {
  constexpr int V = kLanes<T>;
  typename Lanes<T>::vector s[N];
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) s[v] = rounded(load(bi + c + v * V) * row.reciprocal);
  int64_t p = row.far;
  for (int64_t left = row.count; left > 0; --left, p += row.step) {
    const T m = value_at(S.A, p) * row.reciprocal;
    const T* xj = x + static_cast<int64_t>(S.A.idx[p]) * k + c;
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) s[v] -= m * load(xj + v * V);
  }
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) store(xi + c + v * V, s[v]);
}

// The last end - c <= N columns.
template <int N, class T, class I>
LS_INLINE void solve_columns(const TriangleView<T, I>& S, const TriangleRow<T, I>& row, const T* bi, T* xi,
                             const T* x, int64_t k, int64_t c, int64_t end) {
  if constexpr (N > 1) {
    if (end - c < N) return solve_columns<N - 1>(S, row, bi, xi, x, k, c, end);
  }
  T s[N];
#pragma GCC unroll 8
  for (int e = 0; e < N; ++e) s[e] = rounded(bi[c + e] * row.reciprocal);
  int64_t p = row.far;
  for (int64_t left = row.count; left > 0; --left, p += row.step) {
    const T m = value_at(S.A, p) * row.reciprocal;
    const T* xj = x + static_cast<int64_t>(S.A.idx[p]) * k + c;
#pragma GCC unroll 8
    for (int e = 0; e < N; ++e) s[e] -= m * xj[e];
  }
#pragma GCC unroll 8
  for (int e = 0; e < N; ++e) xi[c + e] = s[e];
}

template <int N, class T, class I>
LS_INLINE void solve_tiles(const TriangleView<T, I>& S, const TriangleRow<T, I>& row, const T* bi, T* xi,
                           const T* x, int64_t k, int64_t c, int64_t end) {
  constexpr int V = kLanes<T>;
  for (; c + N * V <= end; c += N * V) solve_tile<N>(S, row, bi, xi, x, k, c);
  if (c == end) return;
  if constexpr (N > 1)
    solve_tiles<N / 2>(S, row, bi, xi, x, k, c, end);
  else
    solve_columns<V - 1>(S, row, bi, xi, x, k, c, end);
}

}  // namespace learnsolve::LEARNSOLVE_ISA
