// Products of complex matrices: y_i = sum_p a_p x_{j(p)} and out_p = sum_c u_ic v_jc. Each number lies in
// memory as a pair of real ones, so pointers are real, and a row of k numbers has 2 k.
//
// A product is s + i t with s = sum Re(a) x and t = sum Im(a) x: the vectors of x are not shuffled, only the
// sums, once, and that of the conjugate of a, s - i t, costs nothing.
#pragma once

#include "kernels/vectors.h"
#include "kernels/views.h"

namespace learnsolve::LEARNSOLVE_ISA {

// V real numbers, one half as many complex ones: as a variable, and in memory of any alignment.
template <class T, int V>
struct Reals {
  typedef T vector __attribute__((vector_size(V * sizeof(T))));
  typedef T memory __attribute__((vector_size(V * sizeof(T)), aligned(sizeof(T)), may_alias));

  static LS_INLINE vector load(const T* p) { return *reinterpret_cast<const memory*>(p); }
  static LS_INLINE void put(T* p, vector v, bool accumulate) {
    memory* at = reinterpret_cast<memory*>(p);
    *at = accumulate ? *at + v : v;
  }
  // (Im, Re) of each number.
  static LS_INLINE vector swapped(vector v) {
    if constexpr (V == 2)
      return __builtin_shufflevector(v, v, 1, 0);
    else if constexpr (V == 4)
      return __builtin_shufflevector(v, v, 1, 0, 3, 2);
    else
      return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
  }
  // The sum of the numbers.
  static LS_INLINE typename Reals<T, 2>::vector total(vector v) {
    if constexpr (V == 2)
      return v;
    else if constexpr (V == 4)
      return __builtin_shufflevector(v, v, 0, 1) + __builtin_shufflevector(v, v, 2, 3);
    else
      return Reals<T, 4>::total(__builtin_shufflevector(v, v, 0, 1, 2, 3) +
                                __builtin_shufflevector(v, v, 4, 5, 6, 7));
  }
  // (even, odd), again and again
  static LS_INLINE vector repeated(T even, T odd) {
    vector v;
#pragma GCC unroll 8
    for (int e = 0; e < V; ++e) v[e] = e % 2 ? odd : even;
    return v;
  }
  // s + i t, or s - i t: `sign` is 1 or -1
  static LS_INLINE vector with_i(vector s, vector t, T sign) {
    return s + repeated(-sign, sign) * swapped(t);
  }
};

// N vectors of V numbers of row i, n real numbers long, from number j on.
template <int N, int V, class T, class I>
LS_INLINE void complex_tile(const CsrView<T, I>& A, int64_t i, int64_t j, const T* LS_RESTRICT x, int64_t n,
                            T* LS_RESTRICT y, bool accumulate, T sign) {
  using R = Reals<T, V>;
  typename R::vector s[N] = {}, t[N] = {};
  for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) {
    const T* LS_RESTRICT a = A.values + 2 * (A.perm ? static_cast<int64_t>(A.perm[p]) : p);
    const T* LS_RESTRICT xr = x + static_cast<int64_t>(A.idx[p]) * n + j;
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) {
      const auto v = R::load(xr + c * V);
      s[c] += a[0] * v;
      t[c] += a[1] * v;
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < N; ++c) R::put(y + i * n + j + c * V, R::with_i(s[c], t[c], sign), accumulate);
}

template <class T, class I>
LS_FUNCTION void complex_rows(CsrView<T, I> A, int64_t r0, int64_t r1, const T* x, int64_t n, T* y,
                              bool accumulate, T sign) {
  constexpr int V = kLanes<T>;
  for (int64_t i = r0; i < r1; ++i) {
    int64_t j = 0;
    for (; j + 4 * V <= n; j += 4 * V) complex_tile<4, V>(A, i, j, x, n, y, accumulate, sign);
    if (j + 2 * V <= n) complex_tile<2, V>(A, i, j, x, n, y, accumulate, sign), j += 2 * V;
    if (j + V <= n) complex_tile<1, V>(A, i, j, x, n, y, accumulate, sign), j += V;
    for (; j < n; j += 2) complex_tile<1, 2>(A, i, j, x, n, y, accumulate, sign);
  }
}

// One column, a uniform block of n rows of L entries: entry l of the first row is at first[l] and meets x at
// columns[l], as in products.h.
template <int L, class T>
LS_FUNCTION void complex_uniform_rows(const T* const* first, const T* const* columns, bool apart, int64_t n,
                                      T* LS_RESTRICT y, bool accumulate, T sign) {
  using R = Reals<T, 2>;
  const T* LS_RESTRICT a[L];
  const T* LS_RESTRICT xs[L];
#pragma GCC unroll 16
  for (int l = 0; l < L; ++l) a[l] = first[l], xs[l] = columns[l];
  for (int64_t i = 0; i < 2 * n; i += 2) {
    typename R::vector s{}, t{};
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) {
      const T* LS_RESTRICT at = apart ? a[l] + i * L : a[0] + i * L + 2 * l;
      if (2 * l * sizeof(T) % 64 == 0) prefetch(at);
      const auto v = R::load(xs[l] + i);
      s += at[0] * v;
      t += at[1] * v;
    }
    R::put(y + i, R::with_i(s, t, sign), accumulate);
  }
}

template <class T, class I>
LS_INLINE void complex_vector_block(const CsrView<T, I>& A, int64_t r0, int64_t r1, int64_t length,
                                    const T* x, T* y, bool accumulate, T sign) {
  constexpr int kLongest = 9;
  const T *a[kLongest], *xs[kLongest];
  for (int64_t l = 0, p = A.ptr[r0]; l < length && l < kLongest; ++l, ++p) {
    a[l] = A.values + 2 * (A.perm ? static_cast<int64_t>(A.perm[p]) : p);
    xs[l] = x + 2 * static_cast<int64_t>(A.idx[p]);
  }
  const int64_t n = r1 - r0;
  T* yr = y + 2 * r0;
  switch (length) {  // of grids
    case 3: return complex_uniform_rows<3>(a, xs, A.perm, n, yr, accumulate, sign);
    case 5: return complex_uniform_rows<5>(a, xs, A.perm, n, yr, accumulate, sign);
    case 7: return complex_uniform_rows<7>(a, xs, A.perm, n, yr, accumulate, sign);
    case 9: return complex_uniform_rows<9>(a, xs, A.perm, n, yr, accumulate, sign);
    default: return complex_rows(A, r0, r1, x, 2, y, accumulate, sign);
  }
}

// With the conjugate of A if `conjugate`.
template <class T, class I>
void complex_spmm(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const T* x,
                  int64_t k, T* y, bool accumulate, bool conjugate) {
  const I* table = blocks.table;
  const T sign = conjugate ? -1 : 1;
  if (k != 1) return complex_rows(A, table[2 * b0], table[2 * b1], x, 2 * k, y, accumulate, sign);
  for (int64_t b = b0; b < b1; ++b)
    complex_vector_block(A, table[2 * b], table[2 * b + 2], table[2 * b + 1], x, y, accumulate, sign);
}

// (sum_c Re u_c Re v_c, sum_c Im u_c Im v_c) and (sum_c Re u_c Im v_c, sum_c Im u_c Re v_c), from number c
// on, as many as vectors of V hold; c moves on.
template <int V, class T>
LS_INLINE void add_dots(const T* LS_RESTRICT u, const T* LS_RESTRICT v, int64_t& c, int64_t n,
                        typename Reals<T, 2>::vector& s, typename Reals<T, 2>::vector& t) {
  using R = Reals<T, V>;
  if (c + V > n) return;
  typename R::vector sv{}, tv{};
  for (; c + V <= n; c += V) {
    const auto uc = R::load(u + c), vc = R::load(v + c);
    sv += uc * vc;
    tv += uc * R::swapped(vc);
  }
  s += R::total(sv), t += R::total(tv);
}

// `conjugate`: 0 nothing, 1 u, 2 v.
template <class T, class I>
void complex_sddmm(const I* ptr, const I* idx, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const T* u,
                   const T* v, int64_t k, T* out, bool accumulate, int64_t conjugate) {
  using R = Reals<T, 2>;
  const T of_u = conjugate == 1 ? -1 : 1, of_v = conjugate == 2 ? -1 : 1;
  for (int64_t i = blocks.table[2 * b0]; i < blocks.table[2 * b1]; ++i) {
    if (k == 1) {
      const T re = u[2 * i], im = of_u * u[2 * i + 1];
      for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
        const auto vj = R::load(v + 2 * static_cast<int64_t>(idx[p])) * R::repeated(1, of_v);
        prefetch<true>(out + 2 * p);
        R::put(out + 2 * p, R::with_i(re * vj, im * vj, 1), accumulate);
      }
      continue;
    }
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
      const T *ui = u + i * 2 * k, *vj = v + static_cast<int64_t>(idx[p]) * 2 * k;
      typename R::vector s{}, t{};
      int64_t c = 0;
      add_dots<kLanes<T>>(ui, vj, c, 2 * k, s, t);
      add_dots<2>(ui, vj, c, 2 * k, s, t);
      typename R::vector dot{};
      dot[0] = s[0] - of_u * of_v * s[1], dot[1] = of_v * t[0] + of_u * t[1];
      R::put(out + 2 * p, dot, accumulate);
    }
  }
}

// Sums over the rows of n x k complex vectors, a column each, nothing conjugated, and combinations of such
// vectors: vectors.h for pairs.

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
