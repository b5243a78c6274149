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

// Triangular solves through runs of uniform rows, one column: neighbors stay in registers, bidiagonal runs
// are a scan.

// Row t of a run, counted in the order of the sweep, at element t * dir of the vectors and t * dir * stride
// of the values. Entry l = 0 is the farthest.
template <int M, class T>
struct Run {
  const T* a[M > 0 ? M : 1];
  const T* d;  // null for a unit diagonal
  const T* b;
  T* x;
  int64_t offset[M > 0 ? M : 1];  // of the column from the row
  int64_t n, dir, stride;
};

// The nearest `Near` columns are those of the rows just computed: they stay in registers.
template <int M, int Near, class T>
bool solve_run(const Run<M, T>& run) {
  T recent[2] = {0, 0};  // results of the row before and of the one before that
  for (int e = 0; e < Near; ++e) recent[e] = run.x[-(e + 1) * run.dir];
  const int64_t dir = run.dir, step = run.dir * run.stride;
  for (int64_t t = 0; t < run.n; ++t) {
    const int64_t v = t * dir, q = t * step;
    if constexpr (M > 0) prefetch(run.a[M - 1] + q, dir);
    prefetch<true>(run.x + v, dir);
    T r = 1;
    if (run.d) {
      r = T(1) / run.d[q];
      if (__builtin_expect(__builtin_isinf(r), 0)) return false;
    }
    T known[M > 0 ? M : 1];
    T s = rounded(run.b[v] * r);
#pragma GCC unroll 8
    for (int l = 0; l < M; ++l) {
      known[l] = l >= M - Near ? recent[M - 1 - l] : run.x[v + run.offset[l]];
      s -= (run.a[l][q] * r) * known[l];
    }
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
  LS_INLINE vector last(vector v) const { return __builtin_shuffle(v, to_last); }
  // Lanes move on by 2^s rows in the order of the sweep; freed lanes are taken from `fill`.
  LS_INLINE vector shift(vector v, vector fill, int s) const { return __builtin_shuffle(v, fill, moves[s]); }
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
      if (!solve_run<1, 1>(group)) return false;
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
  return solve_run<1, 1>(rest);
}

template <int M, class T, class I>
bool solve_uniform(const TriangleView<T, I>& S, int64_t r0, int64_t r1, int64_t stride, const T* b, T* x) {
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
  run.b = b + i;
  run.x = x + i;
  const bool beside = M > 0 && run.offset[M > 0 ? M - 1 : 0] == -run.dir;
  if constexpr (M == 1) {
    if (beside) return S.upper ? scan_run<true>(run) : scan_run<false>(run);
  } else if constexpr (M >= 2) {
    if (beside && run.offset[M - 2] == -2 * run.dir) return solve_run<M, 2>(run);
    if (beside) return solve_run<M, 1>(run);
  }
  return solve_run<M, 0>(run);
}

// All rows in the order of the sweep, one column.
template <class T, class I>
bool solve_vector(const TriangleView<T, I>& S, const T* b, T* x) {
  for (int64_t t = 0; t < S.n_blocks; ++t) {
    const I* block = S.blocks + 3 * (S.upper ? S.n_blocks - 1 - t : t);
    const int64_t r0 = block[0], r1 = block[3], stride = block[2];
    bool done = true;
    switch (block[1] > 0 ? block[1] - !S.unit : -1) {
      case 0: done = solve_uniform<0>(S, r0, r1, stride, b, x); break;
      case 1: done = solve_uniform<1>(S, r0, r1, stride, b, x); break;
      case 2: done = solve_uniform<2>(S, r0, r1, stride, b, x); break;
      case 3: done = solve_uniform<3>(S, r0, r1, stride, b, x); break;
      case 4: done = solve_uniform<4>(S, r0, r1, stride, b, x); break;
      case 5: done = solve_uniform<5>(S, r0, r1, stride, b, x); break;
      case 6: done = solve_uniform<6>(S, r0, r1, stride, b, x); break;
      case 7: done = solve_uniform<7>(S, r0, r1, stride, b, x); break;
      case 8: done = solve_uniform<8>(S, r0, r1, stride, b, x); break;
      default: {
        const int64_t dir = S.upper ? -1 : 1;
        int64_t i = S.upper ? r1 - 1 : r0;
        // Read only by a row that has an entry there.
        T neighbor = i - dir >= 0 && i - dir < S.rows ? x[i - dir] : T(0);
        for (int64_t left = r1 - r0; left > 0; --left, i += dir) {
          const TriangleRow<T, I> row(S, i);
          if (__builtin_expect(__builtin_isinf(row.reciprocal), 0)) return false;
          x[i] = neighbor = solve_row<true>(S, row, i, b[i], x, neighbor);
        }
      }
    }
    if (!done) return false;
  }
  return true;
}

// Columns c0 <= c < c1 of k, all rows in the order of the sweep.
template <class T, class I>
bool sptrsv(const TriangleView<T, I>& S, const T* b, T* x, int64_t k, int64_t c0, int64_t c1) {
  if (k == 1) return solve_vector(S, b, x);
  for (int64_t t = 0; t < S.rows; ++t) {
    const int64_t i = S.upper ? S.rows - 1 - t : t;
    const TriangleRow<T, I> row(S, i);
    if (__builtin_isinf(row.reciprocal)) return false;
    solve_tiles<kTileVectors>(S, row, b + i * k, x + i * k, x, k, c0, c1);
  }
  return true;
}

// Rows order[r0] .. order[r1 - 1], none of which depends on another: part of a level.
template <class T, class I>
bool sptrsv_rows(const TriangleView<T, I>& S, const I* order, int64_t r0, int64_t r1, const T* b, T* x,
                 int64_t k) {
  for (int64_t t = r0; t < r1; ++t) {
    const int64_t i = order[t];
    const TriangleRow<T, I> row(S, i);
    if (__builtin_isinf(row.reciprocal)) return false;
    if (k == 1)
      x[i] = solve_row<false>(S, row, i, b[i], x, T(0));
    else
      solve_tiles<kTileVectors>(S, row, b + i * k, x + i * k, x, k, 0, k);
  }
  return true;
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
