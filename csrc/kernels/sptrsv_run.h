// Triangular solves through runs of uniform rows, one column: neighbors stay in registers, bidiagonal runs
// are a scan.
#pragma once

#include "kernels/sptrsv_row.h"

namespace learnsolve::LEARNSOLVE_ISA {

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

}  // namespace learnsolve::LEARNSOLVE_ISA
