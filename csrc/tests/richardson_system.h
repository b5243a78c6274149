// A system for sweeps x' = x + s o (b - A x) + m (x - old) and their adjoint, and what they give by plain
// sums.
#pragma once

#include "kernels/csr_view.h"
#include "tests/cases.h"

namespace learnsolve::test {

// A square system with k right-hand sides, and its residual b - A x as plain sums.
template <class T, class I>
struct System {
  const Structure<I>& S;
  int64_t k;
  Array<T> values, x, b, s, old, lambda, later, c;
  T momentum = T(0.75), factor = T(-0.625);
  std::vector<Sum> residual;

  System(Random& random, const Structure<I>& structure, int64_t columns)
      : S(structure),
        k(columns),
        values(uniform<T>(random, S.nnz())),
        x(uniform<T>(random, S.rows * k)),
        b(uniform<T>(random, S.rows * k)),
        s(uniform<T>(random, S.rows)),
        old(uniform<T>(random, S.rows * k)),
        lambda(uniform<T>(random, S.rows * k)),
        later(uniform<T>(random, S.rows * k)),
        c(uniform<T>(random, k)),
        residual(S.rows * k) {
    for (int64_t i = 0; i < S.rows; ++i)
      for (int64_t j = 0; j < k; ++j) {
        Sum& r = residual[i * k + j];
        r.add(b[i * k + j]);
        for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p)
          r.add(-static_cast<long double>(values[S.value_at(p)]), x[S.idx[p] * k + j]);
      }
  }
  CsrView<T, I> view() const {
    return {S.ptr.data(), S.idx.data(), S.permuted ? S.perm.data() : nullptr, values.data()};
  }
};

// start + factor r: the errors of r are scaled along.
inline Sum scaled(const Sum& r, long double factor) {
  return {factor * r.value, std::fabs(factor) * r.magnitude, r.roundings + 2};
}
inline Sum operator+(const Sum& a, const Sum& b) {
  return {a.value + b.value, a.magnitude + b.magnitude, a.roundings + b.roundings};
}

// x - old
template <class T, class I>
Sum moved(const System<T, I>& system, int64_t o) {
  Sum d;
  d.add(system.x[o]);
  d.add(-static_cast<long double>(system.old[o]));
  return d;
}

// The sweep, with or without momentum, and the squares of the residual.
template <class T, class I>
Sum next_of(const System<T, I>& system, int64_t i, int64_t j, bool momentum) {
  const int64_t o = i * system.k + j;
  Sum next;
  next.add(system.x[o]);
  next = next + scaled(system.residual[o], system.s[i]);
  return momentum ? next + scaled(moved(system, o), system.momentum) : next;
}
inline Sum square(const Sum& r) {
  return {r.value * r.value, r.magnitude * r.magnitude, 2 * r.roundings + 2};
}

// The adjoint: rho, and what becomes of `later`.
template <class T, class I>
Sum rho_of(const System<T, I>& system, int64_t i, int64_t j, bool norms) {
  const int64_t o = i * system.k + j;
  Sum rho;
  rho.add(system.s[i], system.lambda[o]);
  return norms ? rho + scaled(system.residual[o], system.c[j]) : rho;
}
template <class T, class I>
Sum later_of(const System<T, I>& system, int64_t o) {
  Sum later;
  later.add(system.lambda[o]);
  later.add(system.momentum, system.lambda[o]);
  later.add(system.factor, system.later[o]);
  return later;
}

}  // namespace learnsolve::test
