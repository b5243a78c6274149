// Richardson sweeps with momentum (formulas: kernels/richardson.h), a phase at a time: the product with a
// row, the residual, its square, the update and the momentum in one pass. A phase is the work of all blocks
// between two barriers; what a loop of launches and a persistent kernel launch is the same code.
#pragma once

#include <cmath>

#include "kernels/richardson_operands.h"
#include "kernels/sweep_rows.cuh"

namespace learnsolve::cuda {

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

template <class Shape, class T, class I>
LS_KERNEL(kThreads, 3)
sweeps_kernel(LS_ARGUMENT Sweeps<T, I> P, int64_t it) {
  LS_SHARED(parts, T[kThreads * Shape::V]);
  sweep_phase<Shape>(P, it, parts);
}

// Totals of partials (sums, chunks, k), or their roots: sum s, which is number s / batch of member s % batch,
// goes to out + (s % batch) out_step + (s / batch) k.
template <class T>
LS_KERNEL(kThreads)
totals_kernel(const T* partials, int64_t sums, int64_t batch, int64_t chunks, int64_t k, bool roots, T* out,
              int64_t out_step) {
  LS_SHARED(shared, double[kThreads]);
  const Block<kThreads> block;
  const int width = columns_together(k);
  const int64_t tiles = (k + width - 1) / width;
  for_blocks(sums * tiles, [&](int64_t item) {
    const int64_t s = item / tiles, c0 = item % tiles * width;
    add_chunks(block, partials + s * chunks * k, chunks, k, c0, width, shared);
    T* const to = out + s % batch * out_step + s / batch * k + c0;
    block.each([&](int lane) {
      if (lane < width && c0 + lane < k)
        to[lane] = static_cast<T>(roots ? std::sqrt(shared[lane]) : shared[lane]);
    });
    block.sync();
  });
}

// to = from, or -factor from, `count` numbers for each member.
template <class T>
LS_KERNEL(kThreads)
copy_kernel(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t count, int64_t batch,
            const T* factor, int64_t factor_step) {
  for_aside(batch, [&](int64_t b) {
    for_items<1>(count, [&](const auto& team, int64_t o) {
      const T value = from[b * from_step + o];
      team.first([&] { to[b * to_step + o] = factor ? -factor[b * factor_step] * value : value; });
    });
  });
}

}  // namespace learnsolve::cuda
