// Derivatives of the product, which are sampled dense-dense products on the pattern of the matrix.
//
//   sddmm          out_p = <u_i, v_j>              for each entry p = (i, j)
//   spmm_backward  gx_j  = sum_p a_p g_i,  ga_p = <g_i, x_j>   in one pass over the columns j:
//                  every row g_i is loaded once and serves both.
//
// For one column of a matrix of uniform blocks the pass is not the fastest: the product with the transpose
// and the sampled product, run separately, read contiguous vectors (N = 32768 tridiagonal, float64: 38 us
// against 105).
#pragma once

#include "kernels/csr_view.h"
#include "kernels/spmm.h"

namespace learnsolve::LEARNSOLVE_ISA {

// The backward holds sums and x_j in registers: twice what the product holds.
#if defined(__AVX512VL__)
inline constexpr int kBackwardVectors = 8;
#else
inline constexpr int kBackwardVectors = kTileVectors / 2;
#endif

// <u, v> over the columns j .. k, in a fixed order.
template <class T>
LS_INLINE T row_row_dot(const T* LS_RESTRICT u, const T* LS_RESTRICT v, int64_t k) {
  constexpr int V = kLanes<T>;
  typename Lanes<T>::vector s0{}, s1{};
  int64_t j = 0;
  for (; j + 2 * V <= k; j += 2 * V) {
    s0 += load(u + j) * load(v + j);
    s1 += load(u + j + V) * load(v + j + V);
  }
  if (j + V <= k) {
    s0 += load(u + j) * load(v + j);
    j += V;
  }
  T s = sum_lanes(s0 + s1);
  for (; j < k; ++j) s += u[j] * v[j];
  return s;
}

template <bool Accumulate, class T>
LS_INLINE void put(T* at, T value) {
  *at = Accumulate ? *at + value : value;
}

// One column, rows of a uniform block: u and v are read contiguously, out is written contiguously.
template <int L, bool Accumulate, class T, class I>
LS_INLINE void sddmm_uniform_rows(const I* ptr, const I* idx, int64_t r0, int64_t r1, const T* LS_RESTRICT u,
                                  const T* LS_RESTRICT v, T* LS_RESTRICT out) {
  constexpr int V = kLanes<T>;
  const int64_t first = ptr[r0], n = r1 - r0;
  const T* LS_RESTRICT vs[L];
#pragma GCC unroll 16
  for (int l = 0; l < L; ++l) vs[l] = v + idx[first + l];
  T* LS_RESTRICT o = out + first;
  const T* LS_RESTRICT us = u + r0;
  int64_t t = 0;
  if constexpr (kShuffles<L, T>) {
    LaneWeaver<L, T> w;
    for (; t + V <= n; t += V) {
      const auto ui = load(us + t);
#pragma GCC unroll 16
      for (int l = 0; l < L; ++l) w.lanes[l] = ui * load(vs[l] + t);
#pragma GCC unroll 16
      for (int s = 0; s < L; ++s) {
        T* at = o + t * L + s * V;
        prefetch<true>(at);
        store(at, Accumulate ? load(at) + w.weave(s) : w.weave(s));
      }
    }
  }
  for (; t < n; ++t)
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) put<Accumulate>(o + t * L + l, us[t] * vs[l][t]);
}

template <bool Accumulate, class T, class I>
LS_INLINE void sddmm_vector_block(const I* ptr, const I* idx, int64_t r0, int64_t r1, int64_t length,
                                  const T* LS_RESTRICT u, const T* LS_RESTRICT v, T* LS_RESTRICT out) {
  switch (length) {
    case 2: return sddmm_uniform_rows<2, Accumulate>(ptr, idx, r0, r1, u, v, out);
    case 3: return sddmm_uniform_rows<3, Accumulate>(ptr, idx, r0, r1, u, v, out);
    case 4: return sddmm_uniform_rows<4, Accumulate>(ptr, idx, r0, r1, u, v, out);
    case 5: return sddmm_uniform_rows<5, Accumulate>(ptr, idx, r0, r1, u, v, out);
    case 6: return sddmm_uniform_rows<6, Accumulate>(ptr, idx, r0, r1, u, v, out);
    case 7: return sddmm_uniform_rows<7, Accumulate>(ptr, idx, r0, r1, u, v, out);
    case 9: return sddmm_uniform_rows<9, Accumulate>(ptr, idx, r0, r1, u, v, out);
    default:
      for (int64_t i = r0; i < r1; ++i) {
        const T ui = u[i];
        for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) put<Accumulate>(out + p, ui * v[idx[p]]);
      }
  }
}

template <class T, class I, bool Accumulate>
inline void sddmm_blocks(const I* ptr, const I* idx, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                         const T* LS_RESTRICT u, const T* LS_RESTRICT v, int64_t k, T* LS_RESTRICT out) {
  if (k == 1) {
    for (int64_t b = b0; b < b1; ++b)
      sddmm_vector_block<Accumulate>(ptr, idx, blocks.table[2 * b], blocks.table[2 * b + 2],
                                     blocks.table[2 * b + 1], u, v, out);
    return;
  }
  for (int64_t i = blocks.table[2 * b0]; i < blocks.table[2 * b1]; ++i)
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p)
      put<Accumulate>(out + p, row_row_dot(u + i * k, v + static_cast<int64_t>(idx[p]) * k, k));
}

template <class T, class I>
void sddmm(const I* ptr, const I* idx, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const T* u,
           const T* v, int64_t k, T* out, bool accumulate) {
  if (b0 == b1) return;
  if (accumulate)
    sddmm_blocks<T, I, true>(ptr, idx, blocks, b0, b1, u, v, k, out);
  else
    sddmm_blocks<T, I, false>(ptr, idx, blocks, b0, b1, u, v, k, out);
}

// One column. S is the transposed structure: row j of S lists the rows i of A with an entry (i, j).
template <bool Accumulate, class T, class I>
LS_INLINE T backward_row(const CsrView<T, I>& S, int64_t j, const T* LS_RESTRICT g, T xj, T* LS_RESTRICT ga) {
  T s = 0;
  for (int64_t p = S.ptr[j]; p < S.ptr[j + 1]; ++p) {
    const int64_t q = S.perm ? static_cast<int64_t>(S.perm[p]) : p;
    const T gi = g[S.idx[p]];
    s += S.values[q] * gi;
    put<Accumulate>(ga + q, gi * xj);
  }
  return s;
}

// N vectors of row j. The first tile of a row writes ga, later tiles add to it.
template <int N, class T, class I, class Epilogue>
LS_INLINE void backward_tile(const CsrView<T, I>& S, int64_t j, int64_t c0, const T* LS_RESTRICT g,
                             const T* LS_RESTRICT x, int64_t k, T* LS_RESTRICT ga, bool add, Epilogue& out) {
  constexpr int V = kLanes<T>;
  typename Lanes<T>::vector sum[N] = {}, xj[N];
#pragma GCC unroll 8
  for (int c = 0; c < N; ++c) xj[c] = load(x + j * k + c0 + c * V);
  for (int64_t p = S.ptr[j]; p < S.ptr[j + 1]; ++p) {
    const int64_t q = S.perm ? static_cast<int64_t>(S.perm[p]) : p;
    const T a = S.values[q];
    const T* LS_RESTRICT gi = g + static_cast<int64_t>(S.idx[p]) * k + c0;
    typename Lanes<T>::vector dot{};
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) {
      const auto gc = load(gi + c * V);
      sum[c] += a * gc;
      dot += gc * xj[c];
    }
    const T d = sum_lanes(dot);
    ga[q] = add ? ga[q] + d : d;
  }
  T s[N * V];
#pragma GCC unroll 8
  for (int c = 0; c < N; ++c) store(s + c * V, sum[c]);
  out.columns(j, c0, N * V, s);
}

template <int N, class T, class I, class Epilogue>
LS_INLINE void backward_columns(const CsrView<T, I>& S, int64_t j, int64_t c0, const T* LS_RESTRICT g,
                                const T* LS_RESTRICT x, int64_t k, T* LS_RESTRICT ga, bool add,
                                Epilogue& out) {
  if constexpr (N > 1) {
    if (k - c0 < N) return backward_columns<N - 1>(S, j, c0, g, x, k, ga, add, out);
  }
  T s[N] = {}, xj[N];
#pragma GCC unroll 8
  for (int c = 0; c < N; ++c) xj[c] = x[j * k + c0 + c];
  for (int64_t p = S.ptr[j]; p < S.ptr[j + 1]; ++p) {
    const int64_t q = S.perm ? static_cast<int64_t>(S.perm[p]) : p;
    const T* LS_RESTRICT gi = g + static_cast<int64_t>(S.idx[p]) * k + c0;
    T d = 0;
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) {
      s[c] += S.values[q] * gi[c];
      d += gi[c] * xj[c];
    }
    ga[q] = add ? ga[q] + d : d;
  }
  out.columns(j, c0, N, s);
}

template <int N, class T, class I, class Epilogue>
LS_INLINE void backward_tiles(const CsrView<T, I>& S, int64_t j, int64_t c0, const T* LS_RESTRICT g,
                              const T* LS_RESTRICT x, int64_t k, T* LS_RESTRICT ga, bool add, Epilogue& out) {
  constexpr int V = kLanes<T>;
  for (; c0 + N * V <= k; c0 += N * V) {
    backward_tile<N>(S, j, c0, g, x, k, ga, add, out);
    add = true;
  }
  if (c0 == k) return;
  if constexpr (N > 1)
    backward_tiles<N / 2>(S, j, c0, g, x, k, ga, add, out);
  else
    backward_columns<V - 1>(S, j, c0, g, x, k, ga, add, out);
}

// One column, in the order of the rows of A: gx_j += a_p g_i into a vector of the caller's own, ga_p = g_i
// x_j. Values are read and written as a stream, where the pass over columns would jump through memory for
// each.
template <class T, class I>
void scatter_backward(const CsrView<T, I>& A, int64_t r0, int64_t r1, const T* LS_RESTRICT g,
                      const T* LS_RESTRICT x, T* LS_RESTRICT gx, T* LS_RESTRICT ga) {
  for (int64_t i = r0; i < r1; ++i) {
    const T gi = g[i];
    const int64_t begin = A.ptr[i], end = A.ptr[i + 1];
    if (gx)
      for (int64_t p = begin; p < end; ++p) gx[A.idx[p]] += A.values[p] * gi;
    if (ga)
      for (int64_t p = begin; p < end; ++p) ga[p] = gi * x[A.idx[p]];
  }
}

template <bool Accumulate, class T, class I, class Epilogue>
inline void backward_blocks(const CsrView<T, I>& S, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                            const T* g, const T* x, int64_t k, T* ga, Epilogue& out) {
  for (int64_t b = b0; b < b1; ++b) {
    const int64_t r0 = blocks.table[2 * b], r1 = blocks.table[2 * b + 2];
    out.begin(b);
    if (k == 1) {
      for (int64_t j = r0; j < r1; ++j) {
        const T s = backward_row<Accumulate>(S, j, g, x[j], ga);
        out.rows(j, 1, &s);
      }
    } else {
      for (int64_t j = r0; j < r1; ++j)
        backward_tiles<kBackwardVectors>(S, j, 0, g, x, k, ga, Accumulate, out);
    }
    out.end(b);
  }
}

template <class T, class I>
void spmm_backward(const CsrView<T, I>& S, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const T* g,
                   const T* x, int64_t k, T* gx, T* ga, bool accumulate_gx, bool accumulate_ga) {
  Store<T, false> write{gx, k};
  Store<T, true> add{gx, k};
  if (accumulate_gx && accumulate_ga)
    backward_blocks<true>(S, blocks, b0, b1, g, x, k, ga, add);
  else if (accumulate_gx)
    backward_blocks<false>(S, blocks, b0, b1, g, x, k, ga, add);
  else if (accumulate_ga)
    backward_blocks<true>(S, blocks, b0, b1, g, x, k, ga, write);
  else
    backward_blocks<false>(S, blocks, b0, b1, g, x, k, ga, write);
}

}  // namespace learnsolve::LEARNSOLVE_ISA
