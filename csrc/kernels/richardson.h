// Scaled Richardson sweeps with momentum,  x' = x + s o (b - A x) + m (x - old),  old the iterate before x,
// and their adjoint. Without momentum and with s = w / diag(A) this is weighted Jacobi, with constant s the
// method of Richardson; with constant s and m that of the heavy ball.
//
// Adjoint of one sweep, for the cotangent lambda of x', that of the iterate after it, later (with momentum
// m'), and the cotangents c of ||b - A x|| (a column each, already divided by the norm):
//     r   = b - A x
//     rho = s o lambda + c r                 the cotangent of r
//     sbar += sum over columns of r o lambda,   bbar += rho,   mbar = <lambda, x - old>
//     lambda <- (1 + m) lambda - m' later - A^T rho,   later <- lambda,   abar_ij -= <rho_i, x_j>
// What the transpose adds is spmm_backward with g = -rho, so the sweep writes g.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/richardson_operands.h"
#include "kernels/sddmm.h"
#include "kernels/spmm.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Squares of the residual are summed per block, blocks are summed in order by the caller: the norm
// does not depend on how blocks are distributed over threads.
template <class T, bool Momentum>
struct Relax {
  const T* LS_RESTRICT x;
  const T* LS_RESTRICT b;
  const T* LS_RESTRICT s;
  const T* LS_RESTRICT old;
  T momentum;
  T* LS_RESTRICT next;
  T* LS_RESTRICT squares;  // blocks x k
  int64_t k;
  int64_t at = 0;
  T lanes[kRows<T>] = {};
  static constexpr bool kAddsByLanes = true;

  Relax(const Sweep<T>& a, int64_t k_)
      : x(a.x), b(a.b), s(a.s), old(a.old), momentum(a.momentum), next(a.next), squares(a.squares), k(k_) {}
  void begin(int64_t block) {
    at = block * k;
    for (int e = 0; e < kRows<T>; ++e) lanes[e] = 0;
    if (k != 1)
      for (int64_t c = 0; c < k; ++c) squares[at + c] = 0;
  }
  void end(int64_t) {
    if (k != 1) return;
    T sum = 0;
    for (int e = 0; e < kRows<T>; ++e) sum += lanes[e];
    squares[at] = sum;
  }
  LS_INLINE void rows(int64_t i, int n, const T* ax) {
    for (int e = 0; e < n; ++e) {
      const T r = b[i + e] - ax[e];
      lanes[e] += r * r;
      T value = x[i + e] + s[i + e] * r;
      if constexpr (Momentum) value += momentum * (x[i + e] - old[i + e]);
      next[i + e] = value;
    }
  }
  LS_INLINE void columns(int64_t i, int64_t j, int n, const T* ax) {
    const int64_t o = i * k + j;
    for (int c = 0; c < n; ++c) {
      const T r = b[o + c] - ax[c];
      squares[at + j + c] += r * r;
      T value = x[o + c] + s[i] * r;
      if constexpr (Momentum) value += momentum * (x[o + c] - old[o + c]);
      next[o + c] = value;
    }
  }
};

template <class T, class I>
void richardson_sweep(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, Sweep<T> a,
                      int64_t k) {
  if (a.old)
    for_each_row(A, blocks, b0, b1, a.x, k, Relax<T, true>(a, k));
  else
    for_each_row(A, blocks, b0, b1, a.x, k, Relax<T, false>(a, k));
}

template <class T, bool Momentum>
struct RelaxAdjoint {
  const T* LS_RESTRICT x;
  const T* LS_RESTRICT b;
  const T* LS_RESTRICT s;
  const T* LS_RESTRICT lambda;
  const T* LS_RESTRICT c;
  T* LS_RESTRICT g;
  T* LS_RESTRICT bbar;
  T* LS_RESTRICT sbar;
  T momentum, factor;
  T* LS_RESTRICT later;
  const T* LS_RESTRICT old;
  T* LS_RESTRICT sums;
  int64_t k;
  T lanes[kRows<T>] = {};
  static constexpr bool kAddsByLanes = true;

  RelaxAdjoint(const SweepAdjoint<T>& a, int64_t k_)
      : x(a.x),
        b(a.b),
        s(a.s),
        lambda(a.lambda),
        c(a.c),
        g(a.g),
        bbar(a.bbar),
        sbar(a.sbar),
        momentum(a.momentum),
        factor(a.factor),
        later(a.later),
        old(a.old),
        sums(a.sums),
        k(k_) {}
  void begin(int64_t) {
    if constexpr (Momentum)
      for (int e = 0; e < kRows<T>; ++e) lanes[e] = 0;
  }
  void end(int64_t block) {
    if constexpr (Momentum) {
      if (!old) return;
      T sum = 0;
      for (int e = 0; e < kRows<T>; ++e) sum += lanes[e];
      sums[block] = sum;
    }
  }
  LS_INLINE T turned(int64_t o) const { return lambda[o] + momentum * lambda[o] + factor * later[o]; }
  LS_INLINE void rows(int64_t i, int n, const T* ax) {
    const T cr = c ? c[0] : T(0);
    for (int e = 0; e < n; ++e) {
      const T r = b[i + e] - ax[e];
      const T rho = s[i + e] * lambda[i + e] + cr * r;
      if (sbar) sbar[i + e] += r * lambda[i + e];
      if (bbar) bbar[i + e] += rho;
      g[i + e] = -rho;
    }
    if constexpr (Momentum) {
      if (old)
        for (int e = 0; e < n; ++e) lanes[e] += lambda[i + e] * (x[i + e] - old[i + e]);
      for (int e = 0; e < n; ++e) later[i + e] = turned(i + e);
    }
  }
  LS_INLINE void columns(int64_t i, int64_t j, int n, const T* ax) {
    const int64_t o = i * k + j;
    T sum = 0;
    for (int e = 0; e < n; ++e) {
      const T r = b[o + e] - ax[e];
      const T rho = s[i] * lambda[o + e] + (c ? c[j + e] * r : T(0));
      sum += r * lambda[o + e];
      if (bbar) bbar[o + e] += rho;
      g[o + e] = -rho;
    }
    if (sbar) sbar[i] += sum;
    if constexpr (Momentum) momentum_row(o, n);
  }
  LS_INLINE void momentum_row(int64_t o, int64_t n) {
    T sum = 0;
    if (old)
      for (int64_t e = 0; e < n; ++e) sum += lambda[o + e] * (x[o + e] - old[o + e]);
    for (int64_t e = 0; e < n; ++e) later[o + e] = turned(o + e);
    lanes[0] += sum;
  }
  // Row i where the residual is not needed: rho = s o lambda.
  LS_INLINE void without_residual(int64_t i) {
    for (int64_t o = i * k; o < (i + 1) * k; ++o) {
      const T rho = s[i] * lambda[o];
      if (bbar) bbar[o] += rho;
      g[o] = -rho;
    }
    if constexpr (Momentum) momentum_row(i * k, k);
  }
};

template <class T, class I, bool Momentum>
void relax_adjoint(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                   const SweepAdjoint<T>& a, int64_t k) {
  RelaxAdjoint<T, Momentum> out(a, k);
  if (a.c || a.sbar) return for_each_row(A, blocks, b0, b1, a.x, k, out);
  for (int64_t block = b0; block < b1; ++block) {
    out.begin(block);
    for (int64_t i = blocks.table[2 * block]; i < blocks.table[2 * block + 2]; ++i) out.without_residual(i);
    out.end(block);
  }
}

template <class T, class I>
void richardson_adjoint(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                        SweepAdjoint<T> a, int64_t k) {
  if (a.later)
    relax_adjoint<T, I, true>(A, blocks, b0, b1, a, k);
  else
    relax_adjoint<T, I, false>(A, blocks, b0, b1, a, k);
}

}  // namespace learnsolve::LEARNSOLVE_ISA
