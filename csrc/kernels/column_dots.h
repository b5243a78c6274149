// Sums over the rows of n x k vectors, a column each, in an order that depends on n and k alone; and their
// adjoint, combinations of vectors.
//
// Up to kFlat columns are worked on as one array: the columns of its numbers come again after a period of P
// vectors, at least four, so that as many additions run at a time.
#pragma once

#include "kernels/lanes.h"
#include "kernels/vector_pass.h"

namespace learnsolve::LEARNSOLVE_ISA {

inline constexpr int64_t kFlat = 8;

// f.template operator()<P>() with the period of k columns.
template <class F>
LS_INLINE void by_period(int64_t k, const F& f) {
  if (k == 3 || k == 6) return f.template operator()<6>();
  if (k == 5) return f.template operator()<5>();
  if (k == 7) return f.template operator()<7>();
  if (k == 8) return f.template operator()<8>();
  f.template operator()<4>();
}

template <int P, class T>
LS_FUNCTION void flat_dots(const T* LS_RESTRICT u, const T* LS_RESTRICT v, int64_t size, int64_t k,
                           T* LS_RESTRICT sum) {
  using W = typename Wide<T>::type;
  constexpr int V = kLanes<T>;
  W wide[P] = {};
  int64_t o = 0;
  for (; o + P * V <= size; o += P * V)
#pragma GCC unroll 8
    for (int s = 0; s < P; ++s) wide[s] += get<W>(u + o + s * V) * get<W>(v + o + s * V);
  if (k == 1) {
    W total{};
    T single = 0;
#pragma GCC unroll 8
    for (int s = 0; s < P; ++s) total += wide[s];
    for (; o < size; ++o) single += u[o] * v[o];
    sum[0] = sum_lanes(total) + single;
    return;
  }
  for (int64_t c = 0; c < k; ++c) sum[c] = 0;
  for (int64_t c = 0; o < size; ++o, c = c + 1 == k ? 0 : c + 1) sum[c] += u[o] * v[o];
  int64_t c = 0;
  for (int s = 0; s < P; ++s)
    for (int e = 0; e < V; ++e, c = c + 1 == k ? 0 : c + 1) sum[c] += wide[s][e];
}

// sum_c = sum_i u_ic v_ic for 0 <= i < rows
template <class T>
void column_dots(const T* LS_RESTRICT u, const T* LS_RESTRICT v, int64_t rows, int64_t k,
                 T* LS_RESTRICT sum) {
  if (k == 0) return;
  if (k <= kFlat) return by_period(k, [&]<int P>() { flat_dots<P>(u, v, rows * k, k, sum); });
  for (int64_t c = 0; c < k; ++c) sum[c] = 0;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < k; ++c) sum[c] += u[i * k + c] * v[i * k + c];
}

// y_ic = a_c v_ic, added to y if `accumulate`.
template <class T>
void column_combination(const T* LS_RESTRICT a, const T* LS_RESTRICT v, int64_t rows, int64_t k,
                        T* LS_RESTRICT y, bool accumulate) {
  const auto at = [&](T coefficient, int64_t o) {
    y[o] = accumulate ? y[o] + coefficient * v[o] : coefficient * v[o];
  };
  if (k == 0) return;
  if (k > kFlat) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < k; ++c) at(a[c], i * k + c);
    return;
  }
  by_period(k, [&]<int P>() {
    constexpr int L = P * kLanes<T>;
    T repeated[L];
    for (int e = 0; e < L; ++e) repeated[e] = a[e % k];
    int64_t o = 0;
    for (; o + L <= rows * k; o += L)
      for (int e = 0; e < L; ++e) at(repeated[e], o + e);
    for (int e = 0; o < rows * k; ++o, ++e) at(repeated[e], o);
  });
}

}  // namespace learnsolve::LEARNSOLVE_ISA
