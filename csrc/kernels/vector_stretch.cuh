// One column, Sum (row_pass.cuh), by stretches of the merge path of equal length, each by one block of
// threads: products of entries are formed by all threads together, in memory order, and added up along the
// path, from their place in shared memory. What a row has in several stretches is added up by add_carries.
#pragma once

#include "kernels/row_pass.cuh"

namespace learnsolve::cuda {

// N threads that follow `Items` items each. An odd number of them avoids conflicts between banks of shared
// memory.
template <class T, int N, int Items>
struct StretchScratch {
  T products[N * Items];
  int ends[N * Items];  // of the rows that end here, counted from the first entry of the stretch
  T carry[N];
  bool closes[N];
};

template <int Items, class Team, class T, class I>
LS_DEVICE void vector_stretch(const Team& team, const RowPass<T, I>& P, int64_t t, Members members,
                              StretchScratch<T, Team::size, Items>& scratch) {
  constexpr int N = Team::size;
  const PathPoint first = P.rows.line(t), last = P.rows.line(t + 1);
  const int rows = static_cast<int>(last.row - first.row);
  const int items = static_cast<int>(last.entry - first.entry) + rows;
  // One member at a time, or all of them in every product.
  for (int64_t b = members.b0; b < (P.y_step ? members.b1 : members.b0 + 1); ++b) {
    const int64_t b1 = P.y_step ? b + 1 : members.b1;
    team.each([&](int lane) {
      for (int r = lane; r < rows; r += N)
        scratch.ends[r] = static_cast<int>(P.rows.ptr[first.row + r + 1] - first.entry);
      const auto product = [&](int64_t p, int64_t q, int64_t j) {
        T s = 0;
        for (int64_t m = b; m < b1; ++m) s += P.a[m * P.a_step + q] * P.x[m * P.x_step + j];
        scratch.products[p - first.entry] = s;
      };
      if (P.entries) {
        for (int64_t p = (first.entry & ~int64_t{3}) + 4 * lane; p < last.entry; p += 4 * N) {
          const bool whole = p >= first.entry && p + 4 <= last.entry;
          if (whole && !P.perm && b1 == b + 1) {
            const Pack<I, 4> j = load_pack<4>(P.idx + p);
            const Pack<T, 4> a = load_pack<4>(P.a + b * P.a_step + p);
            LS_UNROLL
            for (int e = 0; e < 4; ++e)
              scratch.products[p + e - first.entry] = a.v[e] * P.x[b * P.x_step + j.v[e]];
          } else {
            for (int e = 0; e < 4; ++e)
              if (p + e >= first.entry && p + e < last.entry) product(p + e, P.place(p + e), P.idx[p + e]);
          }
        }
      } else {
        for (int64_t p = first.entry + lane; p < last.entry; p += N) product(p, P.place(p), P.idx[p]);
      }
    });
    team.sync();

    // Every lane along its items. The first row that ends there may have begun before them.
    typename Team::template Own<int> first_end;
    typename Team::template Own<T> first_sum;
    team.each([&](int lane) {
      const int from = lane * Items < items ? lane * Items : items;
      const int to = from + Items < items ? from + Items : items;
      int lo = 0, hi = rows;
      while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (scratch.ends[mid] + mid < from)
          lo = mid + 1;
        else
          hi = mid;
      }
      int row = lo, entry = from - lo;
      T sum = 0;
      first_end[lane] = -1;
      for (int item = from; item < to; ++item) {
        if (row < rows && entry == scratch.ends[row]) {
          if (first_end[lane] < 0) {
            first_end[lane] = row;
            first_sum[lane] = sum;
          } else {
            P.y[b * P.y_step + first.row + row] = sum;
          }
          sum = 0;
          ++row;
        } else {
          sum += scratch.products[entry++];
        }
      }
      scratch.carry[lane] = sum;
      scratch.closes[lane] = first_end[lane] >= 0;
    });
    team.sync();

    // carry[lane]: the sum, from the last end of a row at or before the lane on.
    for (int h = 1; h < N; h *= 2) {
      typename Team::template Own<T> before;
      typename Team::template Own<bool> closed;
      team.each([&](int lane) {
        const bool joins = lane >= h && !scratch.closes[lane];
        before[lane] = joins ? scratch.carry[lane - h] : T(0);
        closed[lane] = scratch.closes[lane] || (lane >= h && scratch.closes[lane - h]);
      });
      team.sync();
      team.each([&](int lane) {
        if (lane >= h && !scratch.closes[lane]) scratch.carry[lane] = before[lane] + scratch.carry[lane];
        scratch.closes[lane] = closed[lane];
      });
      team.sync();
    }
    team.each([&](int lane) {
      if (first_end[lane] >= 0) {
        const T before = lane > 0 ? scratch.carry[lane - 1] : T(0);
        P.y[b * P.y_step + first.row + first_end[lane]] = before + first_sum[lane];
      }
      if (lane == N - 1) P.carry[(P.y_step ? b * P.rows.stretches : 0) + t] = scratch.carry[lane];
    });
    team.sync();
  }
}

}  // namespace learnsolve::cuda
