// Richardson sweeps with momentum (formulas: kernels/richardson.h): a sweep is a product that ends in a pass.
#pragma once

#include "kernels/chunk_pass.cuh"

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

}  // namespace learnsolve::cuda
