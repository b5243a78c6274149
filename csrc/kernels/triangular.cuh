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

// Row i for column c of member m by one team: entry e, counted from the farthest column, by lane e of its N.
template <int N, class T, class I>
LS_DEVICE void solve_row(const Team<N>& team, const Triangle<T, I>& S, const Sides<T>& v, int64_t i,
                         int64_t c, int64_t m) {
  const T* values = S.values + m * S.values_step;
  T* x = v.x + m * v.x_step + c;
  const int64_t first = S.ptr[i], last = S.ptr[i + 1] - 1, count = last - first + S.unit;
  const T r = S.unit ? T(1) : reciprocal(values[S.place(S.upper ? first : last)]);
  T sum = team.first() ? times(v.b[m * v.b_step + i * v.k + c], r) : T(0);
  for (int64_t e = team.lane; e < count; e += N) {
    const int64_t p = S.upper ? last - e : first + e;
    sum = plus_product(sum, -times(values[S.place(p)], r), x[static_cast<int64_t>(S.idx[p]) * v.k]);
  }
  sum = team.sum(sum);
  if (team.first()) x[i * v.k] = sum;
}

}  // namespace learnsolve::cuda
