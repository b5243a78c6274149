// Derivatives of the product, which are sampled dense-dense products on the pattern of the matrix.
//
//   sddmm          out_p = <u_i, v_j>              for each entry p = (i, j)
//   spmm_backward  gx_j  = sum_p a_p g_i,  ga_p = <g_i, x_j>   in one pass over the columns j:
//                  every row g_i is loaded once and serves both.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/spmm.h"

namespace learnsolve::LEARNSOLVE_ISA {

template <int W, class T>
LS_INLINE T tile_dot(const T* LS_RESTRICT u, const T* LS_RESTRICT v) {
  // W/4 pairs of a lane are summed before the lanes are: a fixed order that vectorises.
  constexpr int V = W < kLanes<T> ? W : kLanes<T>;
  T s[V] = {};
#pragma GCC unroll 16
  for (int c = 0; c < W; c += V)
    for (int e = 0; e < V; ++e) s[e] += u[c + e] * v[c + e];
  for (int h = V / 2; h > 0; h /= 2)
    for (int e = 0; e < h; ++e) s[e] += s[e + h];
  return s[0];
}

template <int W, class T>
LS_INLINE T row_row_dot(const T* LS_RESTRICT u, const T* LS_RESTRICT v, int64_t j, int64_t k) {
  T s = 0;
  for (; j + W <= k; j += W) s += tile_dot<W>(u + j, v + j);
  if constexpr (W > 1) {
    if (j < k) s += row_row_dot<W / 2>(u, v, j, k);
  }
  return s;
}

template <class T, class I, bool Accumulate>
inline void sddmm_blocks(const I* ptr, const I* idx, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                         const T* LS_RESTRICT u, const T* LS_RESTRICT v, int64_t k, T* LS_RESTRICT out) {
  const int64_t r0 = blocks.table[2 * b0], r1 = blocks.table[2 * b1];
  for (int64_t i = r0; i < r1; ++i) {
    const int64_t end = ptr[i + 1];
    if (k == 1) {
      const T ui = u[i];
      for (int64_t p = ptr[i]; p < end; ++p) out[p] = Accumulate ? out[p] + ui * v[idx[p]] : ui * v[idx[p]];
    } else {
      for (int64_t p = ptr[i]; p < end; ++p) {
        const T s = row_row_dot<kTile<T>>(u + i * k, v + static_cast<int64_t>(idx[p]) * k, 0, k);
        out[p] = Accumulate ? out[p] + s : s;
      }
    }
  }
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
LS_INLINE T backward_row(const CsrView<T, I>& S, int64_t j, const T* LS_RESTRICT g, T xj,
                         T* LS_RESTRICT ga) {
  T s = 0;
  for (int64_t p = S.ptr[j]; p < S.ptr[j + 1]; ++p) {
    const int64_t q = S.perm ? static_cast<int64_t>(S.perm[p]) : p;
    const T gi = g[S.idx[p]];
    s += S.values[q] * gi;
    ga[q] = Accumulate ? ga[q] + gi * xj : gi * xj;
  }
  return s;
}

template <int L, bool Accumulate, class T, class I, class Epilogue>
LS_INLINE void backward_uniform_rows(const CsrView<T, I>& S, int64_t r0, int64_t r1, const T* LS_RESTRICT g,
                                     const T* LS_RESTRICT x, T* LS_RESTRICT ga, Epilogue& out) {
  const int64_t first = S.ptr[r0];
  int64_t q[L];
  const T* LS_RESTRICT gs[L];
  for (int l = 0; l < L; ++l) {
    q[l] = S.perm ? static_cast<int64_t>(S.perm[first + l]) : first + l;
    gs[l] = g + S.idx[first + l];
  }
  const T* LS_RESTRICT a = S.values;
  for (int64_t t = 0; t < r1 - r0; ++t) {
    const T xj = x[r0 + t];
    T s = 0;
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) {
      const T gi = gs[l][t];
      const int64_t at = q[l] + t * L;
      s += a[at] * gi;
      ga[at] = Accumulate ? ga[at] + gi * xj : gi * xj;
    }
    out.rows(r0 + t, 1, &s);
  }
}

template <bool Accumulate, class T, class I, class Epilogue>
LS_INLINE void backward_vector_block(const CsrView<T, I>& S, int64_t r0, int64_t r1, int64_t length,
                                     const T* g, const T* x, T* ga, Epilogue& out) {
  switch (length) {
    case 3: return backward_uniform_rows<3, Accumulate>(S, r0, r1, g, x, ga, out);
    case 5: return backward_uniform_rows<5, Accumulate>(S, r0, r1, g, x, ga, out);
    case 7: return backward_uniform_rows<7, Accumulate>(S, r0, r1, g, x, ga, out);
    case 9: return backward_uniform_rows<9, Accumulate>(S, r0, r1, g, x, ga, out);
    default:
      for (int64_t j = r0; j < r1; ++j) {
        const T s = backward_row<Accumulate>(S, j, g, x[j], ga);
        out.rows(j, 1, &s);
      }
  }
}

// W columns of row j. The first tile of a row writes ga, later tiles add to it.
template <int W, class T, class I, class Epilogue>
LS_INLINE void backward_tile(const CsrView<T, I>& S, int64_t j, int64_t c0, const T* LS_RESTRICT g,
                             const T* LS_RESTRICT x, int64_t k, T* LS_RESTRICT ga, bool add, Epilogue& out) {
  T s[W] = {}, xj[W];
#pragma GCC unroll 64
  for (int c = 0; c < W; ++c) xj[c] = x[j * k + c0 + c];
  for (int64_t p = S.ptr[j]; p < S.ptr[j + 1]; ++p) {
    const int64_t q = S.perm ? static_cast<int64_t>(S.perm[p]) : p;
    const T a = S.values[q];
    const T* LS_RESTRICT gi = g + static_cast<int64_t>(S.idx[p]) * k + c0;
#pragma GCC unroll 64
    for (int c = 0; c < W; ++c) s[c] += a * gi[c];
    const T dot = tile_dot<W>(gi, xj);
    ga[q] = add ? ga[q] + dot : dot;
  }
  out.columns(j, c0, W, s);
}

template <int W, class T, class I, class Epilogue>
LS_INLINE void backward_tiles(const CsrView<T, I>& S, int64_t j, int64_t c0, const T* g, const T* x,
                              int64_t k, T* ga, bool add, Epilogue& out) {
  for (; c0 + W <= k; c0 += W) {
    backward_tile<W>(S, j, c0, g, x, k, ga, add, out);
    add = true;
  }
  if constexpr (W > 1) {
    if (c0 < k) backward_tiles<W / 2>(S, j, c0, g, x, k, ga, add, out);
  }
}

template <bool Accumulate, class T, class I, class Epilogue>
inline void backward_blocks(const CsrView<T, I>& S, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                            const T* g, const T* x, int64_t k, T* ga, Epilogue& out) {
  for (int64_t b = b0; b < b1; ++b) {
    const int64_t r0 = blocks.table[2 * b], r1 = blocks.table[2 * b + 2];
    out.begin(b);
    if (k == 1) {
      backward_vector_block<Accumulate>(S, r0, r1, blocks.table[2 * b + 1], g, x, ga, out);
    } else {
      for (int64_t j = r0; j < r1; ++j) backward_tiles<kTile<T>>(S, j, 0, g, x, k, ga, Accumulate, out);
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
