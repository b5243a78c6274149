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

#include "kernels/products.h"
#include "kernels/vectors.h"
#include "kernels/views.h"

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

// Where there are c or sbar, g holds A x before.
template <class T, bool Residual, bool Scale, bool Momentum, bool Old>
struct RelaxAdjointPass : SweepAdjoint<T> {
  static constexpr int kSums = Old;
  static constexpr bool kRowSums = Scale;
  LS_INLINE T* sums(int) const { return this->sum; }
  LS_INLINE T* rows() const { return this->sbar; }
  template <class W, class P>
  LS_INLINE W at(const P& place, W* sums) const {
    const int64_t o = place.o;
    const W lambda = get<W>(this->lambda + o);
    W rho = place.template of_row<W>(this->s) * lambda, for_row{};
    if constexpr (Residual) {
      const W r = get<W>(this->b + o) - get<W>(this->g + o);
      if (this->c) rho += place.template coefficient<W>(this->c) * r;
      for_row = r * lambda;
    }
    if (this->bbar) set<W>(this->bbar + o, get<W>(this->bbar + o) + rho);
    set<W>(this->g + o, -rho);
    if constexpr (Old) sums[0] += lambda * (get<W>(this->x + o) - get<W>(this->old + o));
    if constexpr (Momentum)
      set<W>(this->later + o, lambda + this->momentum * lambda + this->factor * get<W>(this->later + o));
    return for_row;
  }
};

template <bool Momentum, bool Old, class T, class I>
void relax_adjoint(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const SweepAdjoint<T>& a, int64_t k) {
  if (a.sbar)
    run_pass<T>(blocks, b0, b1, k, RelaxAdjointPass<T, true, true, Momentum, Old>{a});
  else if (a.c)
    run_pass<T>(blocks, b0, b1, k, RelaxAdjointPass<T, true, false, Momentum, Old>{a});
  else
    run_pass<T>(blocks, b0, b1, k, RelaxAdjointPass<T, false, false, Momentum, Old>{a});
}

template <class T, class I>
void richardson_adjoint(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, SweepAdjoint<T> a, int64_t k) {
  const Pinned<T> c(a.c, k);
  if (a.old)
    relax_adjoint<true, true>(blocks, b0, b1, a, k);
  else if (a.later)
    relax_adjoint<true, false>(blocks, b0, b1, a, k);
  else
    relax_adjoint<false, false>(blocks, b0, b1, a, k);
}

}  // namespace learnsolve::LEARNSOLVE_ISA
