// Incomplete factorization on a pattern and its derivatives, to any order.
//
// The factors f, entry by entry (L and, for LU, U behind it), are defined by one quadratic equation for each
// entry (i, j) of A that is read,
//     F_e(f) = sum over the products of e of f_p f_q + own_e(f) = a_e,
// where own_e is what holds the unknown itself: l_ij d_j below the diagonal (d_j the pivot of column j),
// l_jj^2 on that of L L^T, u_ij on and above that of L U. Elimination solves them one after another.
//
// With B(x, z) the symmetric bilinear form of F's quadratic part, the derivative of F is J(f) z = E z + B(f,
// z) (E: the entries of U), and all derivatives are made of
//     tangent   z = J(f)^-1 v      of the factors, for that of A's values: substitution, forward
//     adjoint   w = J(f)^-T g      gradient for A's values, for that of the factors: the same, backward
//     product   B(x, z)            product^T: C(x, w) with <C(x, w), z> = <w, B(x, z)>
// (learnsolve/ops/core/incomplete.py). The adjoint is the reverse sweep of the elimination of: Murray,
// "Differentiation of the Cholesky decomposition", arXiv 1602.07527, restricted to the pattern.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/elimination.h"

namespace learnsolve::LEARNSOLVE_ISA {

inline float square_root(float x) { return __builtin_sqrtf(x); }
inline double square_root(double x) { return __builtin_sqrt(x); }

// f for A's values a. Returns the step that met a pivot that is not positive (Cholesky), zero (LU) or not
// finite, and leaves it in f; -1 if all are good. The entries `units` of f are the caller's.
template <class T, class I>
int64_t incomplete_factor(const Elimination<I>& E, const T* LS_RESTRICT a, T* LS_RESTRICT f) {
  for (int64_t t = 0; t < E.steps; ++t) {
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = a[E.source[t]];
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) s -= f[E.pairs[2 * u]] * f[E.pairs[2 * u + 1]];
    if (d == e) {
      f[e] = s;
      if (!((E.cholesky ? s > 0 : s != 0) && s - s == 0)) return t;
      if (E.cholesky) f[e] = square_root(s);
    } else {
      f[e] = d < 0 ? s : s / f[d];
    }
  }
  return -1;
}

// z = J(f)^-1 v
template <class T, class I>
void incomplete_tangent(const Elimination<I>& E, const T* LS_RESTRICT f, const T* LS_RESTRICT v,
                        T* LS_RESTRICT z) {
  for (int64_t t = 0; t < E.steps; ++t) {
    const int64_t e = E.order[t], d = E.pivot[t];
    // Known before s: a step waits for a product instead of a quotient (L L^T of a 1000 x 1000 grid, float64:
    // 20 ms instead of 35).
    const T scale = d < 0 || (d == e && !E.cholesky) ? T(1) : T(1) / (d == e ? 2 * f[e] : f[d]);
    T s = v[E.source[t]];
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) {
      const int64_t p = E.pairs[2 * u], q = E.pairs[2 * u + 1];
      s -= f[p] * z[q] + z[p] * f[q];
    }
    if (d >= 0 && d != e) s -= f[e] * z[d];
    z[e] = s * scale;
  }
}

// w = J(f)^-T g, in the places of A's values. g is overwritten.
template <class T, class I>
void incomplete_adjoint(const Elimination<I>& E, const T* LS_RESTRICT f, T* LS_RESTRICT g, T* LS_RESTRICT w) {
  for (int64_t t = E.steps - 1; t >= 0; --t) {
    const int64_t e = E.order[t], d = E.pivot[t];
    // As in the tangent: 25 ms instead of 41.
    const T scale = d < 0 || (d == e && !E.cholesky) ? T(1) : T(1) / (d == e ? 2 * f[e] : f[d]);
    const T s = g[e] * scale;
    if (d >= 0 && d != e) g[d] -= s * f[e];
    w[E.source[t]] = s;
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) {
      const int64_t p = E.pairs[2 * u], q = E.pairs[2 * u + 1];
      if (p == q) {  // a square: one write less to wait for
        g[p] -= 2 * s * f[p];
      } else {
        g[p] -= s * f[q];
        g[q] -= s * f[p];
      }
    }
  }
}

// b = B(x, z), in the places of A's values.
template <class T, class I>
void incomplete_product(const Elimination<I>& E, const T* LS_RESTRICT x, const T* LS_RESTRICT z,
                        T* LS_RESTRICT b) {
  for (int64_t t = 0; t < E.steps; ++t) {
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = 0;
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) {
      const int64_t p = E.pairs[2 * u], q = E.pairs[2 * u + 1];
      s += x[p] * z[q] + z[p] * x[q];
    }
    if (d == e) {
      if (E.cholesky) s += 2 * x[e] * z[e];
    } else if (d >= 0) {
      s += x[e] * z[d] + z[e] * x[d];
    }
    b[E.source[t]] = s;
  }
}

// c += C(x, w), w in the places of A's values.
template <class T, class I>
void incomplete_product_adjoint(const Elimination<I>& E, const T* LS_RESTRICT x, const T* LS_RESTRICT w,
                                T* LS_RESTRICT c) {
  for (int64_t t = 0; t < E.steps; ++t) {
    const int64_t e = E.order[t], d = E.pivot[t];
    const T s = w[E.source[t]];
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) {
      const int64_t p = E.pairs[2 * u], q = E.pairs[2 * u + 1];
      c[p] += s * x[q];
      c[q] += s * x[p];
    }
    if (d == e) {
      if (E.cholesky) c[e] += 2 * s * x[e];
    } else if (d >= 0) {
      c[e] += s * x[d];
      c[d] += s * x[e];
    }
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
