// Preconditioned conjugate gradients (kernels/pcg.h says what an iteration is): passes over chunks of rows
// and ends of products. The last block of one judges (`PcgJudge`): it adds up the partial sums and decides
// about columns; scalars never leave the device.
//
// A column that has stopped keeps x and r, and p = 0; a member of the batch whose columns have all stopped is
// left alone.
#pragma once

#include "kernels/pcg_judge.cuh"

namespace learnsolve::cuda {

// The end of the product q: out = r - alpha q,  <out, out>, and <out, d o out> with a diagonal.
template <class T, bool Diagonal>
struct PcgResidualPass {
  static constexpr int kSums = 1 + Diagonal;
  Vectors<const T> r, d;
  Vectors<T> out;
  Vectors<const T> alpha;  // or none: 1
  Vectors<T> p;            // or none
  Vectors<const T> wipe;   // p becomes zero where this is not 0
  const int* entered;      // or null

  LS_DEVICE bool skips(int64_t b) const { return entered && entered[b] == 0 && r.p == out.p; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, const Pack<T, V>& q, Pack<T, V>* sums) const {
    Pack<T, V> value = place.get(r);
    LS_UNROLL
    for (int e = 0; e < V; ++e) {
      const T a = alpha.p ? place.coefficient(alpha, e) : T(1);
      if (a != T(0)) value.v[e] -= a * q.v[e];
      sums[0].v[e] += value.v[e] * value.v[e];
      if constexpr (Diagonal) sums[1].v[e] += value.v[e] * (place.of_row(d, e) * value.v[e]);
      if (p.p && place.coefficient(wipe, e) != T(0)) p.of(place.b)[place.o + e] = 0;
    }
    place.set(out, value);
  }
};

// x += alpha p,  next = z + beta p, or d o z + beta p; r becomes zero where it must be cleared.
template <class T>
struct PcgUpdatePass {
  static constexpr int kSums = 0;
  Vectors<const T> z, d, p;  // d and p: or none
  Vectors<T> x, next, r;     // x: or none
  Vectors<const T> alpha, beta, keep, wipe;
  const int* entered;

  LS_DEVICE bool skips(int64_t b) const { return entered[b] == 0 && p.p == next.p; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, Pack<T, V>*) const {
    const Pack<T, V> from = place.get(z), before = place.get(p);
    Pack<T, V> moved = place.get(x), value{};
    LS_UNROLL
    for (int e = 0; e < V; ++e) {
      const T a = place.coefficient(alpha, e);
      if (a != T(0)) moved.v[e] += a * before.v[e];
      const T scaled = d.p ? place.of_row(d, e) * from.v[e] : from.v[e];
      if (place.coefficient(keep, e) != T(0)) value.v[e] = scaled + place.coefficient(beta, e) * before.v[e];
      if (place.coefficient(wipe, e) != T(0)) r.of(place.b)[place.o + e] = 0;
    }
    place.set(x, moved);
    place.set(next, value);
  }
};

}  // namespace learnsolve::cuda
