// Rows of a triangular T whose entries all lie within W <= 4 of the diagonal: bidiagonal matrices, factors of
// pentadiagonal ones, with or without gaps. A stretch of rows is an affine map of the W results before it.
//
// Rows are those of kernels/triangular.cuh; a missing entry takes no part, so that NaN reaches only what
// depends on it.
#pragma once

#include "kernels/triangular.cuh"

namespace learnsolve::cuda {

constexpr int kWidestBand = 4;

// The results of the W rows before a row, the nearest first.
template <int W, class T>
struct Window {
  T x[W];

  LS_BOTH void push(T next) {
    LS_UNROLL
    for (int d = W - 1; d > 0; --d) x[d] = x[d - 1];
    x[0] = next;
  }
  LS_BOTH int count_finite() const {
    int count = 0;
    LS_UNROLL
    for (int d = 0; d < W; ++d) count += finite(x[d]);
    return count;
  }
};

// The window after some rows from that before: s + sum_d m[d] before_d.
template <int W, class T>
struct Affine {
  static constexpr int kNumbers = W * W + W;
  Window<W, T> s, m[W];

  LS_BOTH Window<W, T> from(Window<W, T> sum, const Window<W, T>& before) const {
    LS_UNROLL
    for (int d = 0; d < W; ++d) {
      LS_UNROLL
      for (int e = 0; e < W; ++e) sum.x[e] = plus_product(sum.x[e], m[d].x[e], before.x[d]);
    }
    return sum;
  }
  LS_BOTH Window<W, T> of(const Window<W, T>& before) const { return from(s, before); }
};
template <int W, class T>
LS_BOTH Affine<W, T> after(const Affine<W, T>& first, const Affine<W, T>& then) {
  Affine<W, T> both;
  both.s = then.of(first.s);
  LS_UNROLL
  for (int d = 0; d < W; ++d) both.m[d] = then.from(Window<W, T>{}, first.m[d]);
  return both;
}

// x_t = s + sum of c[d-1] x_{t-d} over those d whose bit d-1 is set.
template <int W, class T>
struct BandRow {
  T s, c[W];
  unsigned has;

  LS_BOTH T of(T sum, const Window<W, T>& before) const {
    LS_UNROLL
    for (int d = W - 1; d >= 0; --d)
      if (has >> d & 1) sum = plus_product(sum, c[d], before.x[d]);
    return sum;
  }
};

// Entries beside the diagonal in the first t rows, in the order of the sweep, of a band without gaps.
LS_BOTH int64_t beside_before(int64_t t, int64_t width) {
  return t <= width ? t * (t - 1) / 2 : t * width - width * (width + 1) / 2;
}

// One column of one system; row t in the order of the sweep.
template <int W, class T, class I>
struct Band {
  Triangle<T, I> S;  // values: of this system
  const T* b;
  T* x;
  int64_t k;
  int64_t full;  // its width, if no entry of the band is missing: places follow from that; else 0

  LS_DEVICE int64_t row(int64_t t) const { return S.upper ? S.rows - 1 - t : t; }
  LS_DEVICE T& at(int64_t t) const { return x[row(t) * k]; }
  // Where the entries of row t lie: first <= p < end.
  LS_DEVICE void bounds(int64_t t, I& first, I& end) const {
    if (full) {
      const int64_t diagonals = S.unit ? 0 : 1, before = beside_before(t, full) + t * diagonals;
      const int64_t length = (t < full ? t : full) + diagonals;
      const int64_t p = S.upper ? beside_before(S.rows, full) + S.rows * diagonals - before - length : before;
      first = static_cast<I>(p), end = static_cast<I>(p + length);
    } else {
      first = S.ptr[row(t)], end = S.ptr[row(t) + 1];
    }
  }
  // Those before row t0 > 0.
  LS_DEVICE Window<W, T> results_before(int64_t t0) const {
    Window<W, T> before{};
    LS_UNROLL
    for (int d = 0; d < W; ++d)
      if (d < t0) before.x[d] = at(t0 - 1 - d);
    return before;
  }
  // Are all results from here on non-finite? In a band without gaps each depends on one of the W before it.
  LS_DEVICE bool lost(const Window<W, T>& before) const { return full > 0 && before.count_finite() == 0; }
};

// The rows of a lane: R of the R Team::size of a chunk.
template <int R, int W, class T>
struct LaneRows {
  BandRow<W, T> row[R];

  // Rows t0 to t0 + R, in steps that only use what earlier steps have read: so the loads of a step share one
  // wait. Rows beyond the last have no entries; their results are zeros and are not read.
  template <class I>
  LS_DEVICE void read(const Band<W, T, I>& A, int64_t t0) {
    const Triangle<T, I>& S = A.S;
    I first[R]{}, end[R]{}, diagonal[R], place[R][W], column[R][W];
    T c[R][W], b[R], r[R];
    const auto none = [&](int e) { return t0 + e >= S.rows; };
    const auto beside = [&](int e) { return none(e) ? 0 : static_cast<int>(end[e] - first[e]) - !S.unit; };
    LS_UNROLL
    for (int e = 0; e < R; ++e)
      if (!none(e)) A.bounds(t0 + e, first[e], end[e]);
    LS_UNROLL
    for (int e = 0; e < R; ++e) {
      b[e] = none(e) ? T(0) : A.b[A.row(t0 + e) * A.k];
      if (!S.unit && !none(e)) diagonal[e] = static_cast<I>(S.place(S.upper ? first[e] : end[e] - 1));
      LS_UNROLL
      for (int h = 0; h < W; ++h) {
        if (h >= beside(e)) continue;
        const int64_t p = S.upper ? end[e] - 1 - h : first[e] + h;  // the farthest first
        place[e][h] = static_cast<I>(S.place(p));
        if (!A.full) column[e][h] = S.idx[p];
      }
    }
    LS_UNROLL
    for (int e = 0; e < R; ++e) {
      r[e] = S.unit || none(e) ? T(1) : S.values[diagonal[e]];
      LS_UNROLL
      for (int h = 0; h < W; ++h)
        if (h < beside(e)) c[e][h] = S.values[place[e][h]];
    }
    LS_UNROLL
    for (int e = 0; e < R; ++e) {
      if (!S.unit) r[e] = reciprocal(r[e]);
      row[e] = {times(b[e], r[e]), {}, 0};
      LS_UNROLL
      for (int h = 0; h < W; ++h) {
        if (h >= beside(e)) continue;
        const int64_t i = A.row(t0 + e), ahead = A.full ? 0 : column[e][h] - i;
        const int64_t away = A.full ? beside(e) - h : S.upper ? ahead : -ahead;
        LS_UNROLL
        for (int d = 0; d < W; ++d)
          if (away == d + 1) row[e].c[d] = -times(c[e][h], r[e]), row[e].has |= 1u << d;
      }
    }
  }
  LS_DEVICE Affine<W, T> map() const {
    Affine<W, T> all{};
    LS_UNROLL
    for (int d = 0; d < W; ++d) all.m[d].x[d] = 1;
    LS_UNROLL
    for (int e = 0; e < R; ++e) {
      all.s.push(row[e].of(row[e].s, all.s));
      LS_UNROLL
      for (int d = 0; d < W; ++d) all.m[d].push(row[e].of(T(0), all.m[d]));
    }
    return all;
  }
  // f(e, x) for each, from the results before on; those after the last.
  template <class F>
  LS_DEVICE Window<W, T> walk(Window<W, T> before, const F& f) const {
    LS_UNROLL
    for (int e = 0; e < R; ++e) {
      before.push(row[e].of(row[e].s, before));
      f(e, before.x[0]);
    }
    return before;
  }
};

}  // namespace learnsolve::cuda
