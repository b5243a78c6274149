// Preconditioned conjugate gradients (kernels/pcg.h says what an iteration is): passes over chunks of rows
// and ends of products. The last block of one judges (`PcgJudge`): it adds up the partial sums and decides
// about columns; scalars never leave the device.
//
// A column that has stopped keeps x and r, and p = 0; a member of the batch whose columns have all stopped is
// left alone.
#pragma once

#include "kernels/loops.cuh"
#include "kernels/pcg_column.cuh"

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

// At the end of a pass `PcgJudge` gets the sums that it has made and applies the rules of
// pcg_column.cuh to each column. Scalars never leave the device.

// Of all columns: carry (B, kCarry, k) and work (B, kWork, k). Of each member of the batch: does a column
// run, and did one when the iteration began?
template <class T>
struct PcgColumns {
  T* carry;
  T* work;
  int *active, *entered;
  int64_t k;
  Vectors<const T> row(Work row) const { return {work + row * k, kWork * k}; }
};

// What has just been summed: nothing; <b, b>; the first residual; <p, A p>; the new residual; <r, M r>.
enum class Judged { start, length, begin, product, residual, preconditioned };

template <class T>
struct PcgJudge {
  PcgColumns<T> columns;
  Judged what;
  Preconditioning kind;
  int64_t iteration;                 // -1 before the first one
  const T* target;                   // (B, k), or null
  T* norms;                          // of that iteration, for member 0; or null
  T* scalars;                        // likewise
  int64_t norms_step, scalars_step;  // from one member to the next

  // Partial sums that it reads.
  LS_DEVICE int sums() const {
    if (what == Judged::start) return 0;
    return (what == Judged::begin || what == Judged::residual) && kind == Preconditioning::diagonal ? 2 : 1;
  }
  LS_DEVICE bool skips(int64_t b) const {
    if (what == Judged::product) return !columns.active[b];
    if (what == Judged::residual || what == Judged::preconditioned) return !columns.entered[b];
    return false;
  }

  // Column c, whose sums these are. Does it run on?
  LS_DEVICE bool column(int64_t b, int64_t c, double one, double two) const {
    const PcgColumn<T> known = at(b, c);
    const T root = static_cast<T>(std::sqrt(one));
    switch (what) {
      case Judged::start: break;
      case Judged::length: known.now(kRhsNorm) = root; return false;  // before its stop is known
      case Judged::begin: known.begin(root, target ? target + b * columns.k + c : nullptr); break;
      case Judged::product: known.product(static_cast<T>(one)); break;
      case Judged::residual: known.residual(root); break;
      case Judged::preconditioned: known.advance(static_cast<T>(one)); break;
    }
    if (what == Judged::begin || what == Judged::residual) {
      if (kind == Preconditioning::none) known.advance(static_cast<T>(one));
      if (kind == Preconditioning::diagonal) known.advance(static_cast<T>(two));
    }
    return known.runs();
  }
  // A column of a member that it skips.
  LS_DEVICE void idle(int64_t b, int64_t c) const {
    const PcgColumn<T> known = at(b, c);
    if (what == Judged::product)
      known.now(kCurrentAlpha) = known.now(kContinues) = known.now(kClearP) = known.now(kClearR) = 0;
    if (what == Judged::residual) known.idle();
  }
  LS_DEVICE void finish(int64_t b, bool any) const {
    if (what != Judged::length) columns.active[b] = any;
    if (what == Judged::start) columns.entered[b] = 0;
    if (what == Judged::product || what == Judged::begin) columns.entered[b] = 1;
  }
  LS_DEVICE void finish_idle(int64_t b) const {
    if (what == Judged::product) columns.entered[b] = 0;
  }

 private:
  LS_DEVICE PcgColumn<T> at(int64_t b, int64_t c) const {
    return {columns.carry + b * kCarry * columns.k + c,
            columns.work + b * kWork * columns.k + c,
            scalars ? scalars + b * scalars_step + c : nullptr,
            norms ? norms + b * norms_step + c : nullptr,
            columns.k,
            iteration};
  }
};

// A pass, or the end of a product, whose sums are for a judge (PcgJudge; that of the adjoint). The block that
// is the last one to work on a member judges it.
template <class T, class Pass, class Judge>
struct WithJudge : Pass {
  Judge judge;
  Partials<T> partials;  // those of the pass
  unsigned* arrived;     // one for each member

  LS_DEVICE void conclude(int64_t b, const Chunks& chunks) const {
    if (arrives_last(arrived + b, chunks.count)) judged(b, chunks.count);
  }

 private:
  LS_DEVICE_APART void judged(int64_t b, int64_t chunks) const {
    LS_SHARED(totals, double[2][kThreads]);
    const int64_t k = judge.columns.k;
    const int lane = static_cast<int>(threadIdx.x), width = columns_together(k), sums = judge.sums();
    if (judge.skips(b)) {
      for (int64_t c = lane; c < k; c += kThreads) judge.idle(b, c);
      if (lane == 0) judge.finish_idle(b);
      return;
    }
    bool runs = false;
    for (int64_t c0 = 0; c0 < k; c0 += width) {
      for (int s = 0; s < sums; ++s)
        add_chunks(partials.at[s] + b * chunks * k, chunks, k, c0, width, totals[s]);
      if (lane < width && c0 + lane < k)
        runs |= judge.column(b, c0 + lane, sums > 0 ? totals[0][lane] : 0, sums > 1 ? totals[1][lane] : 0);
      __syncthreads();
    }
    const bool any = __syncthreads_or(runs) != 0;
    if (lane == 0) judge.finish(b, any);
  }
};

// The adjoint of preconditioned conjugate gradients (formulas: kernels/pcg.h): passes and ends of
// products, the last block of which computes the scalars (`AdjointJudge`). A column takes part in an
// iteration if it has a cotangent and did not stand still; the others are not touched, so their contents do
// not matter.

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

// kernels/views.h, PcgAdjointResidual
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

// At the end of a pass `AdjointJudge` gets the sum that it has made and computes the
// scalars of each column (pcg_column.cuh). They stay on the device.
template <class T>
struct AdjointColumns {
  T* bars;     // (B, kBars, k)
  T* work;     // (B, kAdjointWork, k)
  int* flags;  // (B): does a column act?
  int64_t k;
  // Of kAdjointWork: none.
  Vectors<const T> row(AdjointWork row) const {
    return {row == kAdjointWork ? nullptr : work + row * k, kAdjointWork * k};
  }
};

// What has just been summed: numbers that are not zero; alphabar of the residual; <pbar, before>.
enum class Adjoining { learns, residual, direction };

template <class T>
struct AdjointJudge {
  AdjointColumns<T> columns;
  Adjoining what;
  bool prepares;  // there is an iteration i to come, or (-1) the first residual; else i is the one that runs
  bool before;    // there were iterations before those of this call
  int64_t i, count;
  const T* scalars;  // (B, count, kScalars, k)
  const T* norms;    // (B, norms of this call, k)
  const T* gnorms;   // likewise, or null

  LS_DEVICE int sums() const { return 1; }
  LS_DEVICE bool skips(int64_t b) const {
    return what == Adjoining::residual && (i < 0 || columns.flags[b] == 0);
  }
  LS_DEVICE void idle(int64_t, int64_t) const {}
  LS_DEVICE void finish_idle(int64_t) const {}
  LS_DEVICE void finish(int64_t b, bool any) const {
    if (prepares) columns.flags[b] = any;
  }

  // Does column c act?
  LS_DEVICE bool column(int64_t b, int64_t c, double one, double) const {
    const PcgAdjointColumn<T> known = at(b, c);
    switch (what) {
      case Adjoining::learns: known.now(kLearns) = one != 0 || has_cotangent(known, b, c); break;
      case Adjoining::residual: known.residual(static_cast<T>(one)); break;
      case Adjoining::direction: known.direction(static_cast<T>(one)); break;
    }
    const bool learns = known.now(kLearns) != T(0);
    if (prepares) i < 0 ? known.first(learns) : known.prepare(learns);
    return known.acts();
  }

 private:
  LS_DEVICE int64_t n_norms() const { return count + (before ? 0 : 1); }
  // i = -1: the first residual, which has no scalars.
  LS_DEVICE PcgAdjointColumn<T> at(int64_t b, int64_t c) const {
    const int64_t k = columns.k, norm = (b * n_norms() + i + (before ? 0 : 1)) * k + c;
    return {columns.bars + b * kBars * k + c,
            columns.work + b * kAdjointWork * k + c,
            scalars + (b * count + (i < 0 ? 0 : i)) * kScalars * k + c,
            norms + norm,
            gnorms ? gnorms + norm : nullptr,
            k,
            k};
  }
  LS_DEVICE bool has_cotangent(const PcgAdjointColumn<T>& known, int64_t b, int64_t c) const {
    bool any = false;
    for (int row = 0; row < kBars; ++row) any |= known.bar(static_cast<Bar>(row)) != T(0);
    if (gnorms)
      for (int64_t j = 0; j < n_norms(); ++j) any |= gnorms[(b * n_norms() + j) * columns.k + c] != T(0);
    return any;
  }
};

}  // namespace learnsolve::cuda
