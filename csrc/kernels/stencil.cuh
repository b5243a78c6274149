// A stencil on a structured grid and its derivatives (kernels/stencil.h says what they compute), a point a
// thread. Offsets travel with the launch, at most kStencilOffsets of them; more take several.
#pragma once

#include "kernels/row_pass.cuh"
#include "kernels/stencil_view.h"

namespace learnsolve::cuda {

constexpr int kStencilOffsets = 64;
constexpr int kStencilSums = 8;         // of products, in registers
constexpr int kStencilThreads = 256;    // that add products up together
constexpr int64_t kStencilPart = 8192;  // points whose products they add up

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

// y_i or, if `add`, y_i +=. The coefficients of offset k begin at c + k points, or are c[k].
template <class T>
struct StencilPass {
  StencilOffsets S;
  Coefficients kind;
  const T* c;
  const T* x;
  T* y;
  int64_t c_step, x_step, y_step, batch;
  bool add;

  LS_BOTH bool adds_up() const { return batch > 1 && y_step == 0; }
};

template <class T>
LS_DEVICE void stencil_point(const StencilPass<T>& P, const GridPoint& i, Members members) {
  const int64_t points = P.S.points();
  T sum = P.add ? P.y[members.b0 * P.y_step + i.at] : T(0);
  for (int64_t b = members.b0; b < members.b1; ++b) {
    const T* c = P.c + b * P.c_step;
    const T* x = P.x + b * P.x_step;
    for (int k = 0; k < P.S.count; ++k) {
      const int64_t j = i.neighbor(P.S, k);
      if (j < 0) continue;
      const T ck = P.kind == Coefficients::constant   ? c[k]
                   : P.kind == Coefficients::variable ? c[k * points + i.at]
                                                      : c[k * points + j];
      sum += ck * x[j];
    }
  }
  P.y[members.b0 * P.y_step + i.at] = sum;
}

// q_k(i) = u_i w_{i + o_k}, at q + k points.
template <class T>
struct StencilProductsPass {
  StencilOffsets S;
  const T* u;
  const T* w;
  T* q;
  int64_t u_step, w_step, q_step, batch;

  LS_BOTH bool adds_up() const { return batch > 1 && q_step == 0; }
};

template <class T>
LS_DEVICE void stencil_products_point(const StencilProductsPass<T>& P, const GridPoint& i, Members members) {
  const int64_t points = P.S.points();
  for (int k = 0; k < P.S.count; ++k) {
    const int64_t j = i.neighbor(P.S, k);
    T sum = 0;
    for (int64_t b = members.b0; j >= 0 && b < members.b1; ++b)
      sum += P.u[b * P.u_step + i.at] * P.w[b * P.w_step + j];
    P.q[members.b0 * P.q_step + k * points + i.at] = sum;
  }
}

// Sums of those products over part n of the points, to partial[k]. `from`: kStencilSums offsets at a time.
template <class T>
struct SumsScratch {
  T sums[kStencilSums][kStencilThreads];
};

template <class Team, class T>
LS_DEVICE void stencil_part_sums(const Team& team, const StencilProductsPass<T>& P, int64_t n, int64_t b,
                                 T* partial, SumsScratch<T>& scratch) {
  constexpr int N = Team::size;
  const int64_t points = P.S.points(), begin = n * kStencilPart;
  const int64_t end = begin + kStencilPart < points ? begin + kStencilPart : points;
  for (int from = 0; from < P.S.count; from += kStencilSums) {
    team.each([&](int lane) {
      T sums[kStencilSums] = {};
      for (int64_t m = begin + lane; m < end; m += N) {
        const GridPoint i = GridPoint::number(P.S, m);
        const T ui = P.u[b * P.u_step + m];
        LS_UNROLL
        for (int k = 0; k < kStencilSums; ++k) {
          if (from + k >= P.S.count) break;
          const int64_t j = i.neighbor(P.S, from + k);
          if (j >= 0) sums[k] += ui * P.w[b * P.w_step + j];
        }
      }
      LS_UNROLL
      for (int k = 0; k < kStencilSums; ++k) scratch.sums[k][lane] = sums[k];
    });
    team.sync();
    for (int h = N / 2; h > 0; h /= 2) {
      team.each([&](int lane) {
        if (lane < h)
          for (int k = 0; k < kStencilSums; ++k) scratch.sums[k][lane] += scratch.sums[k][lane + h];
      });
      team.sync();
    }
    team.each([&](int lane) {
      if (lane < kStencilSums && from + lane < P.S.count) partial[from + lane] = scratch.sums[lane][0];
    });
    team.sync();
  }
}

// out[k] = sum over parts and members of partial[(b parts + n) count + k].
template <class Team, class T>
LS_DEVICE void stencil_total(const Team& team, const T* partial, int64_t terms, int count, int k, T* out) {
  typename Team::template Own<T> sum;
  team.each([&](int lane) {
    for (int64_t t = lane; t < terms; t += Team::size) sum[lane] += partial[t * count + k];
  });
  const T total = team.sum(sum);
  team.first([&] { out[k] = total; });
}

}  // namespace learnsolve::cuda
