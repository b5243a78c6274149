// T x = b for a triangular T, row by row,
//
//     x_i = b_i r_i - sum_j (t_ij r_i) x_j,   r_i = 1 / t_ii (1 for a unit diagonal),
//
// the farthest column first. So what passes from one row to the next is a single multiply-add, if the
// neighbor's result is still in a register: 4 cycles a row, whereas a division at the end and a round trip
// through memory take 25. Every row is computed by this rule in this order, whatever the path: no schedule,
// no number of threads changes a bit. The one exception is one column of a bidiagonal run, which is a scan.
// It is never split.
//
// Backward: T^T y = g, the same with the transpose; the gradient of t_ij is -y_i x_j, that of b is y. The
// former is a pass of its own, in the order of the values. In the sweep itself it would be written in the
// order of the transpose: 1.2 to 1.4 times the time of both on factors of grids, 2 to 3 times on random rows.
//
// The solves return false if a reciprocal is infinite (a zero, or nearly, on the diagonal). x may be b.
#pragma once

#include "kernels/products.h"
#include "kernels/vectors.h"
#include "kernels/views.h"

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

// What a sweep does beyond the solve: nothing.
struct Alone {
  static constexpr bool kScaled = false;
  static constexpr int kTile = kTileVectors;
  template <class W>
  struct Row {
    template <class T>
    LS_INLINE void begin(const Alone&, T, int64_t, W&) {}
    template <class T>
    LS_INLINE void add(const Alone&, T, int64_t) {}
    LS_INLINE void join(W&) const {}
    LS_INLINE void end(const Alone&, int64_t, int64_t) const {}
  };
};

// Rows are divided by their diagonal entries already, and a uniform run's stand one after another.
struct Scaled : Alone {
  static constexpr bool kScaled = true;
};

// The same for T z = u with u = b + c p + (T - 1) p, where c stands in the places of the diagonal; and
// q_i = d_i u_i.
template <class T>
struct ScaledProduct {
  static constexpr bool kScaled = true;
  static constexpr int kTile = kTileVectors / 2;
  const T* p;
  const T* d;
  T* q;
  template <class W>
  struct Row {
    W u;
    LS_INLINE void begin(const ScaledProduct& of, T c, int64_t o, W& s) {
      u = s + c * get<W>(of.p + o);
      s = W{};
    }
    LS_INLINE void add(const ScaledProduct& of, T t, int64_t o) { u += t * get<W>(of.p + o); }
    LS_INLINE void join(W& s) const { s += u; }
    LS_INLINE void end(const ScaledProduct& of, int64_t i, int64_t o) const { set<W>(of.q + o, of.d[i] * u); }
  };
};

// The entries of a row but the diagonal, farthest first: places far, far + step, ... `count` of them.
template <class Also, class T, class I>
struct TriangleRow {
  int64_t far, count, step;
  T diagonal, reciprocal;

  LS_INLINE TriangleRow(const TriangleView<T, I>& S, int64_t i) {
    const int64_t begin = S.A.ptr[i], end = S.A.ptr[i + 1];
    const bool unit = !Also::kScaled && S.unit;
    count = end - begin - !unit;
    step = S.upper ? -1 : 1;
    far = S.upper ? end - 1 : begin;
    diagonal = unit ? T(1) : value_at(S.A, S.upper ? begin : end - 1);
    reciprocal = Also::kScaled ? T(1) : T(1) / diagonal;
  }
};

// Sums of long rows run side by side: one alone would wait for each addition.
inline constexpr int64_t kLongRow = 16;

// Row i, one column. `neighbor` is the result of the row before in the order of the sweep, if Chained.
template <bool Chained, class Also, class T, class I>
LS_INLINE T solve_row(const TriangleView<T, I>& S, const TriangleRow<Also, T, I>& row, int64_t i, T bi,
                      const T* x, T neighbor, const Also& also) {
  T s = rounded(bi * row.reciprocal);
  int64_t p = row.far, left = row.count;
  typename Also::template Row<T> own;
  own.begin(also, row.diagonal, i, s);
  const auto subtract_from = [&](T& sum, int64_t at) {
    const T t = value_at(S.A, at);
    own.add(also, t, S.A.idx[at]);
    sum -= (t * row.reciprocal) * x[S.A.idx[at]];
  };
  if (left > kLongRow) {
    T s1 = 0, s2 = 0, s3 = 0;
    for (; left > 4; left -= 4, p += 4 * row.step) {
      subtract_from(s, p);
      subtract_from(s1, p + row.step);
      subtract_from(s2, p + 2 * row.step);
      subtract_from(s3, p + 3 * row.step);
    }
    s = (s + s1) + (s2 + s3);
  }
  for (; left > 1; --left, p += row.step) subtract_from(s, p);
  if (left > 0) {
    const int64_t j = S.A.idx[p];
    const T t = value_at(S.A, p);
    own.add(also, t, j);
    own.join(s);
    if (Chained && j == i - row.step)
      s -= (t * row.reciprocal) * neighbor;
    else
      s -= (t * row.reciprocal) * x[j];
  } else {
    own.join(s);
  }
  own.end(also, i, i);
  return s;
}

// N vectors of row i.
template <int N, class Also, class T, class I>
LS_INLINE void solve_tile(const TriangleView<T, I>& S, const TriangleRow<Also, T, I>& row, int64_t i,
                          const T* b, T* x, int64_t k, int64_t c, const Also& also) {
  constexpr int V = kLanes<T>;
  using W = typename Wide<T>::type;
  W s[N];
  typename Also::template Row<W> own[N];
  const int64_t o = i * k + c;
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) {
    s[v] = rounded(get<W>(b + o + v * V) * row.reciprocal);
    own[v].begin(also, row.diagonal, o + v * V, s[v]);
  }
  int64_t p = row.far;
  for (int64_t left = row.count; left > 0; --left, p += row.step) {
    const T t = value_at(S.A, p), m = t * row.reciprocal;
    const int64_t oj = static_cast<int64_t>(S.A.idx[p]) * k + c;
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
      own[v].add(also, t, oj + v * V);
      s[v] -= m * get<W>(x + oj + v * V);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) {
    own[v].join(s[v]);
    own[v].end(also, i, o + v * V);
    set<W>(x + o + v * V, s[v]);
  }
}

// The last end - c <= N columns.
template <int N, class Also, class T, class I>
LS_INLINE void solve_columns(const TriangleView<T, I>& S, const TriangleRow<Also, T, I>& row, int64_t i,
                             const T* b, T* x, int64_t k, int64_t c, int64_t end, const Also& also) {
  if constexpr (N > 1) {
    if (end - c < N) return solve_columns<N - 1>(S, row, i, b, x, k, c, end, also);
  }
  T s[N];
  typename Also::template Row<T> own[N];
  const int64_t o = i * k + c;
#pragma GCC unroll 8
  for (int e = 0; e < N; ++e) {
    s[e] = rounded(b[o + e] * row.reciprocal);
    own[e].begin(also, row.diagonal, o + e, s[e]);
  }
  int64_t p = row.far;
  for (int64_t left = row.count; left > 0; --left, p += row.step) {
    const T t = value_at(S.A, p), m = t * row.reciprocal;
    const int64_t oj = static_cast<int64_t>(S.A.idx[p]) * k + c;
#pragma GCC unroll 8
    for (int e = 0; e < N; ++e) {
      own[e].add(also, t, oj + e);
      s[e] -= m * x[oj + e];
    }
  }
#pragma GCC unroll 8
  for (int e = 0; e < N; ++e) {
    own[e].join(s[e]);
    own[e].end(also, i, o + e);
    x[o + e] = s[e];
  }
}

template <int N, class Also, class T, class I>
LS_INLINE void solve_tiles(const TriangleView<T, I>& S, const TriangleRow<Also, T, I>& row, int64_t i,
                           const T* b, T* x, int64_t k, int64_t c, int64_t end, const Also& also) {
  constexpr int V = kLanes<T>;
  for (; c + N * V <= end; c += N * V) solve_tile<N>(S, row, i, b, x, k, c, also);
  if (c == end) return;
  if constexpr (N > 1)
    solve_tiles<N / 2>(S, row, i, b, x, k, c, end, also);
  else
    solve_columns<V - 1>(S, row, i, b, x, k, c, end, also);
}

// Triangular solves through runs of uniform rows, one column: neighbors stay in registers, bidiagonal runs
// are a scan.

// Row t of a run, counted in the order of the sweep, at element t * dir of the vectors and t * dir * stride
// of the values. Entry l = 0 is the farthest.
template <int M, class T>
struct Run {
  const T* a[M > 0 ? M : 1];
  const T* d;   // null for a unit diagonal
  int64_t row;  // the first
  const T* b;
  T* x;
  int64_t offset[M > 0 ? M : 1];  // of the column from the row
  int64_t n, dir, stride;
};

// The nearest `Near` columns are those of the rows just computed: they stay in registers.
template <int M, int Near, class Also, class T>
bool solve_run(const Run<M, T>& run, const Also& also) {
  T recent[2] = {0, 0};  // results of the row before and of the one before that
  for (int e = 0; e < Near; ++e) recent[e] = run.x[-(e + 1) * run.dir];
  const int64_t dir = run.dir, step = run.dir * run.stride;
  for (int64_t t = 0; t < run.n; ++t) {
    const int64_t v = t * dir, q = t * step;
    if constexpr (M > 0) prefetch(run.a[M - 1] + q, dir);
    prefetch<true>(run.x + v, dir);
    T r = 1;
    if (!Also::kScaled && run.d) {
      r = T(1) / run.d[q];
      if (__builtin_expect(__builtin_isinf(r), 0)) return false;
    }
    T known[M > 0 ? M : 1];
    T s = rounded(run.b[v] * r);
    typename Also::template Row<T> own;
    own.begin(also, run.d ? run.d[q] : T(1), run.row + v, s);
#pragma GCC unroll 8
    for (int l = 0; l < M; ++l) {
      known[l] = l >= M - Near ? recent[M - 1 - l] : run.x[v + run.offset[l]];
      own.add(also, run.a[l][q], run.row + v + run.offset[l]);
      if (l == M - 1) own.join(s);
      s -= (run.a[l][q] * r) * known[l];
    }
    if (M == 0) own.join(s);
    own.end(also, run.row + v, run.row + v);
    run.x[v] = s;
    recent[1] = recent[0];
    recent[0] = s;
  }
  return true;
}

// One off-diagonal entry, beside the diagonal: x_i = t_i + m_i x_{i-1} is a composition of affine maps,
// V rows of which are composed in log2 V steps. Each vector waits for the one before by a single
// multiply-add. Where the composed factors overflow, the group is computed row by row.
template <bool Up, class T>
struct Scan {
  static constexpr int V = kLanes<T>;
  using vector = typename Lanes<T>::vector;
  static constexpr int kSteps = V == 2 ? 1 : V == 4 ? 2 : 3;
  using mask = typename Lanes<T>::mask;
  mask moves[kSteps], to_last;

  LS_INLINE Scan() {
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s)
#pragma GCC unroll 16
      for (int e = 0; e < V; ++e) {
        const int from = Up ? e + (1 << s) : e - (1 << s);
        moves[s][e] = from >= 0 && from < V ? from : V + e;
      }
#pragma GCC unroll 16
    for (int e = 0; e < V; ++e) to_last[e] = Up ? 0 : V - 1;
  }
  static LS_INLINE vector all(T value) { return value - vector{}; }
  // The lane that is last in the order of the sweep, in every lane.
  LS_INLINE vector last(vector v) const { return LS_SHUFFLE(v, to_last); }
  // Lanes move on by 2^s rows in the order of the sweep; freed lanes are taken from `fill`.
  LS_INLINE vector shift(vector v, vector fill, int s) const { return LS_SHUFFLE(v, fill, moves[s]); }
  // Places of V rows, the lowest first.
  static LS_INLINE vector gather(const T* p, int64_t stride) {
    if (stride == 1) return load(p);
    vector v;
    for (int e = 0; e < V; ++e) v[e] = p[e * stride];
    return v;
  }
};

template <bool Up, class T>
bool scan_run(const Run<1, T> run) {
  using S = Scan<Up, T>;
  const S lanes;
  using vector = typename S::vector;
  constexpr int V = S::V;
  constexpr int64_t dir = Up ? -1 : 1;
  const int64_t stride = run.stride, lowest = Up ? V - 1 : 0;
  // Both entries of each row beside one another: two loads and a permutation each.
  const bool pairs =
      kShuffles<2, T> && run.d && stride == 2 && (run.a[0] - run.d == 1 || run.d - run.a[0] == 1);
  const bool diagonal_first = pairs && run.d < run.a[0];
  LanePicker<2, T> picker;
  vector carry = S::all(run.x[-dir]);
  int64_t t = 0;
  for (; t + V <= run.n; t += V) {
    const int64_t v = dir * (t + lowest), q = v * stride;
    vector r = S::all(1), a;
    if (pairs) {
      picker.read((diagonal_first ? run.d : run.a[0]) + q);
      const vector first = picker.pick(0), second = picker.pick(1);
      r = r / (diagonal_first ? first : second);
      a = diagonal_first ? second : first;
    } else {
      a = S::gather(run.a[0] + q, stride);
      if (run.d) r = r / S::gather(run.d + q, stride);
    }
    vector s = load(run.b + v) * r, m = -a * r;
#pragma GCC unroll 4
    for (int e = 0; e < S::kSteps; ++e) {
      s += m * lanes.shift(s, vector{}, e);
      m *= lanes.shift(m, S::all(1), e);
    }
    const vector before = carry;
    vector x = s + m * before;
    carry = lanes.last(s) + lanes.last(m) * before;
    const T end = carry[0];
    if (__builtin_expect(!(end - end == 0), 0)) {
      Run<1, T> group = run;
      const int64_t skip = t * dir;
      group.a[0] += skip * stride;
      if (run.d) group.d += skip * stride;
      group.b += skip, group.x += skip, group.n = V;
      if (!solve_run<1, 1>(group, Alone{})) return false;
      x = load(run.x + v);
      carry = lanes.last(x);
    } else {
      store(run.x + v, x);
    }
  }
  if (t == run.n) return true;
  Run<1, T> rest = run;
  const int64_t skip = t * dir;
  rest.a[0] += skip * stride;
  if (run.d) rest.d += skip * stride;
  rest.b += skip, rest.x += skip, rest.n -= t;
  return solve_run<1, 1>(rest, Alone{});
}

template <int M, class Also, class T, class I>
bool solve_uniform(const TriangleView<T, I>& S, int64_t r0, int64_t r1, int64_t stride, const T* b, T* x,
                   const Also& also) {
  Run<M, T> run{};
  run.dir = S.upper ? -1 : 1;
  run.n = r1 - r0;
  run.stride = stride;
  const int64_t i = S.upper ? r1 - 1 : r0;
  const int64_t begin = S.A.ptr[i], end = S.A.ptr[i + 1];
  const auto place = [&](int64_t p) { return S.A.perm ? static_cast<int64_t>(S.A.perm[p]) : p; };
  for (int l = 0; l < M; ++l) {
    const int64_t p = S.upper ? end - 1 - l : begin + l;
    run.a[l] = S.A.values + place(p);
    run.offset[l] = S.A.idx[p] - i;
  }
  if (!S.unit) run.d = S.A.values + place(S.upper ? begin : end - 1);
  run.row = i;
  run.b = b + i;
  run.x = x + i;
  const bool beside = M > 0 && run.offset[M > 0 ? M - 1 : 0] == -run.dir;
  if constexpr (M == 1 && !Also::kScaled) {
    if (beside) return S.upper ? scan_run<true>(run) : scan_run<false>(run);
  } else if constexpr (M >= 1) {
    if constexpr (M >= 2)
      if (beside && run.offset[M - 2] == -2 * run.dir) return solve_run<M, 2>(run, also);
    if (beside) return solve_run<M, 1>(run, also);
  }
  return solve_run<M, 0>(run, also);
}

// All rows in the order of the sweep, one column.
template <class Also, class T, class I>
bool solve_vector(const TriangleView<T, I>& S, const T* b, T* x, const Also& also) {
  for (int64_t t = 0; t < S.n_blocks; ++t) {
    const I* block = S.blocks + 3 * (S.upper ? S.n_blocks - 1 - t : t);
    // Runs skip the indices of their rows, so that those of the next block's are not in the cache.
    if (t + 1 < S.n_blocks) {
      const int64_t next = S.upper ? block[0] - 1 : block[3];
      __builtin_prefetch(S.A.idx + S.A.ptr[next]);
      if (t + 2 < S.n_blocks) __builtin_prefetch(S.A.ptr + (S.upper ? block[-3] - 1 : block[6]));
    }
    const int64_t r0 = block[0], r1 = block[3];
    const int64_t stride = Also::kScaled ? block[1] : block[2];
    bool done = true;
    switch (block[1] > 0 ? block[1] - (Also::kScaled || !S.unit) : -1) {
      case 0: done = solve_uniform<0>(S, r0, r1, stride, b, x, also); break;
      case 1: done = solve_uniform<1>(S, r0, r1, stride, b, x, also); break;
      case 2: done = solve_uniform<2>(S, r0, r1, stride, b, x, also); break;
      case 3: done = solve_uniform<3>(S, r0, r1, stride, b, x, also); break;
      case 4: done = solve_uniform<4>(S, r0, r1, stride, b, x, also); break;
      case 5: done = solve_uniform<5>(S, r0, r1, stride, b, x, also); break;
      case 6: done = solve_uniform<6>(S, r0, r1, stride, b, x, also); break;
      case 7: done = solve_uniform<7>(S, r0, r1, stride, b, x, also); break;
      case 8: done = solve_uniform<8>(S, r0, r1, stride, b, x, also); break;
      default: {
        const int64_t dir = S.upper ? -1 : 1;
        int64_t i = S.upper ? r1 - 1 : r0;
        // Read only by a row that has an entry there.
        T neighbor = i - dir >= 0 && i - dir < S.rows ? x[i - dir] : T(0);
        for (int64_t left = r1 - r0; left > 0; --left, i += dir) {
          const TriangleRow<Also, T, I> row(S, i);
          if (__builtin_expect(__builtin_isinf(row.reciprocal), 0)) return false;
          x[i] = neighbor = solve_row<true>(S, row, i, b[i], x, neighbor, also);
        }
      }
    }
    if (!done) return false;
  }
  return true;
}

// Columns c0 <= c < c1 of k, all rows in the order of the sweep.
template <class Also, class T, class I>
bool all_rows(const TriangleView<T, I>& S, const T* b, T* x, int64_t k, int64_t c0, int64_t c1,
              const Also& also) {
  if (k == 1) return solve_vector(S, b, x, also);
  for (int64_t t = 0; t < S.rows; ++t) {
    const int64_t i = S.upper ? S.rows - 1 - t : t;
    const TriangleRow<Also, T, I> row(S, i);
    if (__builtin_isinf(row.reciprocal)) return false;
    solve_tiles<Also::kTile>(S, row, i, b, x, k, c0, c1, also);
  }
  return true;
}

// Rows order[r0] .. order[r1 - 1], none of which depends on another: part of a level.
template <class Also, class T, class I>
bool some_rows(const TriangleView<T, I>& S, const I* order, int64_t r0, int64_t r1, const T* b, T* x,
               int64_t k, const Also& also) {
  for (int64_t t = r0; t < r1; ++t) {
    const int64_t i = order[t];
    const TriangleRow<Also, T, I> row(S, i);
    if (__builtin_isinf(row.reciprocal)) return false;
    if (k == 1)
      x[i] = solve_row<false>(S, row, i, b[i], x, T(0), also);
    else
      solve_tiles<Also::kTile>(S, row, i, b, x, k, 0, k, also);
  }
  return true;
}

template <class T, class I>
bool sptrsv(const TriangleView<T, I>& S, const T* b, T* x, int64_t k, int64_t c0, int64_t c1) {
  return all_rows(S, b, x, k, c0, c1, Alone{});
}
template <class T, class I>
bool sptrsv_rows(const TriangleView<T, I>& S, const I* order, int64_t r0, int64_t r1, const T* b, T* x,
                 int64_t k) {
  return some_rows(S, order, r0, r1, b, x, k, Alone{});
}

// The same for rows that are divided by their diagonal entries, with a product if `a` has a p.
template <class T, class I>
bool scaled_sptrsv(const TriangleView<T, I>& S, ScaledSweep<T> a, int64_t k, int64_t c0, int64_t c1) {
  return a.p ? all_rows(S, a.b, a.x, k, c0, c1, ScaledProduct<T>{a.p, a.d, a.q})
             : all_rows(S, a.b, a.x, k, c0, c1, Scaled{});
}
template <class T, class I>
bool scaled_sptrsv_rows(const TriangleView<T, I>& S, const I* order, int64_t r0, int64_t r1, ScaledSweep<T> a,
                        int64_t k) {
  return a.p ? some_rows(S, order, r0, r1, a.b, a.x, k, ScaledProduct<T>{a.p, a.d, a.q})
             : some_rows(S, order, r0, r1, a.b, a.x, k, Scaled{});
}

template <class T>
LS_INLINE void subtract(T* at, T g, bool accumulate) {
  *at = accumulate ? *at - g : -g;
}

// Rows i .. i + n - 1 of a uniform run, L entries each, one column.
template <int L, class T, class I>
LS_INLINE void gradient_run(const CsrView<T, I>& A, int64_t i, int64_t n, int64_t stride, const T* u,
                            const T* w, T* ga, bool accumulate) {
  constexpr int V = kLanes<T>;
  const int64_t first = A.ptr[i];
  const T* ws[L];
  T* at[L];
  bool dense = stride == L;
#pragma GCC unroll 8
  for (int l = 0; l < L; ++l) {
    ws[l] = w + A.idx[first + l];
    at[l] = ga + (A.perm ? static_cast<int64_t>(A.perm[first + l]) : first + l);
    dense = dense && at[l] == at[0] + l;
  }
  int64_t t = 0;
  if constexpr (kShuffles<L, T>) {
    LaneWeaver<L, T> lanes;
    for (; dense && t + V <= n; t += V) {
      const auto ui = load(u + i + t);
#pragma GCC unroll 8
      for (int l = 0; l < L; ++l) lanes.lanes[l] = rounded(-ui * load(ws[l] + t));
#pragma GCC unroll 8
      for (int s = 0; s < L; ++s) {
        T* to = at[0] + t * L + s * V;
        prefetch<true>(to);
        store(to, accumulate ? load(to) + lanes.weave(s) : lanes.weave(s));
      }
    }
  }
  for (; t < n; ++t)
#pragma GCC unroll 8
    for (int l = 0; l < L; ++l) subtract(at[l] + t * stride, rounded(u[i + t] * ws[l][t]), accumulate);
}

template <bool Perm, bool Accumulate, class T, class I>
LS_INLINE void gradient_rows(const CsrView<T, I>& A, int64_t i, int64_t end, const T* LS_RESTRICT u,
                             const T* LS_RESTRICT w, T* LS_RESTRICT ga) {
  for (; i < end; ++i) {
    const T ui = u[i];
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
      subtract(ga + (Perm ? static_cast<int64_t>(A.perm[p]) : p), rounded(ui * w[A.idx[p]]), Accumulate);
  }
}

// -<u_i, w_j> for the entries (i, j) of rows r0 <= i < r1, which are in the order of their places.
template <class T, class I>
void sptrsv_gradient(const TriangleView<T, I>& S, int64_t r0, int64_t r1, const T* u, const T* w, int64_t k,
                     T* ga, bool accumulate) {
  const CsrView<T, I>& A = S.A;
  if (k > 1) {
    for (int64_t i = r0; i < r1; ++i)
      for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
        subtract(ga + (A.perm ? static_cast<int64_t>(A.perm[p]) : p),
                 row_row_dot(u + i * k, w + static_cast<int64_t>(A.idx[p]) * k, k), accumulate);
    return;
  }
  for (int64_t t = 0; t < S.n_blocks; ++t) {
    const I* block = S.blocks + 3 * t;
    const int64_t i = block[0] > r0 ? block[0] : r0, end = block[3] < r1 ? block[3] : r1, stride = block[2];
    if (i >= end) continue;
    switch (block[1]) {
      case 1: gradient_run<1>(A, i, end - i, stride, u, w, ga, accumulate); break;
      case 2: gradient_run<2>(A, i, end - i, stride, u, w, ga, accumulate); break;
      case 3: gradient_run<3>(A, i, end - i, stride, u, w, ga, accumulate); break;
      case 4: gradient_run<4>(A, i, end - i, stride, u, w, ga, accumulate); break;
      case 5: gradient_run<5>(A, i, end - i, stride, u, w, ga, accumulate); break;
      default:
        if (A.perm)
          accumulate ? gradient_rows<true, true>(A, i, end, u, w, ga)
                     : gradient_rows<true, false>(A, i, end, u, w, ga);
        else
          accumulate ? gradient_rows<false, true>(A, i, end, u, w, ga)
                     : gradient_rows<false, false>(A, i, end, u, w, ga);
    }
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
