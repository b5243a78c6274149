// Products of complex matrices: y_i = sum_p a_p x_{j(p)} and out_p = sum_c u_ic v_jc, nothing conjugated. Each
// number lies in memory as a pair of real ones, so pointers are real, and a row of k numbers has 2 k.
//
// A product is s + i t with s = sum Re(a) x and t = sum Im(a) x: the vectors of x are not shuffled, only the
// sums, once. Its bits are those of one column alone, whatever the number of columns.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/lanes.h"

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
  // s + i t
  static LS_INLINE vector with_i(vector s, vector t) {
    vector sign;
#pragma GCC unroll 8
    for (int e = 0; e < V; ++e) sign[e] = e % 2 ? 1 : -1;
    return s + sign * swapped(t);
  }
};

// N vectors of V numbers of row i, n real numbers long, from number j on.
template <int N, int V, class T, class I>
LS_INLINE void complex_tile(const CsrView<T, I>& A, int64_t i, int64_t j, const T* LS_RESTRICT x, int64_t n,
                            T* LS_RESTRICT y, bool accumulate) {
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
  for (int c = 0; c < N; ++c) R::put(y + i * n + j + c * V, R::with_i(s[c], t[c]), accumulate);
}

template <class T, class I>
LS_FUNCTION void complex_rows(CsrView<T, I> A, int64_t r0, int64_t r1, const T* x, int64_t n, T* y,
                              bool accumulate) {
  constexpr int V = kLanes<T>;
  for (int64_t i = r0; i < r1; ++i) {
    int64_t j = 0;
    for (; j + 4 * V <= n; j += 4 * V) complex_tile<4, V>(A, i, j, x, n, y, accumulate);
    if (j + 2 * V <= n) complex_tile<2, V>(A, i, j, x, n, y, accumulate), j += 2 * V;
    if (j + V <= n) complex_tile<1, V>(A, i, j, x, n, y, accumulate), j += V;
    for (; j < n; j += 2) complex_tile<1, 2>(A, i, j, x, n, y, accumulate);
  }
}

// One column, a uniform block of n rows of L entries: entry l of the first row is at first[l] and meets x at
// columns[l], as in spmm.h.
template <int L, class T>
LS_FUNCTION void complex_uniform_rows(const T* const* first, const T* const* columns, bool apart, int64_t n,
                                      T* LS_RESTRICT y, bool accumulate) {
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
    R::put(y + i, R::with_i(s, t), accumulate);
  }
}

template <class T, class I>
LS_INLINE void complex_vector_block(const CsrView<T, I>& A, int64_t r0, int64_t r1, int64_t length, const T* x,
                                    T* y, bool accumulate) {
  constexpr int kLongest = 9;
  const T *a[kLongest], *xs[kLongest];
  for (int64_t l = 0, p = A.ptr[r0]; l < length && l < kLongest; ++l, ++p) {
    a[l] = A.values + 2 * (A.perm ? static_cast<int64_t>(A.perm[p]) : p);
    xs[l] = x + 2 * static_cast<int64_t>(A.idx[p]);
  }
  const int64_t n = r1 - r0;
  T* yr = y + 2 * r0;
  switch (length) {  // of grids
    case 3: return complex_uniform_rows<3>(a, xs, A.perm, n, yr, accumulate);
    case 5: return complex_uniform_rows<5>(a, xs, A.perm, n, yr, accumulate);
    case 7: return complex_uniform_rows<7>(a, xs, A.perm, n, yr, accumulate);
    case 9: return complex_uniform_rows<9>(a, xs, A.perm, n, yr, accumulate);
    default: return complex_rows(A, r0, r1, x, 2, y, accumulate);
  }
}

template <class T, class I>
void complex_spmm(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const T* x,
                  int64_t k, T* y, bool accumulate) {
  const I* table = blocks.table;
  if (k != 1) return complex_rows(A, table[2 * b0], table[2 * b1], x, 2 * k, y, accumulate);
  for (int64_t b = b0; b < b1; ++b)
    complex_vector_block(A, table[2 * b], table[2 * b + 2], table[2 * b + 1], x, y, accumulate);
}

// (sum_c Re u_c Re v_c, sum_c Im u_c Im v_c) and (sum_c Re u_c Im v_c, sum_c Im u_c Re v_c), from number c on,
// as many as vectors of V hold; c moves on.
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
#pragma GCC unroll 8
  for (int e = 0; e < V; ++e) s[e % 2] += sv[e], t[e % 2] += tv[e];
}

template <class T, class I>
void complex_sddmm(const I* ptr, const I* idx, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const T* u,
                   const T* v, int64_t k, T* out, bool accumulate) {
  using R = Reals<T, 2>;
  for (int64_t i = blocks.table[2 * b0]; i < blocks.table[2 * b1]; ++i)
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
      const T *ui = u + i * 2 * k, *vj = v + static_cast<int64_t>(idx[p]) * 2 * k;
      typename R::vector s{}, t{};
      int64_t c = 0;
      if (k > 1) add_dots<kLanes<T>>(ui, vj, c, 2 * k, s, t);
      add_dots<2>(ui, vj, c, 2 * k, s, t);
      typename R::vector dot{};
      dot[0] = s[0] - s[1], dot[1] = t[0] + t[1];
      R::put(out + 2 * p, dot, accumulate);
    }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
