// Operands of a Richardson sweep and of its adjoint (kernels/richardson.h). Vectors are n x k, row-major.
#pragma once

#include <cstdint>

namespace learnsolve {

// next = x + s o (b - A x) + momentum (x - old),  squares: of the residual b - A x, blocks x k.
template <class T>
struct Sweep {
  const T* x;
  const T* b;
  const T* s;
  const T* old;  // or null: no momentum
  T momentum;
  T* next;
  T* squares;
};

// With lambda the cotangent of next, and later that of the iterate after it:
// rho = s o lambda + c r,  g = -rho,  bbar += rho,  sbar += <r, lambda> of each row,
// later = (1 + momentum) lambda + factor later,  sum = <lambda, x - old>, blocks x k. For c and sbar g is A x
// on entry.
template <class T>
struct SweepAdjoint {
  const T* x;
  const T* b;
  const T* s;
  const T* lambda;
  const T* c;  // k cotangents of the norms over the norms, or null
  T* g;
  T* bbar;  // or null
  T* sbar;  // or null
  T momentum;
  T factor;
  T* later;      // or null: no momentum
  const T* old;  // or null: no sum
  T* sum;
};

}  // namespace learnsolve
