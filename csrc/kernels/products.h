// Products of a sparse matrix with one vector or several columns, and their derivatives.
#pragma once

#include "kernels/vectors.h"
#include "kernels/views.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Rows of any lengths with one vector: a loop over the entries of each row and, for short rows whose lengths
// vary, streams of entries that end rows without a branch. Both sum a row in the same order, to the same
// bits.

// Keeps the compiler from vectorizing a sum. It would gather x, and multiply and add apart: in float32 1.6
// times as long for long ranges of rows, and other bits than a product with several columns.
template <class T>
LS_INLINE void keep_scalar(T& s) {
#if defined(__x86_64__)
  asm("" : "+x"(s));
#elif defined(__aarch64__)
  asm("" : "+w"(s));
#endif
}

// One plain loop: what limits it is the loads of x, not the chain of additions. Four sums in flight took 1.3
// to 1.6 times as long (rows of 8 and of 210 entries), and vector gathers are slower than scalar loads on
// AMD. With `Fours` a row has fewer branches: where a processor knows them all from the last call (some
// thousand rows), 0.4 instead of 0.4 to 1.1 ns an entry, which depends on where the loop lies in memory;
// where it cannot know them, 1.7 instead of 1.2.
template <bool Perm, bool Fours = false, class T, class I>
LS_INLINE T row_dot(const CsrView<T, I>& A, int64_t p, int64_t end, const T* LS_RESTRICT x) {
  const T* LS_RESTRICT a = A.values;
  const I* LS_RESTRICT idx = A.idx;
  const I* LS_RESTRICT perm = A.perm;
  T s = 0;
  const auto add = [&](int64_t q) {
    s += a[Perm ? static_cast<int64_t>(perm[q]) : q] * x[idx[q]];
    keep_scalar(s);
  };
  if constexpr (Fours) {
    for (; p + 4 <= end; p += 4) add(p), add(p + 1), add(p + 2), add(p + 3);
    switch (end - p) {
      case 3: return add(p), add(p + 1), add(p + 2), s;
      case 2: return add(p), add(p + 1), s;
      case 1: return add(p), s;
      default: return s;
    }
  }
  for (; p < end; ++p) add(p);
  return s;
}

// Entries of a range of rows whose ends no processor knows from the last call.
inline constexpr int64_t kLongRange = 1 << 16;
// Rows that are streamed together at most; entries that are worth it; and entries, at most, for each row end
// that is hard to predict.
inline constexpr int64_t kStreamedRows = 1024, kStreamedEntries = 1024, kEntriesAnEnd = 10;
// Bytes of x that the rows reach, at most: the second-level cache. Beyond it the plain loop is as fast, or
// faster: fewer instructions for an entry let more loads of x be under way.
inline constexpr int64_t kStreamedBytes = 1 << 19;
inline constexpr int kStreams = 5;

// Do streams pay off for the rows r0 .. r0 + n - 1? They do where lengths vary otherwise than by turns, which
// a processor knows; and they need rows with entries. Only the last question is asked of every row.
template <class T, class I>
LS_INLINE bool prefers_streams(const CsrView<T, I>& A, int64_t r0, int64_t n) {
  constexpr int64_t sample = 32, samples = 4;
  const I* LS_RESTRICT ptr = A.ptr + r0;
  const int64_t entries = static_cast<int64_t>(ptr[n]) - ptr[0];
  if (n < sample * samples || entries < kStreamedEntries || entries > kEntriesAnEnd * n) return false;
  I first = A.idx[ptr[0]], last = first;
  int64_t ends = 0;
  for (int64_t s = 0; s < samples; ++s) {
    const I* LS_RESTRICT at = ptr + n / samples * s;
    if (at[1] == at[0]) return false;
    first = A.idx[at[0]] < first ? A.idx[at[0]] : first;
    last = A.idx[at[1] - 1] > last ? A.idx[at[1] - 1] : last;
    for (int64_t i = 2; i < sample; ++i) {
      const I length = at[i + 1] - at[i];
      ends += (length != at[i] - at[i - 1]) & (length != at[i - 1] - at[i - 2]);
    }
  }
  if (kEntriesAnEnd * ends * n < entries * samples * (sample - 2)) return false;
  if ((static_cast<int64_t>(last) - first) * static_cast<int64_t>(sizeof(T)) > kStreamedBytes) return false;
  for (int64_t turn = 3; turn <= sample / 2; ++turn) {
    I differ = 0;
    for (int64_t i = turn; i < sample; ++i)
      differ |= (ptr[i + 1] - ptr[i]) ^ (ptr[i + 1 - turn] - ptr[i - turn]);
    if (!differ) return false;
  }
  // Several streams in one row would wait for one another.
  const I longest = static_cast<I>(entries / (4 * kStreams));
  I outside = 0;  // negative if a row is empty or longer
  for (int64_t i = 0; i < n; ++i) {
    const I length = ptr[i + 1] - ptr[i];
    outside |= (length - 1) | (longest - length);
  }
  return outside >= 0;
}

// sums[i] of the rows r0 + i, none of which is empty; it has n + 1 places. The entries are divided into equal
// streams that advance together. Each entry is added to the sum of its row in memory, and a comparison
// advances the row. A row in which a stream begins is summed again, in one piece.
//
// The plain loop mispredicts the end of most rows of random lengths. Measured on one thread of a Zen 5, rows
// of 1 to 60 entries: 272,000 entries, 8 a row, 280 us instead of 335 in float64 and 275 instead of 365 in
// float32 (550 in a vectorized loop); 110,000 entries, 3 a row, 132 instead of 262. With `perm` values are
// read in random places, and nothing is gained.
template <class T, class I>
LS_FUNCTION void stream_sums(const CsrView<T, I>& A, int64_t r0, int64_t n, const T* LS_RESTRICT x,
                             T* LS_RESTRICT sums) {
  constexpr int S = kStreams;
  const I* LS_RESTRICT ptr = A.ptr + r0;
  const T* LS_RESTRICT a = A.values;
  const I* LS_RESTRICT idx = A.idx;
  const int64_t begin = ptr[0], length = (static_cast<int64_t>(ptr[n]) - begin) / S;
  int64_t p[S], row[S], first[S];
  for (int64_t i = 0; i <= n; ++i) sums[i] = 0;
  for (int s = 0; s < S; ++s) {
    p[s] = begin + s * length;
    row[s] = 0;
    for (int64_t left = n; left > 1;) {
      const int64_t half = left / 2;
      row[s] += ptr[row[s] + half] <= p[s] ? half : 0;
      left -= half;
    }
    first[s] = row[s];
  }
  for (int64_t t = 0; t < length; ++t)
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) {
      sums[row[s]] += a[p[s]] * x[idx[p[s]]];
      ++p[s];
      row[s] += ptr[row[s] + 1] <= p[s];
    }
  const auto whole = [&](int64_t i) { sums[i] = row_dot<false>(A, ptr[i], ptr[i + 1], x); };
  for (int s = 1; s < S; ++s) whole(first[s]);
  for (int64_t i = row[S - 1]; i < n; ++i) whole(i);
}

// An epilogue that has this adds up over the rows by lanes: those of a block in groups of kRows, as streams
// give them. How long a range is, which depends on the number of threads, must not change the bits of a sum.
template <class Epilogue>
concept AddsByLanes = Epilogue::kAddsByLanes;

// A function of its own, aligned, so that the branches of its loops lie at known places: with all three in
// one line of the instruction cache, as chance had it elsewhere, the same instructions took 1.4 times as
// long.
template <bool Perm, bool Fours, class T, class I, class Epilogue>
__attribute__((aligned(64))) LS_FUNCTION void one_by_one(const CsrView<T, I>& A, int64_t r0, int64_t r1,
                                                         const T* x, Epilogue& epilogue) {
  Epilogue out = epilogue;
  int64_t i = r0;
  if constexpr (AddsByLanes<Epilogue>) {
    constexpr int V = kRows<T>;
    for (; i + V <= r1; i += V) {
      T s[V];
      for (int e = 0; e < V; ++e) s[e] = row_dot<Perm, Fours>(A, A.ptr[i + e], A.ptr[i + e + 1], x);
      out.rows(i, V, s);
    }
  }
  for (; i < r1; ++i) {
    const T s = row_dot<Perm, Fours>(A, A.ptr[i], A.ptr[i + 1], x);
    out.rows(i, 1, &s);
  }
  epilogue = out;
}

// `many`: these rows are of a long range. In float64 `Fours` would be the faster form of short ones in loops
// that do nothing else; in float32 it is so everywhere, compared with the vectorized form.
template <bool Perm, class T, class I, class Epilogue>
LS_FUNCTION void irregular_rows(const CsrView<T, I>& A, int64_t r0, int64_t r1, bool many, const T* x,
                                Epilogue& epilogue) {
  constexpr int V = kRows<T>;
  if (!many) return one_by_one<Perm, sizeof(T) == 4>(A, r0, r1, x, epilogue);
  for (int64_t i = r0, end; i < r1; i = end) {
    end = r1 - i > kStreamedRows ? i + kStreamedRows : r1;
    if (Perm || !prefers_streams(A, i, end - i)) {
      one_by_one<Perm, false>(A, i, end, x, epilogue);
      continue;
    }
    T sums[kStreamedRows + 1];
    stream_sums(A, i, end - i, x, sums);
    Epilogue out = epilogue;
    int64_t e = 0;
    for (; e + V <= end - i; e += V) out.rows(i + e, V, sums + e);
    for (; e < end - i; ++e) out.rows(i + e, 1, sums + e);
    epilogue = out;
  }
}

// y_i = sum_p a_p x_{j(p)}  over the entries p of row i, for one vector or k columns (row-major).
//
// The loop over rows is separate from what is done with a row's result (the epilogue), so that
// products, residuals and relaxation sweeps share it. An epilogue has
//     rows(i, n, s)        s[0..n): results of rows i .. i + n - 1, one column
//     columns(i, j, n, s)  s[0..n): results of row i, columns j .. j + n - 1
//     begin(b), end(b)     around the rows of block b
// Each result is summed in an order that depends on its row alone: no partition of the blocks over
// threads can change a bit.

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
      for (int v = 0; v < K; ++v) sum[v] += LS_SHUFFLE(a, row[v]) * load(columns[l] + t * K + v * V);
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

// Derivatives of the product, which are sampled dense-dense products on the pattern of the matrix.
//
//   sddmm          out_p = <u_i, v_j>              for each entry p = (i, j)
//   spmm_backward  gx_j  = sum_p a_p g_i,  ga_p = <g_i, x_j>   in one pass over the columns j:
//                  every row g_i is loaded once and serves both.
//
// For one column of a matrix of uniform blocks the pass is not the fastest: the product with the transpose
// and the sampled product, run separately, read contiguous vectors (N = 32768 tridiagonal, float64: 38 us
// against 105).

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

// The gradient of the values of a matrix that a loop multiplies by again and again: of many pairs of vectors
// at once.

// Uniform rows: the entries of V rows stay in registers for all pairs.
template <int L, class T, class I>
LS_INLINE bool pairs_uniform_rows(const I* ptr, const I* idx, int64_t r0, int64_t r1, const T* const* u,
                                  const T* const* v, int64_t pairs, T* out) {
  if constexpr (kShuffles<L, T>) {
    constexpr int V = kLanes<T>;
    const int64_t first = ptr[r0], n = r1 - r0;
    int64_t column[L];
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) column[l] = idx[first + l];
    LanePicker<L, T> picker;
    LaneWeaver<L, T> weaver;
    int64_t t = 0;
    for (; t + V <= n; t += V) {
      T* at = out + first + t * L;
      picker.read(at);
#pragma GCC unroll 16
      for (int l = 0; l < L; ++l) weaver.lanes[l] = picker.pick(l);
      for (int64_t j = 0; j < pairs; ++j) {
        const auto uj = load(u[j] + r0 + t);
        const T* vj = v[j] + t;
        prefetch(vj + column[L / 2]);
#pragma GCC unroll 16
        for (int l = 0; l < L; ++l) weaver.lanes[l] += uj * load(vj + column[l]);
      }
#pragma GCC unroll 16
      for (int s = 0; s < L; ++s) store(at + s * V, weaver.weave(s));
    }
    for (; t < n; ++t)
      for (int64_t j = 0; j < pairs; ++j)
#pragma GCC unroll 16
        for (int l = 0; l < L; ++l) out[first + t * L + l] += u[j][r0 + t] * v[j][t + column[l]];
    return true;
  } else {
    return false;
  }
}

template <class T, class I>
LS_INLINE bool pairs_uniform_block(const I* ptr, const I* idx, int64_t r0, int64_t r1, int64_t length,
                                   const T* const* u, const T* const* v, int64_t pairs, T* out) {
  switch (length) {
    case 2: return pairs_uniform_rows<2>(ptr, idx, r0, r1, u, v, pairs, out);
    case 3: return pairs_uniform_rows<3>(ptr, idx, r0, r1, u, v, pairs, out);
    case 4: return pairs_uniform_rows<4>(ptr, idx, r0, r1, u, v, pairs, out);
    case 5: return pairs_uniform_rows<5>(ptr, idx, r0, r1, u, v, pairs, out);
    case 6: return pairs_uniform_rows<6>(ptr, idx, r0, r1, u, v, pairs, out);
    case 7: return pairs_uniform_rows<7>(ptr, idx, r0, r1, u, v, pairs, out);
    default: return false;
  }
}

// Pairs that are added in one pass over a block: with more streams than this the machine no longer
// prefetches.
inline constexpr int64_t kPairsAtOnce = 4;

// out_p += sum over the pairs of <u_i, v_j>, one after another: no bit depends on how pairs are grouped. What
// `out` and the indices of a block take stays in the cache for all pairs.
template <class T, class I>
void sddmm_pairs(const I* ptr, const I* idx, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                 const T* const* u, const T* const* v, int64_t pairs, int64_t k, T* out) {
  for (int64_t b = b0; b < b1; ++b) {
    const I* block = blocks.table + 2 * b;
    for (int64_t j = 0; j < pairs; j += kPairsAtOnce) {
      const int64_t some = pairs - j < kPairsAtOnce ? pairs - j : kPairsAtOnce;
      if (k == 1 && pairs_uniform_block(ptr, idx, block[0], block[2], block[1], u + j, v + j, some, out))
        continue;
      for (int64_t e = j; e < j + some; ++e)
        sddmm_blocks<T, I, true>(ptr, idx, blocks, b, b + 1, u[e], v[e], k, out);
    }
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
