// The adjoint of preconditioned conjugate gradients (formulas: kernels/pcg_adjoint.h): passes and ends of
// products, the last block of which computes the scalars (`AdjointJudge`). A column takes part in an
// iteration if it has a cotangent and did not stand still; the others are not touched, so their contents do
// not matter.
#pragma once

#include "kernels/pcg_adjoint_judge.cuh"

namespace learnsolve::cuda {

// out = acts ? sign a u + b w : 0. Without an a it is 1.
template <class T>
struct CombinePass {
  static constexpr int kSums = 0;
  T sign;
  Vectors<const T> acts, a, u, b, w;  // a and w: or none
  Vectors<T> out;

  template <class At, int V>
  LS_DEVICE void at(const At& place, Pack<T, V>*) const {
    const Pack<T, V> first = place.get(u), second = place.get(w);
    Pack<T, V> value{};
    LS_UNROLL
    for (int e = 0; e < V; ++e)
      if (place.coefficient(acts, e) != T(0))
        value.v[e] = sign * (a.p ? place.coefficient(a, e) : T(1)) * first.v[e] +
                     place.coefficient(b, e) * second.v[e];
    place.set(out, value);
  }
};

// kernels/pcg_passes.h, PcgAdjointResidual
template <class T>
struct AdjointResidualPass {
  static constexpr int kSums = 1;
  Vectors<const T> acts, rhobar, c, inverse_alpha;
  Vectors<const T> pbar, v, d, next;  // v and d: or none
  Vectors<const T> r, xbar, p;        // r: or none, no sum; xbar: or none
  Vectors<T> rbar, dbar;              // dbar: or none
  const int* flags;

  LS_DEVICE bool skips(int64_t b) const { return flags[b] == 0; }
  LS_DEVICE T* of_rows(int64_t b) const { return dbar.of(b); }
  template <class At, int V>
  LS_DEVICE void at(const At& place, Pack<T, V>* sums) const {
    constexpr bool One = At::kOne;
    Pack<T, V> dots = One ? place.get(dbar) : Pack<T, V>{};
    const Pack<T, V> n = place.get(next), given = place.get(v.p ? v : pbar);
    const Pack<T, V> rs = place.get(r), xs = place.get(xbar), ps = place.get(p);
    Pack<T, V> out = place.get(rbar);
    LS_UNROLL
    for (int e = 0; e < V; ++e) {
      if (place.coefficient(acts, e) == T(0)) continue;
      const T normbar = place.coefficient(c, e);
      if (v.p) {
        out.v[e] += given.v[e] + normbar * n.v[e];
      } else {
        const T turned = place.coefficient(rhobar, e);
        dots.v[e] += (given.v[e] + turned * n.v[e]) * n.v[e];
        if (d.p)
          out.v[e] +=
              place.of_row(d, e) * (given.v[e] + turned * n.v[e] + turned * n.v[e]) + normbar * n.v[e];
        else
          out.v[e] += given.v[e] + turned * n.v[e] + (turned + normbar) * n.v[e];
      }
      if (!r.p) continue;
      sums[0].v[e] -= out.v[e] * ((rs.v[e] - n.v[e]) * place.coefficient(inverse_alpha, e));
      sums[0].v[e] += xs.v[e] * ps.v[e];
    }
    place.set(rbar, out);
    if (One)
      place.set(dbar, dots);
    else
      sums[kSums] = dots;
  }
};

// The end of the product s = A^T qbar: pbar = beta pbar + alpha xbar + pibar q + s, and <pbar, before>.
template <class T>
struct AdjointDirectionPass {
  static constexpr int kSums = 1;
  Vectors<const T> acts, beta, alpha, turned;
  Vectors<const T> xbar, r, next, before;  // xbar and before: or none
  Vectors<T> pbar;
  const int* flags;

  LS_DEVICE bool skips(int64_t b) const { return flags[b] == 0; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, const Pack<T, V>& s, Pack<T, V>* sums) const {
    const Pack<T, V> rs = place.get(r), n = place.get(next), x = place.get(xbar), other = place.get(before);
    Pack<T, V> out = place.get(pbar);
    LS_UNROLL
    for (int e = 0; e < V; ++e) {
      if (place.coefficient(acts, e) == T(0)) continue;
      out.v[e] = place.coefficient(beta, e) * out.v[e] + place.coefficient(turned, e) * (rs.v[e] - n.v[e]) +
                 s.v[e] + place.coefficient(alpha, e) * x.v[e];
      sums[0].v[e] += out.v[e] * other.v[e];
    }
    place.set(pbar, out);
  }
};

}  // namespace learnsolve::cuda
