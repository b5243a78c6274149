// Incomplete factorization and its derivatives (kernels/factors.h) by levels: a step reads what steps of
// lower levels computed, so all of a level go at once; the adjoint goes from the last level to the first.
// What the host's sweeps add into entries that other steps read is gathered here instead, by lists of the
// uses of each entry: no atomics.
#pragma once

#include <cmath>

#include "kernels/launch.cuh"
#include "kernels/views.h"

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

enum class Order { kLevels, kReversedLevels, kAny };

// A map of x and v, one of those below, whose `step` computes one number of `out`.
template <class T, class I>
struct PlannedSteps {
  LevelPlan<I> P;
  BatchOf<const T> x, v;
  BatchOf<T> out;
};

// A pivot that is not positive (Cholesky), zero (LU) or not finite stays as it is.
template <class T, class I>
LS_DEVICE bool good_pivot(const Elimination<I>& E, T s) {
  return (E.cholesky ? s > 0 : s != 0) && s - s == 0;
}

// What both derivatives divide step t by.
template <class T, class I>
LS_DEVICE T step_scale(const Elimination<I>& E, const T* f, int64_t e, int64_t d) {
  return d < 0 || (d == e && !E.cholesky) ? T(1) : T(1) / (d == e ? 2 * f[e] : f[d]);
}

// The products of step t, differentiated: all of x_p z_q + z_p x_q.
template <class T, class I>
LS_DEVICE T products(const Elimination<I>& E, int64_t t, const T* x, const T* z) {
  T s = 0;
  for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) {
    const int64_t p = E.pairs[2 * u], q = E.pairs[2 * u + 1];
    s += x[p] * z[q] + z[p] * x[q];
  }
  return s;
}

// What the uses of entry e give to it.
template <class T, class I>
LS_DEVICE T uses_of(const LevelPlan<I>& P, int64_t e, const T* w, const T* x) {
  T s = 0;
  for (int64_t u = P.uses_ptr[e]; u < P.uses_ptr[e + 1]; ++u) s += w[P.uses[2 * u]] * x[P.uses[2 * u + 1]];
  return s;
}

// f for A's values a.
struct Factor {
  static constexpr Order kOrder = Order::kLevels;
  template <class T, class I>
  static LS_DEVICE void step(const LevelPlan<I>& P, int64_t t, const T*, const T* a, T* f) {
    const Elimination<I>& E = P.E;
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = a[E.source[t]];
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) s -= f[E.pairs[2 * u]] * f[E.pairs[2 * u + 1]];
    if (d == e)
      f[e] = E.cholesky && good_pivot(E, s) ? std::sqrt(s) : s;
    else
      f[e] = d < 0 ? s : s / f[d];
  }
};

// z = J(f)^-1 v
struct Tangent {
  static constexpr Order kOrder = Order::kLevels;
  template <class T, class I>
  static LS_DEVICE void step(const LevelPlan<I>& P, int64_t t, const T* f, const T* v, T* z) {
    const Elimination<I>& E = P.E;
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = v[E.source[t]] - products(E, t, f, z);
    if (d >= 0 && d != e) s -= f[e] * z[d];
    z[e] = s * step_scale(E, f, e, d);
  }
};

// w = J(f)^-T g, in the places of A's values.
struct Adjoint {
  static constexpr Order kOrder = Order::kReversedLevels;
  template <class T, class I>
  static LS_DEVICE void step(const LevelPlan<I>& P, int64_t t, const T* f, const T* g, T* w) {
    const int64_t e = P.E.order[t];
    w[P.E.source[t]] = (g[e] - uses_of(P, e, w, f)) * step_scale(P.E, f, e, int64_t{P.E.pivot[t]});
  }
};

// B(x, z), in the places of A's values.
struct Product {
  static constexpr Order kOrder = Order::kAny;
  template <class T, class I>
  static LS_DEVICE void step(const LevelPlan<I>& P, int64_t t, const T* x, const T* z, T* out) {
    const Elimination<I>& E = P.E;
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = products(E, t, x, z);
    if (d == e) {
      if (E.cholesky) s += 2 * x[e] * z[e];
    } else if (d >= 0) {
      s += x[e] * z[d] + z[e] * x[d];
    }
    out[E.source[t]] = s;
  }
};

// C(x, w), w in the places of A's values; every step for the entry that it computes.
struct ProductAdjoint {
  static constexpr Order kOrder = Order::kAny;
  template <class T, class I>
  static LS_DEVICE void step(const LevelPlan<I>& P, int64_t t, const T* x, const T* w, T* out) {
    const Elimination<I>& E = P.E;
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = uses_of(P, e, w, x);
    if (d == e) {
      if (E.cholesky) s += 2 * w[E.source[t]] * x[e];
    } else if (d >= 0) {
      s += w[E.source[t]] * x[d];
    }
    out[e] = s;
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
  while (first < E.steps && (E.pivot[first] != E.order[first] || good_pivot(E, f[E.order[first]])))
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
