// T x = b for a triangular T, row by row,
//
//     x_i = b_i r_i - sum_j (t_ij r_i) x_j,   r_i = 1 / t_ii (1 for a unit diagonal),
//
// the farthest column first. So what passes from one row to the next is a single multiply-add, if the
// neighbor's result is still in a register: 4 cycles a row, whereas a division at the end and a round trip
// through memory take 25. Every row is computed by this rule in this order, whatever the path: no schedule,
// no number of threads changes a bit. The one exception is one column of a bidiagonal run, which is a scan
// (sptrsv_run.h); it is never split.
//
// Backward: T^T y = g, the same with the transpose; the gradient of t_ij is -y_i x_j, that of b is y. The
// former is a pass of its own (sptrsv_gradient.h), in the order of the values. In the sweep itself it would
// be written in the order of the transpose: 1.2 to 1.4 times the time of both on factors of grids, 2 to 3
// times on random rows.
//
// The solves return false if a reciprocal is infinite (a zero, or nearly, on the diagonal). x may be b.
#pragma once

#include "kernels/sptrsv_run.h"

namespace learnsolve::LEARNSOLVE_ISA {

// All rows in the order of the sweep, one column.
template <class T, class I>
bool solve_vector(const TriangleView<T, I>& S, const T* b, T* x) {
  for (int64_t t = 0; t < S.n_blocks; ++t) {
    const I* block = S.blocks + 3 * (S.upper ? S.n_blocks - 1 - t : t);
    const int64_t r0 = block[0], r1 = block[3], stride = block[2];
    bool done = true;
    switch (block[1] > 0 ? block[1] - !S.unit : -1) {
      case 0: done = solve_uniform<0>(S, r0, r1, stride, b, x); break;
      case 1: done = solve_uniform<1>(S, r0, r1, stride, b, x); break;
      case 2: done = solve_uniform<2>(S, r0, r1, stride, b, x); break;
      case 3: done = solve_uniform<3>(S, r0, r1, stride, b, x); break;
      case 4: done = solve_uniform<4>(S, r0, r1, stride, b, x); break;
      case 5: done = solve_uniform<5>(S, r0, r1, stride, b, x); break;
      case 6: done = solve_uniform<6>(S, r0, r1, stride, b, x); break;
      case 7: done = solve_uniform<7>(S, r0, r1, stride, b, x); break;
      case 8: done = solve_uniform<8>(S, r0, r1, stride, b, x); break;
      default: {
        const int64_t dir = S.upper ? -1 : 1;
        int64_t i = S.upper ? r1 - 1 : r0;
        // Read only by a row that has an entry there.
        T neighbor = i - dir >= 0 && i - dir < S.rows ? x[i - dir] : T(0);
        for (int64_t left = r1 - r0; left > 0; --left, i += dir) {
          const TriangleRow<T, I> row(S, i);
          if (__builtin_expect(__builtin_isinf(row.reciprocal), 0)) return false;
          x[i] = neighbor = solve_row<true>(S, row, i, b[i], x, neighbor);
        }
      }
    }
    if (!done) return false;
  }
  return true;
}

// Columns c0 <= c < c1 of k, all rows in the order of the sweep.
template <class T, class I>
bool sptrsv(const TriangleView<T, I>& S, const T* b, T* x, int64_t k, int64_t c0, int64_t c1) {
  if (k == 1) return solve_vector(S, b, x);
  for (int64_t t = 0; t < S.rows; ++t) {
    const int64_t i = S.upper ? S.rows - 1 - t : t;
    const TriangleRow<T, I> row(S, i);
    if (__builtin_isinf(row.reciprocal)) return false;
    solve_tiles<kTileVectors>(S, row, b + i * k, x + i * k, x, k, c0, c1);
  }
  return true;
}

// Rows order[r0] .. order[r1 - 1], none of which depends on another: part of a level.
template <class T, class I>
bool sptrsv_rows(const TriangleView<T, I>& S, const I* order, int64_t r0, int64_t r1, const T* b, T* x,
                 int64_t k) {
  for (int64_t t = r0; t < r1; ++t) {
    const int64_t i = order[t];
    const TriangleRow<T, I> row(S, i);
    if (__builtin_isinf(row.reciprocal)) return false;
    if (k == 1)
      x[i] = solve_row<false>(S, row, i, b[i], x, T(0));
    else
      solve_tiles<kTileVectors>(S, row, b + i * k, x + i * k, x, k, 0, k);
  }
  return true;
}

}  // namespace learnsolve::LEARNSOLVE_ISA
