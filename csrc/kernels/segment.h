// Maximum and softmax over segments: the entries of a row or, for a structure with perm, of a column of a
// matrix. Entry q has k numbers e[q k], ..., and each of the k columns is a problem of its own.
//
//   segment_max               top_i = max_q e_q, at_i = the first q that has it; 0 and -1 for no entry
//   segment_place             out_q = g_i where q = at_i, else 0: the adjoint of taking the maximum
//   segment_softmax           y_q = exp(e_q - top_i) / sum_q exp(e_q - top_i)
//   segment_softmax_backward  out_q = y_q (g_q - sum_q y_q g_q)
//
// A NaN is the maximum, the first of several. Each segment is one sequence of operations, whatever the
// partition into blocks. Sums over segments are products with a 0/1 matrix (products.h).
//
// Columns are worked on in tiles of N vectors, written as vectors: compilers do not vectorize loops with
// selections (maximum, float32, 8 columns: 139 us instead of 1400). The last columns, fewer than a vector has
// lanes, are the first lanes of one that reads on into the next entry; what the others hold is not used.
#pragma once

#include "kernels/exponential.h"
#include "kernels/vectors.h"

namespace learnsolve::LEARNSOLVE_ISA {

// A vector of the columns from j on: `lanes` of them, all if Whole. entries_end: of the memory that is read.
template <class T, bool Whole>
struct Tile {
  static constexpr int V = kLanes<T>;
  using W = typename Wide<T>::type;
  int64_t i, j, lanes;

  LS_INLINE W read(const T* at, const T* end) const {
    if (Whole || end - at >= V) return get<W>(at);
    T v[V] = {};
    for (int64_t l = 0; l < lanes; ++l) v[l] = at[l];
    return get<W>(v);
  }
  LS_INLINE void write(T* LS_RESTRICT at, W x) const {
    if (Whole) return set<W>(at, x);
    T v[V];
    set<W>(v, x);
    for (int64_t l = 0; l < lanes; ++l) at[l] = v[l];
  }
  // Only what this tile has written: other threads write what is beside it.
  LS_INLINE void scale(T* LS_RESTRICT at, W x) const {
    if (Whole) return set<W>(at, get<W>(at) * x);
    T v[V];
    set<W>(v, x);
    for (int64_t l = 0; l < lanes; ++l) at[l] *= v[l];
  }
};

// f.template operator()<N>(tile) for tiles of N vectors that cover the k columns of row i.
template <class T, int N, class F>
LS_INLINE void column_tiles(int64_t i, int64_t j, int64_t k, const F& f) {
  constexpr int V = kLanes<T>;
  for (; j + N * V <= k; j += N * V) f.template operator()<N>(Tile<T, true>{i, j, V});
  if (j == k) return;
  if constexpr (N > 1)
    column_tiles<T, N / 2>(i, j, k, f);
  else
    f.template operator()<1>(Tile<T, false>{i, j, k - j});
}
template <class T, class I, class F>
LS_INLINE void segment_tiles(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, int64_t k, const F& f) {
  for (int64_t i = blocks.table[2 * b0]; i < blocks.table[2 * b1]; ++i) column_tiles<T, 4>(i, 0, k, f);
}

// f(q k + j, t) for the entries q of segment i, the t-th of them.
template <class T, class I, bool Whole, class F>
LS_INLINE void each_entry(const CsrView<T, I>& A, const Tile<T, Whole>& tile, int64_t k, const F& f) {
  const int64_t begin = A.ptr[tile.i], n = A.ptr[tile.i + 1] - begin;
  for (int64_t t = 0; t < n; ++t) {
    const int64_t q = A.perm ? static_cast<int64_t>(A.perm[begin + t]) : begin + t;
    f(q * k + tile.j, t);
  }
}

// Where x is to replace `top`: larger, or the first NaN.
template <class W>
LS_INLINE auto exceeds(W x, W top) {
  return ~(x <= top) & (top == top);
}

// Places count from the first entry of the segment, in integers of T's size. `size`: numbers of e.
template <class T, class I>
void segment_max(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, int64_t size,
                 int64_t k, T* LS_RESTRICT top, I* LS_RESTRICT at) {
  segment_tiles<T>(blocks, b0, b1, k, [&]<int N, bool Whole>(const Tile<T, Whole>& tile) {
    constexpr int V = kLanes<T>;
    using W = typename Wide<T>::type;
    using Counts = typename Lanes<T>::mask;
    using Count = decltype(Counts{}[0] + 0);
    W best[N] = {};
    Counts first[N] = {};
    each_entry(A, tile, k, [&](int64_t o, int64_t t) {
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) {
        const W x = tile.read(A.values + o + c * V, A.values + size);
        const Counts more = t == 0 ? ~Counts{} : exceeds(x, best[c]);
        best[c] = more ? x : best[c];
        first[c] = more ? Counts{} + static_cast<Count>(t) : first[c];
      }
    });
    const int64_t begin = A.ptr[tile.i], o = tile.i * k + tile.j;
    const bool empty = begin == A.ptr[tile.i + 1];
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) {
      tile.write(top + o + c * V, best[c]);
      Count counts[V];
      __builtin_memcpy(counts, &first[c], sizeof(counts));
      for (int64_t l = 0; l < tile.lanes; ++l) {
        const int64_t p = begin + counts[l];
        at[o + c * V + l] = empty ? I(-1) : A.perm ? A.perm[p] : static_cast<I>(p);
      }
    }
  });
}

template <class T, class I>
void segment_place(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, int64_t k,
                   const I* LS_RESTRICT at, const T* LS_RESTRICT g, T* LS_RESTRICT out) {
  segment_tiles<T>(blocks, b0, b1, k, [&]<int N, bool Whole>(const Tile<T, Whole>& tile) {
    constexpr int V = kLanes<T>;
    each_entry(A, tile, k, [&](int64_t o, int64_t) {
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) tile.write(out + o + c * V, typename Wide<T>::type{});
    });
    const int64_t o = tile.i * k + tile.j;
    for (int64_t c = 0; c < (N - 1) * V + tile.lanes; ++c)
      if (at[o + c] >= 0) out[static_cast<int64_t>(at[o + c]) * k + tile.j + c] = g[o + c];
  });
}

template <class T, class I>
void segment_softmax(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, int64_t size,
                     int64_t k, T* LS_RESTRICT y) {
  segment_tiles<T>(blocks, b0, b1, k, [&]<int N, bool Whole>(const Tile<T, Whole>& tile) {
    constexpr int V = kLanes<T>;
    using W = typename Wide<T>::type;
    const T *e = A.values, *end = e + size;
    W top[N], total[N] = {};
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) top[c] = W{} - static_cast<T>(__builtin_inf());
    each_entry(A, tile, k, [&](int64_t o, int64_t) {
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) {
        const W x = tile.read(e + o + c * V, end);
        top[c] = exceeds(x, top[c]) ? x : top[c];
      }
    });
    each_entry(A, tile, k, [&](int64_t o, int64_t) {
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) {
        const W x = exponential<T>(tile.read(e + o + c * V, end) - top[c]);
        total[c] += x;
        tile.write(y + o + c * V, x);
      }
    });
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) total[c] = T(1) / total[c];
    each_entry(A, tile, k, [&](int64_t o, int64_t) {
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) tile.scale(y + o + c * V, total[c]);
    });
  });
}

// A's values are y.
template <class T, class I>
void segment_softmax_backward(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                              int64_t size, int64_t k, const T* LS_RESTRICT g, T* LS_RESTRICT out) {
  segment_tiles<T>(blocks, b0, b1, k, [&]<int N, bool Whole>(const Tile<T, Whole>& tile) {
    constexpr int V = kLanes<T>;
    using W = typename Wide<T>::type;
    const T* y = A.values;
    W sum[N] = {};
    each_entry(A, tile, k, [&](int64_t o, int64_t) {
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c)
        sum[c] += tile.read(y + o + c * V, y + size) * tile.read(g + o + c * V, g + size);
    });
    each_entry(A, tile, k, [&](int64_t o, int64_t) {
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) {
        const W x = tile.read(y + o + c * V, y + size);
        tile.write(out + o + c * V, x * (tile.read(g + o + c * V, g + size) - sum[c]));
      }
    });
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
