// Richardson sweeps with momentum and their adjoint (formulas: kernels/richardson.h), a phase at a time: the
// product with a row, the residual, its square, the update and the momentum in one pass. A phase is the work
// of all blocks between two barriers; what a loop of launches and a persistent kernel launch is the same
// code.
//
// Adjoint, for every sweep from the last to the first: a phase over rows of A (rho, sbar, bbar, mbar, later),
// and one over rows of A^T, which adds A^T g. The g = -rho of several sweeps are kept, and the gradient of
// A's values for all of them is one pass over the entries: pattern and gradient are read once, not once a
// sweep.
#pragma once

#include "kernels/grid.cuh"
#include "kernels/richardson_operands.h"
#include "kernels/row_pass.cuh"

namespace learnsolve::cuda {

// Rows by teams of `lanes`. One column: the lanes share a row's entries, and lane 0 has what is left to do.
template <int Lanes>
struct VectorShape {
  static constexpr int lanes = Lanes, V = 1, columns = 1;
  static LS_BOTH bool active(int lane, int64_t, int64_t) { return lane == 0; }
};
// Several: every lane has V of the columns.
template <int Lanes, int V_>
struct ColumnsShape {
  static constexpr int lanes = Lanes, V = V_, columns = Lanes * V_;
  static LS_BOTH bool active(int lane, int64_t tile, int64_t k) { return tile + lane * V < k; }
};

template <class Shape, class Team, class T>
using OwnColumns = typename Team::template Own<Pack<T, Shape::V>>;

// Row i of A x in the columns of each lane from `tile` on; or of `given`, the product, if there is one.
template <class Shape, class Team, class T, class I>
LS_DEVICE OwnColumns<Shape, Team, T> product_row(const Team& team, const RowPass<T, I>& A, const T* a,
                                                 const T* x, const T* given, int64_t i, int64_t tile) {
  constexpr int N = Team::size, V = Shape::V;
  OwnColumns<Shape, Team, T> ax;
  if (given) {
    team.each([&](int lane) {
      if (Shape::active(lane, tile, A.k)) ax[lane] = load_pack<V>(given + i * A.k + tile + lane * V);
    });
    return ax;
  }
  const int64_t begin = A.rows.ptr[i], end = A.rows.ptr[i + 1];
  if constexpr (Shape::columns == 1) {
    typename Team::template Own<T> sum;
    team.each([&](int lane) {
      lane_entries<N, (N == 32)>(A, begin, end, lane,
                                 [&](int64_t q, int64_t j) { sum[lane] += a[q] * x[j]; });
    });
    const T total = team.sum(sum);
    team.each([&](int lane) { ax[lane].v[0] = total; });
  } else {
    typename Team::template Own<int64_t> column;
    typename Team::template Own<T> value;
    for (int64_t p = begin; p < end; p += N) {
      team.each([&](int lane) {
        if (p + lane >= end) return;
        column[lane] = A.idx[p + lane];
        value[lane] = a[A.place(p + lane)];
      });
      const int here = end - p < N ? static_cast<int>(end - p) : N;
      for (int e = 0; e < here; ++e) {
        const int64_t j = team.of_lane(column, e);
        const T aj = team.of_lane(value, e);
        team.each([&](int lane) {
          if (!Shape::active(lane, tile, A.k)) return;
          const Pack<T, V> xj = load_pack<V>(x + j * A.k + tile + lane * V);
          LS_UNROLL
          for (int v = 0; v < V; ++v) ax[lane].v[v] += aj * xj.v[v];
        });
      }
    }
  }
  return ax;
}

// Row i of a sweep. squares: the sums of this team's squares so far, Shape::columns of them.
template <class Shape, class Team, class T, class I>
LS_DEVICE void relax_row(const Team& team, const RowPass<T, I>& A, const T* a, const T* given,
                         const Sweep<T>& o, int64_t i, int64_t tile) {
  constexpr int V = Shape::V;
  auto ax = product_row<Shape>(team, A, a, o.x, given, i, tile);
  team.each([&](int lane) {
    if (!Shape::active(lane, tile, A.k)) return;
    const int64_t at = i * A.k + tile + lane * V;
    const Pack<T, V> x = load_pack<V>(o.x + at), b = load_pack<V>(o.b + at);
    Pack<T, V> old = x, next;
    if (o.old) old = load_pack<V>(o.old + at);
    const T s = o.s[i];
    LS_UNROLL
    for (int v = 0; v < V; ++v) {
      const T r = b.v[v] - ax[lane].v[v];
      next.v[v] = x.v[v] + s * r;
      if (o.old) next.v[v] += o.momentum * (x.v[v] - old.v[v]);
      if (o.squares) o.squares[lane * V + v] += r * r;
    }
    store_pack(o.next + at, next);
  });
}

// Row i of the adjoint of a sweep, all columns of one member of the batch. A column with learns[j] = 0 has no
// cotangent: whatever its iterates are, NaN too, it adds nothing. sums: one number of each lane.
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

// Scale and momentum: rows of them from one member of the batch to the next and from sweep to sweep, 0 where
// they are shared.
template <class T>
struct Coefficients {
  const T* scale;
  const T* momentum;  // or null
  int64_t scale_member, scale_sweep, momentum_member, momentum_sweep;

  LS_BOTH int64_t scale_at(int64_t b, int64_t it) const { return b * scale_member + it * scale_sweep; }
  LS_BOTH T momentum_of(int64_t b, int64_t it) const {
    return momentum ? momentum[b * momentum_member + it * momentum_sweep] : T(0);
  }
};

// Where csr_richardson has its iterates.
template <class T>
struct Iterates {
  const T* x0;
  const T* before;  // or null
  T* x;
  T* last;     // or null
  T* slots;    // those that are kept
  T* scratch;  // `turns` times `scratch_step` numbers: those that are not, in turn
  int64_t nk, x0_step, slots_step, scratch_step;
  int64_t iterations, stride, kept;
  bool momentum;

  LS_BOTH int64_t turns() const { return momentum ? 3 : 2; }

  // Where iterate i > 0 of member b is written.
  LS_BOTH T* place(int64_t i, int64_t b) const {
    T* const slot = slots + b * slots_step;
    if (i == iterations) return x + b * nk;
    if (stride == 1) return slot + i * nk;
    if (stride > 1 && i % stride == 0) return slot + (momentum ? i / stride * 2 + 1 : i / stride) * nk;
    if (momentum && stride > 1 && (i + 1) % stride == 0 && (i + 1) / stride < kept)
      return slot + 2 * ((i + 1) / stride) * nk;
    if (last && i + 1 == iterations) return last + b * nk;
    return scratch + (i - 1) % turns() * scratch_step + b * nk;
  }
  // Iterate i, the one before x0 for -1, or null if there is none.
  LS_BOTH const T* at(int64_t i, int64_t b) const {
    if (i > 0) return place(i, b);
    if (i == 0) return x0 + b * x0_step;
    return before ? before + b * x0_step : nullptr;
  }
};

template <class T, class I>
struct Sweeps {
  RowPass<T, I> A;  // what a product needs of it
  const T* given;   // or null: the product of one sweep, (batch, n, k)
  Chunks rows;
  Coefficients<T> coefficients;
  Iterates<T> x;
  const T* b;
  T* partials;  // (sweeps, batch, chunks, k) from sweep `partials_from` on, or null
  int64_t partials_from;

  template <class Shape>
  LS_BOTH int64_t tiles() const {
    return (A.k + Shape::columns - 1) / Shape::columns;
  }
  template <class Shape>
  LS_BOTH int64_t items() const {
    return A.batch * tiles<Shape>() * rows.count;
  }
};

// One sweep. parts: kThreads Shape::V numbers in shared memory.
template <class Shape, class T, class I>
LS_DEVICE void sweep_phase(const Sweeps<T, I>& P, int64_t it, T* parts) {
  constexpr int teams = kThreads / Shape::lanes;
  const Block<kThreads> block;
  const int64_t k = P.A.k, nk = P.rows.rows * k;
  for_blocks(P.template items<Shape>(), [&](int64_t item) {
    const int64_t chunk = item % P.rows.count, rest = item / P.rows.count;
    const int64_t tile = rest % P.template tiles<Shape>() * Shape::columns,
                  b = rest / P.template tiles<Shape>();
    const Sweep<T> whole{P.x.at(it, b),
                         P.b + b * nk,
                         P.coefficients.scale + P.coefficients.scale_at(b, it),
                         P.x.momentum ? P.x.at(it - 1, b) : nullptr,
                         P.coefficients.momentum_of(b, it),
                         P.x.place(it + 1, b),
                         P.partials ? parts : nullptr};
    if (P.partials) {
      block.each([&](int lane) {
        for (int e = lane; e < teams * Shape::columns; e += kThreads) parts[e] = 0;
      });
      block.sync();
    }
    for_teams<Shape::lanes>(P.rows.begin(chunk), P.rows.end(chunk),
                            [&](const auto& team, int slot, int64_t i) {
                              Sweep<T> o = whole;
                              if (o.squares) o.squares += slot * Shape::columns;
                              relax_row<Shape>(team, P.A, P.A.a + b * P.A.a_step,
                                               P.given ? P.given + b * nk : nullptr, o, i, tile);
                            });
    if (!P.partials) return;
    block.sync();
    add_slots(block, parts, teams, Shape::columns);
    T* const to = P.partials + (((it - P.partials_from) * P.A.batch + b) * P.rows.count + chunk) * k + tile;
    block.each([&](int lane) {
      if (lane < Shape::columns && tile + lane < k) to[lane] = parts[lane];
    });
    block.sync();
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
  T* lambda[2];     // with momentum in turn the cotangent of an iterate and what is to come of it
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

// Sweeps first <= it < last; more than one need a launch of resident blocks.
template <class Shape, class T, class I>
LS_KERNEL(kThreads, 3)
sweeps_kernel(LS_ARGUMENT Sweeps<T, I> P, int64_t first, int64_t last) {
  LS_SHARED T parts[kThreads * Shape::V];
  for (int64_t it = first; it < last; ++it) {
    if (it > first) grid_sync();
    sweep_phase<Shape>(P, it, parts);
  }
}

// Their adjoint, from the last to the first: its phases over A, over A^T, or both, which needs resident
// blocks.
template <class Shape, class T, class I>
LS_KERNEL(kThreads, 3)
adjoint_kernel(LS_ARGUMENT SweepsAdjoint<T, I> P, int64_t first, int64_t last, bool over_a, bool over_at) {
  LS_SHARED T parts[kThreads];
  for (int64_t it = last - 1; it >= first; --it) {
    if (over_a) {
      if (it < last - 1) grid_sync();
      adjoint_phase<Shape>(P, it, parts);
      if (over_at && P.goes_on(it)) grid_sync();
    }
    if (over_at && P.goes_on(it)) transposed_phase<Shape>(P, it);
  }
}

// The gradient of entry p of A, for the members b0 <= b < b1, with what the sweeps first <= it < last add to
// it: one after another, so that it does not depend on how many go together.
template <class T, class I>
LS_DEVICE T entry_gradient(const SweepsAdjoint<T, I>& P, int64_t p, int64_t first, int64_t last,
                           Members members, T gradient) {
  const int64_t k = P.A.k, nk = P.rows.rows * k;
  const int64_t i = row_of_entry(P.A.rows.ptr, 0, P.rows.rows - 1, p), j = P.A.idx[p];
  for (int64_t it = last - 1; it >= first; --it)
    for (int64_t b = members.b0; b < members.b1; ++b) {
      const T* learns = P.learns + b * k;
      const T* g = P.g_of(it) + b * nk + i * k;
      const T* x = P.iterate(it, b) + j * k;
      for (int64_t c = 0; c < k; ++c)
        if (learns[c] != 0) gradient += g[c] * x[c];
    }
  return gradient;
}

}  // namespace learnsolve::cuda
