// Sums over the rows of n x k complex vectors, a column each, nothing conjugated, and combinations of such
// vectors: column_dots.h for pairs.
#pragma once

#include "kernels/complex_products.h"

namespace learnsolve::LEARNSOLVE_ISA {

// The columns in V numbers of a row, from number j of n on.
template <int V, class T>
LS_INLINE void complex_dots_tile(const T* LS_RESTRICT u, const T* LS_RESTRICT v, int64_t rows, int64_t n,
                                 int64_t j, T* LS_RESTRICT sum) {
  using R = Reals<T, V>;
  typename R::vector s{}, t{};
  for (int64_t o = j; o < rows * n; o += n) {
    const auto uo = R::load(u + o), vo = R::load(v + o);
    s += uo * vo;
    t += uo * R::swapped(vo);
  }
  for (int e = 0; e < V; e += 2) sum[j + e] = s[e] - s[e + 1], sum[j + e + 1] = t[e] + t[e + 1];
}

// sum_c = sum_i u_ic v_ic for 0 <= i < rows
template <class T>
void complex_column_dots(const T* u, const T* v, int64_t rows, int64_t k, T* sum) {
  constexpr int V = kLanes<T>;
  const int64_t n = 2 * k;
  if (k == 1) {
    typename Reals<T, 2>::vector s{}, t{};
    int64_t o = 0;
    add_dots<V>(u, v, o, 2 * rows, s, t);
    add_dots<2>(u, v, o, 2 * rows, s, t);
    sum[0] = s[0] - s[1], sum[1] = t[0] + t[1];
    return;
  }
  int64_t j = 0;
  for (; j + V <= n; j += V) complex_dots_tile<V>(u, v, rows, n, j, sum);
  for (; j < n; j += 2) complex_dots_tile<2>(u, v, rows, n, j, sum);
}

// Elements from o to `end` of y (+)= a v.
template <int V, class T>
LS_INLINE void add_multiple(const T* LS_RESTRICT a, const T* LS_RESTRICT v, int64_t& o, int64_t end,
                            T* LS_RESTRICT y, bool accumulate) {
  using R = Reals<T, V>;
  for (; o + V <= end; o += V) {
    const auto vo = R::load(v + o);
    R::put(y + o, R::with_i(a[0] * vo, a[1] * vo, 1), accumulate);
  }
}

// y_ic = a_c v_ic, added to y if `accumulate`.
template <class T>
void complex_column_combination(const T* a, const T* v, int64_t rows, int64_t k, T* y, bool accumulate) {
  int64_t o = 0;
  if (k == 1) add_multiple<kLanes<T>>(a, v, o, 2 * rows, y, accumulate);
  for (int64_t c = 0; o < 2 * rows * k; c = c + 1 == k ? 0 : c + 1)
    add_multiple<2>(a + 2 * c, v, o, o + 2, y, accumulate);
}

}  // namespace learnsolve::LEARNSOLVE_ISA
