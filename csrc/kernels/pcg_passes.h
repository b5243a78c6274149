// Operands of the passes over vectors that preconditioned conjugate gradients and their adjoint consist of
// (kernels/pcg.h). All vectors are n x k, row-major; coefficients have one entry a column; sums are blocks x
// k, one a block and column: added up in order by the caller, they do not depend on how blocks are
// distributed.
#pragma once

namespace learnsolve {

// out = r - alpha q,  squares = <out, out>,  rho = <out, d o out> where there is a d.
template <class T>
struct PcgResidual {
  const T* alpha;
  const T* r;
  const T* q;
  const T* d;  // or null
  T* out;
  T* squares;
  T* rho;
};

// x += alpha p,  next = z + beta p, or d o z + beta p. A column with keep = 0 has stopped: next = 0.
template <class T>
struct PcgUpdate {
  const T* alpha;
  const T* beta;
  const T* keep;
  const T* z;
  const T* d;  // or null
  const T* p;
  T* x;  // or null
  T* next;
};

// out = a u + b w
template <class T>
struct PcgCombine {
  const T* a;
  const T* u;
  const T* b;
  const T* w;
  T* out;
};

// sum = <u, w>
template <class T>
struct PcgDot {
  const T* u;
  const T* w;
  T* sum;
};

// rbar += M^T zbar + rhobar z' + c r',  zbar = pbar + rhobar r',  z' = M r',  r' = next,
// dbar += zbar o r' summed over the columns, for M = diag(d),
// sum = <xbar, p> - <rbar, q>,  q = A p = (r - r') / alpha.
// This q is as accurate as the product: r and r' are orthogonal (in the inner product of M), so nothing
// cancels.
template <class T>
struct PcgAdjointResidual {
  const T* rhobar;
  const T* c;
  const T* inverse_alpha;
  const T* pbar;
  const T* v;  // M^T zbar + rhobar z' for another M than the identity or a diagonal, or null
  const T* d;  // or null
  const T* next;
  const T* r;     // or null: no sum
  const T* xbar;  // or null: zero
  const T* p;
  T* rbar;
  T* dbar;  // or null
  T* sum;
};

// pbar = beta pbar + alpha xbar + pibar q + A^T qbar,  sum = <pbar, before>
template <class T>
struct PcgAdjointDirection {
  const T* beta;
  const T* alpha;
  const T* pibar_over_alpha;
  const T* qbar;
  const T* xbar;  // or null: zero
  const T* r;
  const T* next;
  const T* before;  // or null: no sum
  T* pbar;
  T* sum;
};

}  // namespace learnsolve
