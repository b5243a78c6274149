// The adjoint of Richardson sweeps with momentum (formulas: kernels/richardson.h), for every sweep from the
// last to the first: a phase over rows of A (rho, sbar, bbar, mbar, later), and one over rows of A^T, which
// adds A^T g. What runs before and after it is in kernels/richardson_gradients.cuh.
#pragma once

#include "kernels/richardson_operands.h"
#include "kernels/sweep_rows.cuh"

namespace learnsolve::cuda {

// Row i of the adjoint of a sweep, all columns of one member of the batch. A column with learns[j] = 0 has no
// cotangent: it adds nothing, even if its iterates are NaN. sums: one number of each lane.
template <class Shape, class Team, class T, class I>
LS_DEVICE void relax_adjoint_row(const Team& team, const RowPass<T, I>& A, const T* a, const T* given,
                                 const SweepAdjoint<T>& o, const T* learns, int64_t i) {
  constexpr int V = Shape::V;
  const bool residual = o.c || o.sbar;
  typename Team::template Own<T> row;
  for (int64_t tile = 0; tile < A.k; tile += Shape::columns) {
    OwnColumns<Shape, Team, T> ax;
    if (residual) ax = product_row<Shape>(team, A, a, o.x, given, i, tile);
    team.each([&](int lane) {
      if (!Shape::active(lane, tile, A.k)) return;
      const int64_t j = tile + lane * V, at = i * A.k + j;
      const Pack<T, V> lambda = load_pack<V>(o.lambda + at);
      Pack<T, V> b{}, x{}, old{}, later{}, bbar{}, g;
      if (residual) b = load_pack<V>(o.b + at);
      if (o.old) x = load_pack<V>(o.x + at), old = load_pack<V>(o.old + at);
      if (o.later && o.factor != 0) later = load_pack<V>(o.later + at);
      if (o.bbar) bbar = load_pack<V>(o.bbar + at);
      const T s = o.s[i];
      T moved = 0;
      LS_UNROLL
      for (int v = 0; v < V; ++v) {
        const bool learning = learns[j + v] != 0;
        T rho = 0;
        if (learning) {
          const T r = b.v[v] - ax[lane].v[v];
          rho = s * lambda.v[v];
          if (o.c) rho += o.c[j + v] * r;
          if (o.sbar) row[lane] += r * lambda.v[v];
          if (o.old) moved += lambda.v[v] * (x.v[v] - old.v[v]);
        }
        g.v[v] = -rho;
        bbar.v[v] += rho;
        later.v[v] = lambda.v[v] + o.momentum * lambda.v[v] + o.factor * later.v[v];
      }
      store_pack(o.g + at, g);
      if (o.bbar) store_pack(o.bbar + at, bbar);
      if (o.later) store_pack(o.later + at, later);
      if (o.old) o.sums[lane] += moved;
    });
  }
  if (!o.sbar) return;
  const T total = team.sum(row);
  team.first([&] { o.sbar[i] += total; });
}

// to_i += (A^T g)_i
template <class Shape, class Team, class T, class I>
LS_DEVICE void add_product_row(const Team& team, const RowPass<T, I>& A, const T* a, const T* g,
                               const T* given, T* to, int64_t i, int64_t tile) {
  constexpr int V = Shape::V;
  auto sum = product_row<Shape>(team, A, a, g, given, i, tile);
  team.each([&](int lane) {
    if (!Shape::active(lane, tile, A.k)) return;
    const int64_t at = i * A.k + tile + lane * V;
    Pack<T, V> value = load_pack<V>(to + at);
    LS_UNROLL
    for (int v = 0; v < V; ++v) value.v[v] += sum[lane].v[v];
    store_pack(to + at, value);
  });
}

// What the adjoint of sweeps first <= it < last reads and writes; sweeps count from the first of all.
template <class T, class I>
struct SweepsAdjoint {
  RowPass<T, I> A, At;
  const T* given;  // products with A and with At of one sweep, or null
  const T* given_t;
  Chunks rows;
  Coefficients<T> coefficients;
  int64_t sweeps;
  // Iterate i is iterates + (i - iterates_from) nk; below that `before`, or null if there is none.
  const T* iterates;
  const T* before;
  int64_t iterates_step, iterates_from;
  const T* b;
  const T* learns;  // (batch, k)
  const T* c;       // (batch, sweeps, k), or null: cotangents of the norms over the norms;
  const T* norms;   // (batch, sweeps): is one of these not 0?
  T* lambda[2];     // with momentum, in turn the cotangent of an iterate and of the one before it
  T* gb;            // or null
  T* gs;            // or null
  T* sums;          // (sweeps, batch, chunks), or null: of mbar
  T* g;             // from sweep g_from on
  int64_t g_step, g_from;
  bool has_later;  // a cotangent of the iterate before the last
  bool gs_own;     // one a member
  bool need_x0;    // or that of the iterate before

  LS_BOTH const T* iterate(int64_t i, int64_t b) const {
    if (i >= iterates_from) return iterates + b * iterates_step + (i - iterates_from) * rows.rows * A.k;
    return before ? before + b * rows.rows * A.k : nullptr;
  }
  LS_BOTH bool momentum() const { return coefficients.momentum != nullptr; }
  LS_BOTH bool moving(int64_t it) const { return momentum() && (it > 0 || before != nullptr); }
  // The cotangent of iterate it + 1.
  LS_BOTH T* lambda_of(int64_t it) const { return lambda[momentum() ? (sweeps - 1 - it) % 2 : 0]; }
  LS_BOTH T* later_of(int64_t it) const { return lambda[(sweeps - it) % 2]; }
  LS_BOTH T* g_of(int64_t it) const { return g + (it - g_from) * g_step; }
  LS_BOTH bool goes_on(int64_t it) const { return it > 0 || need_x0; }
  template <class Shape>
  LS_BOTH int64_t tiles() const {
    return (A.k + Shape::columns - 1) / Shape::columns;
  }
  // Of the phase over A^T, at least as many as of the other.
  template <class Shape>
  LS_BOTH int64_t items() const {
    return A.batch * tiles<Shape>() * rows.count;
  }
  // Members that one block works through: those that share a gradient.
  LS_BOTH int64_t members() const { return gs && !gs_own ? A.batch : 1; }
};

template <class T, class I>
LS_BOTH SweepAdjoint<T> sweep_adjoint(const SweepsAdjoint<T, I>& P, int64_t it, int64_t b, T* parts) {
  const int64_t k = P.A.k, at = b * P.rows.rows * k;
  const bool moving = P.moving(it);
  SweepAdjoint<T> o{};
  o.sums = parts;
  o.x = P.iterate(it, b), o.b = P.b + at, o.lambda = P.lambda_of(it) + at, o.g = P.g_of(it) + at;
  o.s = P.coefficients.scale + P.coefficients.scale_at(b, it);
  if (P.c && P.norms[b * P.sweeps + it] != 0) o.c = P.c + (b * P.sweeps + it) * k;
  if (P.gb) o.bbar = P.gb + at;
  if (P.gs) o.sbar = P.gs + P.coefficients.scale_at(b, it);
  if (!P.momentum()) return o;
  o.momentum = moving ? P.coefficients.momentum_of(b, it) : T(0);
  o.factor = it + 1 < P.sweeps ? -P.coefficients.momentum_of(b, it + 1) : T(P.has_later ? 1 : 0);
  o.later = P.later_of(it) + at;
  if (moving && P.sums) o.old = P.iterate(it - 1, b);
  return o;
}

// Over rows of A. parts: kThreads numbers in shared memory.
template <class Shape, class T, class I>
LS_DEVICE void adjoint_phase(const SweepsAdjoint<T, I>& P, int64_t it, T* parts) {
  const Block<kThreads> block;
  const int64_t together = P.members();
  for_blocks(P.A.batch / together * P.rows.count, [&](int64_t item) {
    const int64_t chunk = item % P.rows.count, b0 = item / P.rows.count * together;
    for (int64_t b = b0; b < b0 + together; ++b) {
      const SweepAdjoint<T> whole = sweep_adjoint(P, it, b, parts);
      if (P.sums) {
        block.each([&](int lane) { parts[lane] = 0; });
        block.sync();
      }
      for_teams<Shape::lanes>(
          P.rows.begin(chunk), P.rows.end(chunk), [&](const auto& team, int slot, int64_t i) {
            SweepAdjoint<T> o = whole;
            o.sums += slot * Shape::lanes;
            relax_adjoint_row<Shape>(team, P.A, P.A.a + b * P.A.a_step,
                                     P.given ? P.given + b * P.rows.rows * P.A.k : nullptr, o,
                                     P.learns + b * P.A.k, i);
          });
      if (!P.sums) continue;
      block.sync();
      add_slots(block, parts, kThreads, 1);
      block.first([&] { P.sums[(it * P.A.batch + b) * P.rows.count + chunk] = parts[0]; });
      block.sync();
    }
  });
}

// Over rows of A^T: what the sweep passes on, + A^T g.
template <class Shape, class T, class I>
LS_DEVICE void transposed_phase(const SweepsAdjoint<T, I>& P, int64_t it) {
  const int64_t k = P.A.k, nk = P.rows.rows * k, tiles = P.template tiles<Shape>();
  T* const to = P.momentum() ? P.later_of(it) : P.lambda_of(it);
  for_blocks(P.template items<Shape>(), [&](int64_t item) {
    const int64_t chunk = item % P.rows.count, rest = item / P.rows.count;
    const int64_t tile = rest % tiles * Shape::columns, b = rest / tiles;
    for_teams<Shape::lanes>(P.rows.begin(chunk), P.rows.end(chunk), [&](const auto& team, int, int64_t i) {
      add_product_row<Shape>(team, P.At, P.At.a + b * P.At.a_step, P.g_of(it) + b * nk,
                             P.given_t ? P.given_t + b * nk : nullptr, to + b * nk, i, tile);
    });
  });
}

template <class Shape, class T, class I>
LS_KERNEL(kThreads, 3)
adjoint_kernel(LS_ARGUMENT SweepsAdjoint<T, I> P, int64_t it) {
  LS_SHARED(parts, T[kThreads]);
  adjoint_phase<Shape>(P, it, parts);
}
template <class Shape, class T, class I>
LS_KERNEL(kThreads, 3)
transposed_kernel(LS_ARGUMENT SweepsAdjoint<T, I> P, int64_t it) {
  transposed_phase<Shape>(P, it);
}

}  // namespace learnsolve::cuda
