// T x = b for a triangular T, row by row,
//
//     x_i = b_i r_i - sum_j (t_ij r_i) x_j,   r_i = 1 / t_ii (1 for a unit diagonal),
//
// the farthest column first. So what passes from one row to the next is a single multiply-add, if the
// neighbour's result is still in a register: 4 cycles a row, where a division at the end and a trip through
// memory are 25. Every row is computed by this rule in this order, whatever the path: no schedule, no
// number of threads changes a bit. The one exception is one column of a bidiagonal run, which is
// a scan (below); it is never split.
//
// Backward, in the same sweep over T^T y = g: the gradient of t_ij is -y_i x_j, that of b is y.
//
// All functions return false if a reciprocal is infinite (a zero, or nearly, on the diagonal). x may be b.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/lanes.h"
#include "kernels/sddmm.h"
#include "kernels/spmm.h"

namespace learnsolve::LEARNSOLVE_ISA {

// A product that must not be fused with the subtraction that follows: the compiler may fuse either factor
// of b r - m x, and would not do it alike everywhere.
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

// Row i, one column. `neighbour` is the result of the row before in the order of the sweep, if Chained.
template <bool Chained, class T, class I>
LS_INLINE T solve_row(const TriangleView<T, I>& S, const TriangleRow<T, I>& row, int64_t i, T bi, const T* x,
                      T neighbour) {
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
  if (Chained && j == i - row.step) return s - coefficient(p) * neighbour;
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

// The gradients of row i's entries, from rows of y that are known: T is the transpose of the forward's
// matrix.
template <class T, class I>
LS_INLINE void gradient_row(const TriangleView<T, I>& S, int64_t i, const T* y, const T* x, int64_t k, T* ga,
                            bool accumulate) {
  for (int64_t p = S.A.ptr[i]; p < S.A.ptr[i + 1]; ++p) {
    T* at = ga + (S.A.perm ? static_cast<int64_t>(S.A.perm[p]) : p);
    const int64_t j = S.A.idx[p];
    const T g = k == 1 ? rounded(y[j] * x[i]) : row_row_dot(y + j * k, x + i * k, k);
    *at = accumulate ? *at - g : -g;
  }
}

// --- runs of uniform rows, one column ---

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
  // Of the backward, where `x` is y: the forward's solution and the gradients.
  const T* forward;
  T* ga[M > 0 ? M : 1];
  T* gd;
  bool accumulate;
};

template <class T>
LS_INLINE void subtract(T* at, T g, bool accumulate) {
  *at = accumulate ? *at - g : -g;
}

// The nearest `Near` columns are those of the rows just computed: they stay in registers.
template <int M, int Near, bool Gradient, class T>
bool solve_run(const Run<M, T>& run) {
  T recent[2] = {0, 0};  // results of the row before and of the one before that
  for (int e = 0; e < Near; ++e) recent[e] = run.x[-(e + 1) * run.dir];
  const int64_t dir = run.dir, step = run.dir * run.stride;
  for (int64_t t = 0; t < run.n; ++t) {
    const int64_t v = t * dir, q = t * step;
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
    if constexpr (Gradient) {
      const T f = run.forward[v];
#pragma GCC unroll 8
      for (int l = 0; l < M; ++l) subtract(run.ga[l] + q, rounded(known[l] * f), run.accumulate);
      if (run.d) subtract(run.gd + q, rounded(s * f), run.accumulate);
    }
  }
  return true;
}

// One off-diagonal entry, beside the diagonal: x_i = t_i + m_i x_{i-1} is a composition of affine maps,
// V rows of which are composed in log2 V steps. Between vectors passes one multiply-add. Where the composed
// factors overflow, the group is computed row by row.
template <bool Up, class T>
struct Scan {
  static constexpr int V = kLanes<T>;
  using vector = typename Lanes<T>::vector;
  using mask = typename Lanes<T>::mask;
  static constexpr int kLast = Up ? 0 : V - 1;

  static LS_INLINE vector all(T value) { return value - vector{}; }
  static LS_INLINE vector last(vector v) {
    mask at;
    for (int e = 0; e < V; ++e) at[e] = kLast;
    return __builtin_shuffle(v, at);
  }
  // Lanes move on by `by` rows in the order of the sweep; those that come free are taken from `fill`.
  static LS_INLINE vector shift(vector v, vector fill, int by) {
    mask at;
    for (int e = 0; e < V; ++e) {
      const int from = Up ? e + by : e - by;
      at[e] = from >= 0 && from < V ? from : V + e;
    }
    return __builtin_shuffle(v, fill, at);
  }
  // Places of V rows, the lowest first.
  static LS_INLINE vector gather(const T* p, int64_t stride) {
    if (stride == 1) return load(p);
    vector v;
    for (int e = 0; e < V; ++e) v[e] = p[e * stride];
    return v;
  }
  static LS_INLINE void scatter(T* p, int64_t stride, vector v, bool accumulate) {
    for (int e = 0; e < V; ++e) subtract(p + e * stride, T(v[e]), accumulate);
  }
};

template <bool Up, bool Gradient, class T>
bool scan_run(const Run<1, T>& run) {
  using S = Scan<Up, T>;
  using vector = typename S::vector;
  constexpr int V = S::V;
  constexpr int64_t dir = Up ? -1 : 1;
  const int64_t stride = run.stride, lowest = Up ? V - 1 : 0;
  // Both entries of each row beside one another: two loads and a permutation each.
  const bool pairs =
      kShuffles<2, T> && run.d && stride == 2 && (run.a[0] - run.d == 1 || run.d - run.a[0] == 1);
  const bool diagonal_first = pairs && run.d < run.a[0];
  LanePicker<2, T> picker;
  LaneWeaver<2, T> weaver;
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
    for (int by = 1; by < V; by *= 2) {
      s += m * S::shift(s, vector{}, by);
      m *= S::shift(m, S::all(1), by);
    }
    const vector before = carry;
    vector x = s + m * before;
    carry = S::last(s) + S::last(m) * before;
    const T end = carry[0];
    if (__builtin_expect(!(end - end == 0), 0)) {
      Run<1, T> group = run;
      const int64_t skip = t * dir;
      group.a[0] += skip * stride;
      if (run.d) group.d += skip * stride;
      group.b += skip, group.x += skip, group.n = V;
      if (!solve_run<1, 1, false>(group)) return false;
      x = load(run.x + v);
      carry = S::last(x);
    } else {
      store(run.x + v, x);
    }
    if constexpr (Gradient) {
      const vector f = load(run.forward + v);
      const vector ga = S::shift(x, before, 1) * f, gd = x * f;
      if (pairs && !run.accumulate) {
        T* at = (diagonal_first ? run.gd : run.ga[0]) + q;
        weaver.lanes[0] = -(diagonal_first ? gd : ga);
        weaver.lanes[1] = -(diagonal_first ? ga : gd);
        store(at, weaver.weave(0));
        store(at + V, weaver.weave(1));
      } else {
        S::scatter(run.ga[0] + q, stride, ga, run.accumulate);
        if (run.d) S::scatter(run.gd + q, stride, gd, run.accumulate);
      }
    }
  }
  if (t == run.n) return true;
  Run<1, T> rest = run;
  const int64_t skip = t * dir;
  rest.a[0] += skip * stride;
  if (run.d) rest.d += skip * stride;
  rest.b += skip, rest.x += skip, rest.n -= t;
  if constexpr (Gradient) {
    rest.forward += skip, rest.ga[0] += skip * stride;
    if (run.d) rest.gd += skip * stride;
  }
  return solve_run<1, 1, Gradient>(rest);
}

template <int M, bool Gradient, class T, class I>
bool solve_uniform(const TriangleView<T, I>& S, int64_t r0, int64_t r1, int64_t stride, const T* b, T* x,
                   const T* forward, T* ga, bool accumulate) {
  Run<M, T> run{};
  run.dir = S.upper ? -1 : 1;
  run.n = r1 - r0;
  run.stride = stride;
  run.accumulate = accumulate;
  const int64_t i = S.upper ? r1 - 1 : r0;
  const int64_t begin = S.A.ptr[i], end = S.A.ptr[i + 1];
  const auto place = [&](int64_t p) { return S.A.perm ? static_cast<int64_t>(S.A.perm[p]) : p; };
  for (int l = 0; l < M; ++l) {
    const int64_t p = S.upper ? end - 1 - l : begin + l;
    run.a[l] = S.A.values + place(p);
    run.offset[l] = S.A.idx[p] - i;
    if (Gradient) run.ga[l] = ga + place(p);
  }
  if (!S.unit) {
    const int64_t at = place(S.upper ? begin : end - 1);
    run.d = S.A.values + at;
    if (Gradient) run.gd = ga + at;
  }
  run.b = b + i;
  run.x = x + i;
  if (Gradient) run.forward = forward + i;
  const bool beside = M > 0 && run.offset[M > 0 ? M - 1 : 0] == -run.dir;
  if constexpr (M == 1) {
    if (beside) return S.upper ? scan_run<true, Gradient>(run) : scan_run<false, Gradient>(run);
  } else if constexpr (M >= 2) {
    if (beside && run.offset[M - 2] == -2 * run.dir) return solve_run<M, 2, Gradient>(run);
    if (beside) return solve_run<M, 1, Gradient>(run);
  }
  return solve_run<M, 0, Gradient>(run);
}

// All rows in the order of the sweep, one column.
template <bool Gradient, class T, class I>
bool sweep_vector(const TriangleView<T, I>& S, const T* b, T* x, const T* forward, T* ga, bool accumulate) {
  for (int64_t t = 0; t < S.n_blocks; ++t) {
    const I* block = S.blocks + 3 * (S.upper ? S.n_blocks - 1 - t : t);
    const int64_t r0 = block[0], r1 = block[3], stride = block[2];
    bool done = true;
    switch (block[1] > 0 ? block[1] - !S.unit : -1) {
      case 0: done = solve_uniform<0, Gradient>(S, r0, r1, stride, b, x, forward, ga, accumulate); break;
      case 1: done = solve_uniform<1, Gradient>(S, r0, r1, stride, b, x, forward, ga, accumulate); break;
      case 2: done = solve_uniform<2, Gradient>(S, r0, r1, stride, b, x, forward, ga, accumulate); break;
      case 3: done = solve_uniform<3, Gradient>(S, r0, r1, stride, b, x, forward, ga, accumulate); break;
      case 4: done = solve_uniform<4, Gradient>(S, r0, r1, stride, b, x, forward, ga, accumulate); break;
      default: {
        const int64_t dir = S.upper ? -1 : 1;
        int64_t i = S.upper ? r1 - 1 : r0;
        // Read only by a row that has an entry there.
        T neighbour = i - dir >= 0 && i - dir < S.rows ? x[i - dir] : T(0);
        for (int64_t left = r1 - r0; left > 0; --left, i += dir) {
          const TriangleRow<T, I> row(S, i);
          if (__builtin_expect(__builtin_isinf(row.reciprocal), 0)) return false;
          x[i] = neighbour = solve_row<true>(S, row, i, b[i], x, neighbour);
          if (Gradient) gradient_row(S, i, x, forward, 1, ga, accumulate);
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
  if (k == 1)
    return sweep_vector<false>(S, b, x, static_cast<const T*>(nullptr), static_cast<T*>(nullptr), false);
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

// S y = g and the gradients for the values, S being the transpose of the forward's matrix.
template <class T, class I>
bool sptrsv_backward(const TriangleView<T, I>& S, const T* g, const T* x, T* y, int64_t k, T* ga,
                     bool accumulate) {
  if (k == 1) return sweep_vector<true>(S, g, y, x, ga, accumulate);
  for (int64_t t = 0; t < S.rows; ++t) {
    const int64_t i = S.upper ? S.rows - 1 - t : t;
    const TriangleRow<T, I> row(S, i);
    if (__builtin_isinf(row.reciprocal)) return false;
    solve_tiles<kTileVectors>(S, row, g + i * k, y + i * k, y, k, 0, k);
    gradient_row(S, i, y, x, k, ga, accumulate);
  }
  return true;
}

// The gradients of rows r0 <= i < r1 alone, y being known.
template <class T, class I>
void sptrsv_gradient(const TriangleView<T, I>& S, int64_t r0, int64_t r1, const T* y, const T* x, int64_t k,
                     T* ga, bool accumulate) {
  for (int64_t i = r0; i < r1; ++i) gradient_row(S, i, y, x, k, ga, accumulate);
}

}  // namespace learnsolve::LEARNSOLVE_ISA
