// A stencil on a structured grid and its derivatives (kernels/stencil.h says what they compute), a point a
// thread. Offsets travel with the launch, at most kStencilOffsets of them; more take several.
#pragma once

#include "kernels/launch.cuh"
#include "kernels/views.h"

namespace learnsolve::cuda {

constexpr int kStencilOffsets = 64;

struct StencilOffsets {
  int64_t grid[3];
  bool periodic[3];
  int count;
  int64_t offset[kStencilOffsets][3];
  int64_t distance[kStencilOffsets];  // to the neighbor, where it lies inside
  int64_t lo[3], hi[3];               // points from which no offset leaves the grid

  LS_BOTH int64_t points() const { return grid[0] * grid[1] * grid[2]; }

  // Of a view whose offsets are on the host: those from number `from` on.
  static StencilOffsets of(const StencilView& S, int64_t from) {
    StencilOffsets o{};
    o.count = static_cast<int>(S.count - from < kStencilOffsets ? S.count - from : kStencilOffsets);
    for (int a = 0; a < 3; ++a) o.grid[a] = S.grid[a], o.periodic[a] = S.periodic[a], o.hi[a] = S.grid[a];
    for (int k = 0; k < o.count; ++k) {
      const int64_t* given = S.offsets + 3 * (from + k);
      for (int a = 0; a < 3; ++a) {
        o.offset[k][a] = given[a];
        if (-given[a] > o.lo[a]) o.lo[a] = -given[a];
        if (S.grid[a] - given[a] < o.hi[a]) o.hi[a] = S.grid[a] - given[a];
      }
      o.distance[k] = (given[0] * S.grid[1] + given[1]) * S.grid[2] + given[2];
    }
    return o;
  }
};

struct GridPoint {
  int64_t i[3];
  int64_t at;  // in memory
  bool inner;

  LS_DEVICE GridPoint(const StencilOffsets& S, int64_t i0, int64_t i1, int64_t i2)
      : i{i0, i1, i2}, at((i0 * S.grid[1] + i1) * S.grid[2] + i2), inner(true) {
    for (int a = 0; a < 3; ++a) inner = inner && i[a] >= S.lo[a] && i[a] < S.hi[a];
  }
  static LS_DEVICE GridPoint number(const StencilOffsets& S, int64_t n) {
    const int64_t line = n / S.grid[2];
    return GridPoint(S, line / S.grid[1], line % S.grid[1], n % S.grid[2]);
  }
  // Place of neighbor k, or -1.
  LS_DEVICE int64_t neighbor(const StencilOffsets& S, int k) const {
    if (inner) return at + S.distance[k];
    int64_t place = 0;
    LS_UNROLL
    for (int a = 0; a < 3; ++a) {
      int64_t t = i[a] + S.offset[k][a];
      if (t < 0 || t >= S.grid[a]) {
        if (!S.periodic[a]) return -1;
        t += t < 0 ? S.grid[a] : -S.grid[a];
      }
      place = place * S.grid[a] + t;
    }
    return place;
  }
};

// Operands of a pass: coefficients c and x or, for their derivatives, u and w.
template <class T>
struct StencilPass {
  StencilOffsets S;
  BatchOf<const T> u, w;
  BatchResult<T> out;
  Groups groups;
  Coefficients kind;
  bool add;      // to what is there
  int64_t part;  // points of a team, where products are summed up over points
};

// f(point, members) for those of this thread: the last axis along x, the one before along y, the first and
// the batch along z.
template <class T, class F>
LS_DEVICE void for_grid_points(const StencilPass<T>& P, const F& f) {
  const int64_t* n = P.S.grid;
  for_points(P.groups.count * n[0], n[1], n[2], [&](int64_t layer, int64_t i1, int64_t i2) {
    f(GridPoint(P.S, layer % n[0], i1, i2), P.groups.members(layer / n[0]));
  });
}

// y_i = sum_k c_k(i) x_{i + o_k}. The coefficients of offset k begin at c + k points, or are c[k].
template <class T>
LS_KERNEL(kThreads)
stencil_kernel(LS_ARGUMENT StencilPass<T> P) {
  for_grid_points(P, [&](const GridPoint& i, const Members& members) {
    const int64_t points = P.S.points();
    T& y = P.out.of(members)[i.at];
    T sum = P.add ? y : T(0);
    for (int64_t b = members.b0; b < members.b1; ++b) {
      const T *c = P.u.of(b), *x = P.w.of(b);
      for (int k = 0; k < P.S.count; ++k) {
        const int64_t j = i.neighbor(P.S, k);
        if (j < 0) continue;
        const T ck = P.kind == Coefficients::constant   ? c[k]
                     : P.kind == Coefficients::variable ? c[k * points + i.at]
                                                        : c[k * points + j];
        sum += ck * x[j];
      }
    }
    y = sum;
  });
}

// q_k(i) = u_i w_{i + o_k}, at q + k points.
template <class T>
LS_KERNEL(kThreads)
stencil_products_kernel(LS_ARGUMENT StencilPass<T> P) {
  for_grid_points(P, [&](const GridPoint& i, const Members& members) {
    T* q = P.out.of(members) + i.at;
    for (int k = 0; k < P.S.count; ++k) {
      const int64_t j = i.neighbor(P.S, k);
      T sum = 0;
      for (int64_t b = members.b0; j >= 0 && b < members.b1; ++b) sum += P.u.of(b)[i.at] * P.w.of(b)[j];
      q[k * P.S.points()] = sum;
    }
  });
}

// Their sums over part n of the points, to partial[(group parts + n) count + k].
template <class T>
LS_KERNEL(kThreads)
stencil_part_sums_kernel(LS_ARGUMENT StencilPass<T> P, T* partial, int64_t parts, int64_t count) {
  const auto part_sums = [&](const auto& team, int64_t n, const Members& members) {
    const int64_t begin = n * P.part, points = P.S.points();
    const int64_t end = begin + P.part < points ? begin + P.part : points;
    for (int from = 0; from < P.S.count; from += kStencilSums) {
      T sums[kStencilSums] = {};
      for (int64_t b = members.b0; b < members.b1; ++b)
        for (int64_t m = begin + team.lane; m < end; m += 32) {
          const GridPoint i = GridPoint::number(P.S, m);
          const T ui = P.u.of(b)[m];
          LS_UNROLL
          for (int k = 0; k < kStencilSums; ++k) {
            if (from + k >= P.S.count) break;
            const int64_t j = i.neighbor(P.S, from + k);
            if (j >= 0) sums[k] += ui * P.w.of(b)[j];
          }
        }
      LS_UNROLL
      for (int k = 0; k < kStencilSums; ++k) {
        const T total = team.sum(sums[k]);
        if (team.first() && from + k < P.S.count)
          partial[(members.group * parts + n) * count + from + k] = total;
      }
    }
  };
  for_members(P.groups, [&](const Members& members) {
    for_items<32>(parts, [&](const auto& team, int64_t n) { part_sums(team, n, members); });
  });
}

}  // namespace learnsolve::cuda
