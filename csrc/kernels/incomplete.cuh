// Incomplete factorization and its derivatives (kernels/incomplete.h) by levels: a step reads what steps of
// lower levels computed, so all of a level go at once; the adjoint goes from the last level to the first.
// What the host's sweeps add into entries that other steps read is gathered here instead, by lists of the
// uses of each entry: no atomics.
#pragma once

#include <cmath>

#include "kernels/elimination.h"
#include "kernels/launch.cuh"

namespace learnsolve::cuda {

// The steps in the order of their levels: level l is levels[l] <= t < levels[l + 1]. Entry e of the factors
// is used in steps[u] by uses[2u] = their place in A's values, together with entry uses[2u + 1], for
// uses_ptr[e] <= u < uses_ptr[e + 1]: in a product, or as the pivot that uses[2u + 1] is divided by.
template <class I>
struct LevelPlan {
  Elimination<I> E;
  const int64_t* levels;
  const I* uses_ptr;
  const I* uses;
  int64_t entries, nnz, batch;
};

// f for A's values a. A pivot that is not positive (Cholesky), zero (LU) or not finite stays as it is.
template <class T, class I>
struct FactorStep {
  LevelPlan<I> P;
  BatchOf<const T> a;
  T* f;
  static constexpr bool kReversed = false;

  static LS_DEVICE bool good(const Elimination<I>& E, T s) {
    return (E.cholesky ? s > 0 : s != 0) && s - s == 0;
  }
  LS_DEVICE void operator()(int64_t t, int64_t b) const {
    const Elimination<I>& E = P.E;
    T* fb = f + b * P.entries;
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = a.of(b)[E.source[t]];
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) s -= fb[E.pairs[2 * u]] * fb[E.pairs[2 * u + 1]];
    if (d == e)
      fb[e] = E.cholesky && good(E, s) ? std::sqrt(s) : s;
    else
      fb[e] = d < 0 ? s : s / fb[d];
  }
};

// What both derivatives divide step t by.
template <class T, class I>
LS_DEVICE T step_scale(const Elimination<I>& E, const T* f, int64_t e, int64_t d) {
  return d < 0 || (d == e && !E.cholesky) ? T(1) : T(1) / (d == e ? 2 * f[e] : f[d]);
}

// z = J(f)^-1 v
template <class T, class I>
struct TangentStep {
  LevelPlan<I> P;
  BatchOf<const T> f, v;
  T* z;
  static constexpr bool kReversed = false;

  LS_DEVICE void operator()(int64_t t, int64_t b) const {
    const Elimination<I>& E = P.E;
    const T* fb = f.of(b);
    T* zb = z + b * P.entries;
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = v.of(b)[E.source[t]];
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) {
      const int64_t p = E.pairs[2 * u], q = E.pairs[2 * u + 1];
      s -= fb[p] * zb[q] + zb[p] * fb[q];
    }
    if (d >= 0 && d != e) s -= fb[e] * zb[d];
    zb[e] = s * step_scale(E, fb, e, d);
  }
};

// w = J(f)^-T g, in the places of A's values.
template <class T, class I>
struct AdjointStep {
  LevelPlan<I> P;
  BatchOf<const T> f, g;
  T* w;
  static constexpr bool kReversed = true;

  LS_DEVICE void operator()(int64_t t, int64_t b) const {
    const Elimination<I>& E = P.E;
    const T* fb = f.of(b);
    T* wb = w + b * P.nnz;
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = g.of(b)[e];
    for (int64_t u = P.uses_ptr[e]; u < P.uses_ptr[e + 1]; ++u)
      s -= wb[P.uses[2 * u]] * fb[P.uses[2 * u + 1]];
    wb[E.source[t]] = s * step_scale(E, fb, e, d);
  }
};

// B(x, z), in the places of A's values; every step by itself.
template <class T, class I>
struct ProductStep {
  LevelPlan<I> P;
  BatchOf<const T> x, z;
  T* out;

  LS_DEVICE void operator()(int64_t t, int64_t b) const {
    const Elimination<I>& E = P.E;
    const T *xb = x.of(b), *zb = z.of(b);
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = 0;
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) {
      const int64_t p = E.pairs[2 * u], q = E.pairs[2 * u + 1];
      s += xb[p] * zb[q] + zb[p] * xb[q];
    }
    if (d == e) {
      if (E.cholesky) s += 2 * xb[e] * zb[e];
    } else if (d >= 0) {
      s += xb[e] * zb[d] + zb[e] * xb[d];
    }
    out[b * P.nnz + E.source[t]] = s;
  }
};

// C(x, w), w in the places of A's values; every step by itself, for the entry that it computes.
template <class T, class I>
struct ProductAdjointStep {
  LevelPlan<I> P;
  BatchOf<const T> x, w;
  T* out;

  LS_DEVICE void operator()(int64_t t, int64_t b) const {
    const Elimination<I>& E = P.E;
    const T *xb = x.of(b), *wb = w.of(b);
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = 0;
    for (int64_t u = P.uses_ptr[e]; u < P.uses_ptr[e + 1]; ++u)
      s += wb[P.uses[2 * u]] * xb[P.uses[2 * u + 1]];
    if (d == e) {
      if (E.cholesky) s += 2 * wb[E.source[t]] * xb[e];
    } else if (d >= 0) {
      s += wb[E.source[t]] * xb[d];
    }
    out[b * P.entries + e] = s;
  }
};

// The first step, in the order of levels, that met a bad pivot: breakdown = (row, pivot), row -1 if there is
// none. What depends on it is of a higher level. By a block; firsts: shared, a number for each thread.
template <class T, class I>
LS_DEVICE void find_breakdown(const LevelPlan<I>& P, const I* crow, int64_t rows, const T* f, int64_t* firsts,
                              double* breakdown) {
  const Elimination<I>& E = P.E;
  const int lane = static_cast<int>(threadIdx.x);
  int64_t first = lane;
  while (first < E.steps &&
         (E.pivot[first] != E.order[first] || FactorStep<T, I>::good(E, f[E.order[first]])))
    first += kThreads;
  firsts[lane] = first;
  __syncthreads();
  for (int h = kThreads / 2; h > 0; h /= 2) {
    if (lane < h && firsts[lane + h] < firsts[lane]) firsts[lane] = firsts[lane + h];
    __syncthreads();
  }
  if (lane == 0) {
    first = firsts[0];
    const bool found = first < E.steps;
    int64_t lo = 0, hi = found ? rows : 0;  // the last row that begins at or before the pivot's place
    while (hi - lo > 1) {
      const int64_t mid = (lo + hi) / 2;
      (crow[mid] <= E.source[first] ? lo : hi) = mid;
    }
    breakdown[0] = found ? static_cast<double>(lo) : -1;
    breakdown[1] = found ? static_cast<double>(f[E.order[first]]) : 0;
  }
  __syncthreads();
}

}  // namespace learnsolve::cuda
