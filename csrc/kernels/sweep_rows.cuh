// What the phases of Richardson sweeps and of their adjoint are made of: teams for the rows of a product, and
// the coefficients of a sweep.
#pragma once

#include "kernels/grid.cuh"
#include "kernels/row_pass.cuh"

namespace learnsolve::cuda {

// Rows by teams of `lanes`. One column: the lanes share a row's entries, and lane 0 does the rest.
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

}  // namespace learnsolve::cuda
