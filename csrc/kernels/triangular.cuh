// T x = b for a triangular T on a device, by the rule of kernels/sptrsv.h,
//
//     x_i = b_i r_i - sum_j (t_ij r_i) x_j,   r_i = 1 / t_ii (1 for a unit diagonal),
//
// the farthest column first. A row is solved by a team of 1, 8 or 32 lanes, whichever kernel solves it, so it
// has the same bits in all of them. Checking the diagonal for zeros would wait for the device: a row whose
// reciprocal is infinite is NaN, and so is what depends on it.
#pragma once

#include "kernels/launch.cuh"

namespace learnsolve::cuda {

// A product that no addition is fused with, and one that is: every kernel has the same bits.
LS_DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
LS_DEVICE double times(double a, double b) { return __dmul_rn(a, b); }
LS_DEVICE float plus_product(float s, float a, float b) { return __fmaf_rn(a, b, s); }
LS_DEVICE double plus_product(double s, double a, double b) { return __fma_rn(a, b, s); }

template <class T>
LS_BOTH bool finite(T v) {
  return v - v == 0;
}

// 1 / d, NaN where that is infinite.
template <class T>
LS_BOTH T reciprocal(T d) {
  const T r = T(1) / d;
  return finite(r) || r != r ? r : r - r;
}

// Rows hold the entries that are read and no others, sorted: TriangleView of kernels/csr_view.h.
template <class T, class I>
struct Triangle {
  const I* ptr;
  const I* idx;
  const I* perm;
  const T* values;
  int64_t values_step;  // from one member of the batch to the next
  int64_t rows;
  bool upper, unit;

  LS_BOTH int64_t place(int64_t p) const { return perm ? static_cast<int64_t>(perm[p]) : p; }
};

// Right-hand sides and results, (batch, rows, k).
template <class T>
struct Sides {
  const T* b;
  T* x;
  int64_t b_step, x_step, k;
};

// One lane's part of a row: entries lane, lane + N, ... of its N lanes. All that does not depend on other
// results is read ahead, for the first few of them: in steps, each of which needs what the one before has
// read.
template <int N, class T, class I>
struct LaneRow {
  static constexpr int kHeld = 4;
  int64_t i, c;  // row and column; i < 0: none
  int64_t far, count, diagonal;
  T b, r;
  T coefficient[kHeld];
  I column[kHeld], place[kHeld];

  LS_DEVICE int64_t entry(const Triangle<T, I>& S, int64_t e) const { return S.upper ? far - e : far + e; }
  LS_DEVICE void begin(int64_t row, int64_t of_column) { i = row, c = of_column; }
  LS_DEVICE void read_bounds(const Triangle<T, I>& S) {
    if (i < 0) return;
    const int64_t first = S.ptr[i], end = S.ptr[i + 1];
    count = end - first - !S.unit;
    far = S.upper ? end - 1 : first;
    diagonal = S.upper ? first : end - 1;
  }
  LS_DEVICE void read_places(const Triangle<T, I>& S, const Sides<T>& v, int64_t m, int lane) {
    if (i < 0) return;
    b = v.b[m * v.b_step + i * v.k + c];
    if (!S.unit) diagonal = S.place(diagonal);
    LS_UNROLL
    for (int h = 0; h < kHeld; ++h)
      if (lane + h * N < count) {
        const int64_t p = entry(S, lane + h * N);
        column[h] = S.idx[p];
        place[h] = static_cast<I>(S.place(p));
      }
  }
  LS_DEVICE void read_values(const Triangle<T, I>& S, int64_t m, int lane) {
    if (i < 0) return;
    const T* values = S.values + m * S.values_step;
    r = S.unit ? T(1) : values[diagonal];
    LS_UNROLL
    for (int h = 0; h < kHeld; ++h)
      if (lane + h * N < count) coefficient[h] = values[place[h]];
  }
  LS_DEVICE void divide(const Triangle<T, I>& S, int lane) {
    if (i < 0) return;
    if (!S.unit) r = reciprocal(r);
    b = lane == 0 ? times(b, r) : T(0);
    LS_UNROLL
    for (int h = 0; h < kHeld; ++h)
      if (lane + h * N < count) coefficient[h] = -times(coefficient[h], r);
  }
  // f(column) for all of the part.
  template <class F>
  LS_DEVICE void each_column(const Triangle<T, I>& S, int lane, const F& f) const {
    LS_UNROLL
    for (int h = 0; h < kHeld; ++h)
      if (lane + h * N < count) f(static_cast<int64_t>(column[h]));
    for (int64_t e = lane + kHeld * N; e < count; e += N) f(static_cast<int64_t>(S.idx[entry(S, e)]));
  }
  LS_DEVICE T total(const Triangle<T, I>& S, const Sides<T>& v, int64_t m, int lane) const {
    const T* values = S.values + m * S.values_step;
    const T* x = v.x + m * v.x_step + c;
    T s = b;
    LS_UNROLL
    for (int h = 0; h < kHeld; ++h)
      if (lane + h * N < count) s = plus_product(s, coefficient[h], x[static_cast<int64_t>(column[h]) * v.k]);
    for (int64_t e = lane + kHeld * N; e < count; e += N) {
      const int64_t p = entry(S, e);
      s = plus_product(s, -times(values[S.place(p)], r), x[static_cast<int64_t>(S.idx[p]) * v.k]);
    }
    return s;
  }
};

// Where results are awaited: nowhere, if a launch or a barrier lies between a row and those that it reads.
struct NoFlags {
  LS_DEVICE void await(int64_t) const {}
  LS_DEVICE void all_awaited() const {}
  LS_DEVICE void publish(int64_t) const {}
};

// Row i for column c of member m by one team.
template <class Team, class T, class I, class F>
LS_DEVICE void solve_row(const Team& team, const Triangle<T, I>& S, const Sides<T>& v, int64_t i, int64_t c,
                         int64_t m, const F& flags) {
  using Row = LaneRow<Team::size, T, I>;
  typename Team::template Own<Row> row;
  typename Team::template Own<T> part;
  team.each([&](int lane) {
    Row& own = row[lane];
    own.begin(i, c);
    own.read_bounds(S);
    own.read_places(S, v, m, lane);
    own.read_values(S, m, lane);
    own.divide(S, lane);
    own.each_column(S, lane, [&](int64_t j) { flags.await(m * v.x_step + j * v.k + c); });
    flags.all_awaited();
    part[lane] = own.total(S, v, m, lane);
  });
  const T total = team.sum(part);
  team.first([&] {
    v.x[m * v.x_step + i * v.k + c] = total;
    flags.publish(m * v.x_step + i * v.k + c);
  });
}

using OneLane = Team<1>;

// Levels one after another by one block, a row a lane: level number n holds order[bound(n)] to order[end(n)].
// While a level is solved, the rows of those that follow are read, one step of each between two barriers: a
// level waits for results and for nothing else. Columns c0 to c0 + columns of member m.
template <class Team, class T, class I, class Bound>
LS_DEVICE void sweep_levels(const Team& team, const Triangle<T, I>& S, const Sides<T>& v, const I* order,
                            int64_t levels, const Bound& bound, int64_t c0, int columns, int64_t m) {
  using Row = LaneRow<1, T, I>;
  struct Ahead {
    Row begun, bounded, placed, read, ready;
  };
  constexpr int64_t kAhead = 5;
  typename Team::template Own<Ahead> own;
  team.each([&](int lane) {
    Ahead& row = own[lane];
    row.begun.i = row.bounded.i = row.placed.i = row.read.i = row.ready.i = -1;
  });
  for (int64_t n = -kAhead; n < levels; ++n) {
    team.each([&](int lane) {
      Ahead& row = own[lane];
      if (row.ready.i >= 0) v.x[m * v.x_step + row.ready.i * v.k + row.ready.c] = row.ready.total(S, v, m, 0);
      if (n >= 0) {
        const int64_t begin = bound(n, false);
        const int items = static_cast<int>(bound(n, true) - begin) * columns;
        for (int item = lane + Team::size; item < items; item += Team::size)
          solve_row(OneLane{}, S, v, order[begin + item / columns], c0 + item % columns, m, NoFlags{});
      }
      bool more = false;
      int64_t begin = 0;
      if (n + kAhead < levels) {
        begin = bound(n + kAhead, false);
        more = lane < static_cast<int>(bound(n + kAhead, true) - begin) * columns;
      }
      if (!more && (row.read.i & row.placed.i & row.bounded.i & row.begun.i) < 0) {  // all are none
        row.ready.i = -1;
        return;
      }
      row.ready = row.read, row.ready.divide(S, 0);
      row.read = row.placed, row.read.read_values(S, m, 0);
      row.placed = row.bounded, row.placed.read_places(S, v, m, 0);
      row.bounded = row.begun, row.bounded.read_bounds(S);
      row.begun.i = -1;
      if (more) row.begun.begin(order[begin + lane / columns], c0 + lane % columns);
    });
    team.sync();
  }
}

// The gradient of entry p, -<u_i, w_j> for its row i = rows[p], added up over `batch` members that share one
// matrix, else that of member 0. u and w are (batch, n, k).
template <class Team, class T, class I>
LS_DEVICE void entry_gradient(const Team& team, const I* rows, const I* idx, const I* perm, int64_t p,
                              const T* u, const T* w, int64_t step, int64_t k, int64_t batch, T* ga) {
  const int64_t i = static_cast<int64_t>(rows[p]) * k, j = static_cast<int64_t>(idx[p]) * k;
  typename Team::template Own<T> sum;
  team.each([&](int lane) {
    for (int64_t m = 0; m < batch; ++m)
      for (int64_t c = lane; c < k; c += Team::size)
        sum[lane] = plus_product(sum[lane], -u[m * step + i + c], w[m * step + j + c]);
  });
  const T total = team.sum(sum);
  team.first([&] { ga[perm ? static_cast<int64_t>(perm[p]) : p] = total; });
}

}  // namespace learnsolve::cuda
