// Scaled Richardson sweeps  x' = x + s o (b - A x)  and their adjoint. With s = w / diag(A) this is
// weighted Jacobi, with constant s the method of Richardson.
//
// Adjoint of one sweep, for the cotangent lambda of x' and the cotangents c of ||b - A x|| (a column each,
// already divided by the norm):
//     r   = b - A x
//     rho = s o lambda + c r                 the cotangent of r
//     sbar += sum over columns of r o lambda,   bbar += rho
//     lambda <- lambda - A^T rho,   abar_ij -= <rho_i, x_j>
// The last line is spmm_backward with g = -rho, so the sweep writes g.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/sddmm.h"
#include "kernels/spmm.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Squares of the residual are summed per block, blocks are summed in order by the caller: the norm
// does not depend on how blocks are dealt out to threads.
template <class T>
struct Relax {
  const T* LS_RESTRICT x;
  const T* LS_RESTRICT b;
  const T* LS_RESTRICT s;
  T* LS_RESTRICT next;
  T* LS_RESTRICT squares;  // blocks x k
  int64_t k;
  int64_t at = 0;
  T lanes[kRows<T>] = {};

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
      next[i + e] = x[i + e] + s[i + e] * r;
    }
  }
  LS_INLINE void columns(int64_t i, int64_t j, int n, const T* ax) {
    const int64_t o = i * k + j;
    for (int c = 0; c < n; ++c) {
      const T r = b[o + c] - ax[c];
      squares[at + j + c] += r * r;
      next[o + c] = x[o + c] + s[i] * r;
    }
  }
};

template <class T, class I>
void richardson_sweep(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const T* x,
                      const T* b, const T* s, int64_t k, T* next, T* squares) {
  Relax<T> out{x, b, s, next, squares, k};
  for_each_row(A, blocks, b0, b1, x, k, out);
}

template <class T>
struct RelaxAdjoint {
  const T* LS_RESTRICT b;
  const T* LS_RESTRICT s;
  const T* LS_RESTRICT lambda;
  const T* LS_RESTRICT c;  // k cotangents of the norms over the norms, or null
  T* LS_RESTRICT g;
  T* LS_RESTRICT bbar;  // or null
  T* LS_RESTRICT sbar;  // or null
  int64_t k;

  void begin(int64_t) {}
  void end(int64_t) {}
  LS_INLINE void rows(int64_t i, int n, const T* ax) {
    const T cr = c ? c[0] : T(0);
    for (int e = 0; e < n; ++e) {
      const T r = b[i + e] - ax[e];
      const T rho = s[i + e] * lambda[i + e] + cr * r;
      if (sbar) sbar[i + e] += r * lambda[i + e];
      if (bbar) bbar[i + e] += rho;
      g[i + e] = -rho;
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
  }
};

template <class T, class I>
void richardson_adjoint(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                        const T* x, const T* b, const T* s, const T* lambda, const T* c, int64_t k, T* g,
                        T* bbar, T* sbar) {
  if (!c && !sbar) {
    // The residual is not needed: rho = s o lambda.
    for (int64_t i = blocks.table[2 * b0]; i < blocks.table[2 * b1]; ++i)
      for (int64_t o = i * k; o < (i + 1) * k; ++o) {
        const T rho = s[i] * lambda[o];
        if (bbar) bbar[o] += rho;
        g[o] = -rho;
      }
    return;
  }
  RelaxAdjoint<T> out{b, s, lambda, c, g, bbar, sbar, k};
  for_each_row(A, blocks, b0, b1, x, k, out);
}

}  // namespace learnsolve::LEARNSOLVE_ISA
