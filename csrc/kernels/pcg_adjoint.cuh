// The adjoint of preconditioned conjugate gradients (formulas: kernels/pcg_adjoint.h) as phases: passes and
// products over chunks of rows, and between them `AdjointJudge`, which computes the scalars. A column takes
// part in an iteration if it has a cotangent and did not stand still; the others are not touched, so their
// contents do not matter.
#pragma once

#include "kernels/pcg.cuh"
#include "kernels/pcg_adjoint_judge.cuh"

namespace learnsolve::cuda {

// How many of the numbers of a column are not zero.
template <class T>
struct CountPass {
  static constexpr int kSums = 1;
  const T *one, *two, *three;  // or null
  LS_DEVICE bool skips() const { return false; }
  template <class At, int V>
  LS_DEVICE void count(const At& place, const T* v, Pack<T, V>* sums) const {
    if (!v) return;
    const Pack<T, V> values = place.get(v);
    LS_UNROLL
    for (int e = 0; e < V; ++e) sums[0].v[e] += values.v[e] != T(0) ? T(1) : T(0);
  }
  template <class At, int V>
  LS_DEVICE void at(const At& place, Pack<T, V>* sums) const {
    count(place, one, sums), count(place, two, sums), count(place, three, sums);
  }
};

// out = acts ? a u + b w : 0, where `a` and `w` may be missing: a is then 1.
template <class T>
struct CombinePass {
  static constexpr int kSums = 0;
  const T* acts;
  const T* a;
  const T* u;
  const T* b;
  const T* w;
  T* out;
  T sign;  // of a
  LS_DEVICE bool skips() const { return false; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, Pack<T, V>*) const {
    const Pack<T, V> first = place.get(u), second = w ? place.get(w) : Pack<T, V>{};
    Pack<T, V> value;
    LS_UNROLL
    for (int e = 0; e < V; ++e) {
      T sum = sign * (a ? place.coefficient(a, e) * first.v[e] : first.v[e]);
      if (w) sum += place.coefficient(b, e) * second.v[e];
      value.v[e] = place.coefficient(acts, e) != T(0) ? sum : T(0);
    }
    place.set(out, value);
  }
};

// kernels/pcg_passes.h, PcgAdjointResidual. Only one column adds to dbar here: see row_dots.
template <class T, bool Sum>
struct AdjointResidualPass {
  static constexpr int kSums = Sum;
  const T* acts;
  const T* rhobar;
  const T* c;
  const T* inverse_alpha;
  const T* pbar;
  const T* v;  // or null
  const T* d;  // or null
  const T* next;
  const T* r;
  const T* xbar;  // or null
  const T* p;
  T* rbar;
  T* dbar;  // or null
  bool moves;

  LS_DEVICE bool skips() const { return !moves; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, Pack<T, V>* sums) const {
    const Pack<T, V> n = place.get(next), given = place.get(v ? v : pbar);
    Pack<T, V> out = place.get(rbar), rs{}, ps{}, xs{};
    if constexpr (Sum) {
      rs = place.get(r);
      if (xbar) ps = place.get(p), xs = place.get(xbar);
    }
    LS_UNROLL
    for (int e = 0; e < V; ++e) {
      if (place.coefficient(acts, e) == T(0)) continue;
      const T normbar = place.coefficient(c, e);
      if (v) {
        out.v[e] += given.v[e] + normbar * n.v[e];
      } else {
        const T turned = place.coefficient(rhobar, e), zbar = given.v[e] + turned * n.v[e];
        if (d) {
          out.v[e] += place.of_row(d, e) * (zbar + turned * n.v[e]) + normbar * n.v[e];
          if (dbar) dbar[place.i + e] += zbar * n.v[e];
        } else {
          out.v[e] += zbar + (turned + normbar) * n.v[e];
        }
      }
      if constexpr (Sum) {
        sums[0].v[e] -= out.v[e] * ((rs.v[e] - n.v[e]) * place.coefficient(inverse_alpha, e));
        sums[0].v[e] += xs.v[e] * ps.v[e];
      }
    }
    place.set(rbar, out);
  }
};

// The end of the product s = A^T qbar: pbar = beta pbar + alpha xbar + pibar q + s, and <pbar, before>.
template <class T, bool Sum>
struct AdjointDirectionPass {
  static constexpr int kSums = Sum;
  const T* acts;
  const T* beta;
  const T* alpha;
  const T* turned;
  const T* xbar;  // or null
  const T* r;
  const T* next;
  const T* before;
  T* pbar;
  bool moves;

  LS_DEVICE bool skips() const { return !moves; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, const Pack<T, V>& s, Pack<T, V>* sums) const {
    Pack<T, V> out = place.get(pbar);
    const Pack<T, V> rs = place.get(r), n = place.get(next);
    Pack<T, V> x{}, other{};
    if (xbar) x = place.get(xbar);
    if constexpr (Sum) other = place.get(before);
    LS_UNROLL
    for (int e = 0; e < V; ++e) {
      if (place.coefficient(acts, e) == T(0)) continue;
      T value =
          place.coefficient(beta, e) * out.v[e] + place.coefficient(turned, e) * (rs.v[e] - n.v[e]) + s.v[e];
      if (xbar) value += place.coefficient(alpha, e) * x.v[e];
      out.v[e] = value;
      if constexpr (Sum) sums[0].v[e] += value * other.v[e];
    }
    place.set(pbar, out);
  }
};

// The end of the product s = A^T rbar: out = xbar - s.
template <class T>
struct FirstIteratePass {
  static constexpr int kSums = 0;
  const T* xbar;  // or null
  T* out;
  LS_DEVICE bool skips() const { return false; }
  template <class At, int V>
  LS_DEVICE void at(const At& place, const Pack<T, V>& s, Pack<T, V>*) const {
    Pack<T, V> value{};
    if (xbar) value = place.get(xbar);
    LS_UNROLL
    for (int e = 0; e < V; ++e) value.v[e] -= s.v[e];
    place.set(out, value);
  }
};

template <class T>
struct MakeCount {
  Vectors<const T> one, two, three;
  LS_DEVICE CountPass<T> operator()(int64_t b) const { return {one.of(b), two.of(b), three.of(b)}; }
};

// Coefficients are rows of `work`; kAdjointWork: none, which is 1.
template <class T>
struct MakeCombine {
  AdjointColumns<T> columns;
  AdjointWork a, b;
  T sign;
  Vectors<const T> u, w;
  Vectors<T> out;
  LS_DEVICE CombinePass<T> operator()(int64_t s) const {
    return {columns.now(s, kActs),
            a == kAdjointWork ? nullptr : columns.now(s, a),
            u.of(s),
            columns.now(s, b),
            w.of(s),
            out.of(s),
            sign};
  }
};

template <class T, bool Sum>
struct MakeAdjointResidual {
  AdjointColumns<T> columns;
  Vectors<const T> pbar, v, d, next, r, xbar, p;
  Vectors<T> rbar, dbar;
  LS_DEVICE AdjointResidualPass<T, Sum> operator()(int64_t b) const {
    return {columns.now(b, kActs),
            columns.now(b, kRhobarNow),
            columns.now(b, kNormbar),
            columns.now(b, kInverse),
            pbar.of(b),
            v.of(b),
            d.of(b),
            next.of(b),
            r.of(b),
            xbar.of(b),
            p.of(b),
            rbar.of(b),
            dbar.of(b),
            columns.flags[b] != 0};
  }
};

// Products with A^T: of qbar, and of rbar at the end.
template <class T, class I>
struct ByTranspose {
  RowsOf<T, I> rows;
  int64_t values_step;
  Vectors<const T> x;
  LS_DEVICE RowsOf<T, I> rows_of(int64_t b) const {
    return {rows.ptr, rows.idx, rows.values + b * values_step};
  }
  LS_DEVICE const T* from(int64_t b) const { return x.of(b); }
};

template <class T, class I, bool Sum>
struct MakeAdjointDirection : ByTranspose<T, I> {
  AdjointColumns<T> columns;
  Vectors<const T> xbar, r, next, before;
  Vectors<T> pbar;
  LS_DEVICE AdjointDirectionPass<T, Sum> operator()(int64_t b) const {
    return {columns.now(b, kActs),
            columns.now(b, kBetaNow),
            columns.now(b, kAlphaNow),
            columns.now(b, kTurned),
            xbar.of(b),
            r.of(b),
            next.of(b),
            before.of(b),
            pbar.of(b),
            columns.flags[b] != 0};
  }
};

template <class T, class I>
struct MakeFirstIterate : ByTranspose<T, I> {
  Vectors<const T> xbar;
  Vectors<T> out;
  LS_DEVICE FirstIteratePass<T> operator()(int64_t b) const { return {xbar.of(b), out.of(b)}; }
};

// dbar_i += the sum over the columns of zbar o r', for M = diag(d); over the members too if they share it.
template <class T>
struct RowDots {
  AdjointColumns<T> columns;
  Vectors<const T> pbar, next;
  Vectors<T> dbar;  // step 0: shared
  int64_t n, batch;
  LS_BOTH bool adds_up() const { return batch > 1 && dbar.step == 0; }
};

template <class Team, class T>
LS_DEVICE void row_dots(const Team& team, const RowDots<T>& P, int64_t i, Members members) {
  const int64_t k = P.columns.k;
  typename Team::template Own<T> sum;
  for (int64_t b = members.b0; b < members.b1; ++b) {
    team.each([&](int lane) { sum[lane] = T(0); });
    if (P.columns.flags[b] == 0) continue;
    const T* acts = P.columns.now(b, kActs);
    const T* rhobar = P.columns.now(b, kRhobarNow);
    team.each([&](int lane) {
      for (int64_t c = lane; c < k; c += Team::size) {
        if (acts[c] == T(0)) continue;
        const T next = P.next.of(b)[i * k + c];
        sum[lane] += (P.pbar.of(b)[i * k + c] + rhobar[c] * next) * next;
      }
    });
    const T total = team.sum(sum);
    team.first([&] { P.dbar.of(b)[i] += total; });
  }
}

template <int Lanes, class T>
LS_KERNEL(kThreads)
row_dots_kernel(LS_ARGUMENT RowDots<T> P) {
  for_members(P.adds_up(), P.batch, [&](Members members) {
    for_items<Lanes>(P.n, [&](const auto& team, int64_t i) { row_dots(team, P, i, members); });
  });
}

}  // namespace learnsolve::cuda
