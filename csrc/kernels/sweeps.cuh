// Richardson sweeps with momentum (formulas: kernels/sweeps.h): a sweep is a product that ends in a pass.
#pragma once

#include "kernels/loops.cuh"

namespace learnsolve::cuda {

// The end of the product A x: next = x + s o (b - A x) + momentum (x - old), and the squares of b - A x.
template <class T>
struct RelaxPass {
  static constexpr int kSums = 1;
  Vectors<const T> x, b, s;
  Vectors<const T> old, momentum;  // a vector, and a number for each member; or none
  Vectors<T> next;

  template <class At, int V>
  LS_DEVICE void at(const At& place, const Pack<T, V>& product, Pack<T, V>* sums) const {
    const Pack<T, V> from = place.get(x), right = place.get(b), before = place.get(old);
    const T m = old.p ? momentum.of(place.b)[0] : T(0);
    Pack<T, V> value;
    LS_UNROLL
    for (int e = 0; e < V; ++e) {
      const T r = right.v[e] - product.v[e];
      value.v[e] = from.v[e] + place.of_row(s, e) * r;
      if (old.p) value.v[e] += m * (from.v[e] - before.v[e]);
      sums[0].v[e] += r * r;
    }
    place.set(next, value);
  }
};

// The adjoint of Richardson sweeps with momentum (formulas: kernels/sweeps.h), for every sweep from the
// last to the first: a product with A that ends in RelaxAdjointPass, and one with A^T that ends in AddPass.

// With lambda the cotangent of the sweep's result, and `later` that of the iterate after it:
//
//     rho = s o lambda + c r,  r = b - A x     g = -rho,  bbar += rho,  residual = r,
//     passed = (1 + m) lambda + factor later,  and the sum <lambda, x - old>
//
// passed is what the sweep hands on beside A^T g. What is none is zero, or is not written. A column that does
// not learn has no cotangent: it adds nothing, even if its iterates are NaN.
template <class T>
struct RelaxAdjointPass {
  static constexpr int kSums = 1;
  Vectors<const T> learns, s, b, lambda;
  Vectors<const T> c, normed;  // cotangents of the norms over the norms; is one of a member's not 0?
  Vectors<const T> x, old;     // or none
  Vectors<const T> momentum;   // m of each member
  Vectors<const T> later;
  Vectors<const T> next_momentum;  // factor is minus this, or 1
  Vectors<T> g, bbar, residual, passed;

  LS_DEVICE bool has_norms(int64_t member) const { return c.p && normed.of(member)[0] != T(0); }
  LS_DEVICE bool multiplies(int64_t member) const { return residual.p || has_norms(member); }
  template <class At, int V>
  LS_DEVICE void at(const At& place, const Pack<T, V>& product, Pack<T, V>* sums) const {
    const Pack<T, V> l = place.get(lambda), right = place.get(b), from = place.get(x),
                     before = place.get(old);
    const bool norms = has_norms(place.b);
    const T m = momentum.p ? momentum.of(place.b)[0] : T(0);
    const T factor = next_momentum.p ? -next_momentum.of(place.b)[0] : T(1);
    Pack<T, V> minus, rhos = place.get(bbar), rs{}, on = place.get(later);
    LS_UNROLL
    for (int e = 0; e < V; ++e) {
      T rho = 0;
      if (place.coefficient(learns, e) != T(0)) {
        rs.v[e] = right.v[e] - product.v[e];
        rho = place.of_row(s, e) * l.v[e];
        if (norms) rho += place.coefficient(c, e) * rs.v[e];
        if (old.p) sums[0].v[e] += l.v[e] * (from.v[e] - before.v[e]);
      }
      minus.v[e] = -rho;
      rhos.v[e] += rho;
      on.v[e] = l.v[e] + m * l.v[e] + factor * on.v[e];
    }
    place.set(g, minus);
    place.set(bbar, rhos);
    place.set(residual, rs);
    place.set(passed, on);
  }
};

// c = gnorms / norms, rows of k numbers; at zero, where a norm has no derivative, its subgradient of least
// norm. normed: how many of a row are not 0.
template <class T>
LS_KERNEL(kThreads)
norm_cotangents_kernel(const T* norms, const T* gnorms, int64_t rows, int64_t k, T* c, T* normed) {
  for_items<32>(rows, [&](const auto& team, int64_t row) {
    T some = 0;
    for (int64_t o = row * k + team.lane; o < (row + 1) * k; o += 32) {
      const T value = norms[o] == 0 || gnorms[o] == 0 ? T(0) : gnorms[o] / norms[o];
      c[o] = value;
      some += static_cast<T>(value != 0);
    }
    const T all = team.sum(some);
    if (team.first()) normed[row] = all;
  });
}

}  // namespace learnsolve::cuda
