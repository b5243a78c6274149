// Complete factorization, L L^T or L U, and its derivatives, to any order: the maps of kernels/incomplete.h,
// of the same equations, where the pattern has all fill. Then no plan of the products is necessary: those of
// column j are the products of row j with what the columns that it names have from row j on,
//     F_ij = sum over k <= j of l_ik v_jk, i > j,      V = L, or U^T (and sum of v_ik l_jk, i >= j),
// column after column (left-looking). Columns of a supernode have one pattern there: their sum is dense, and
// is added to column j at once (Ng, Peyton, "Block sparse Cholesky algorithms on advanced uniprocessor
// computers", SIAM J. Sci. Comput. 14, 1993).
//
// The adjoint for g_jj = 2 / l_jj, the derivative of log det(L L^T), is Takahashi's recurrence: it gives the
// entries of the inverse.
#pragma once

#include "kernels/elimination.h"
#include "kernels/incomplete.h"
#include "kernels/lanes.h"

namespace learnsolve::LEARNSOLVE_ISA {

template <bool LU, class T, class I>
struct CompleteFactor {
  const CompleteFill<I>& F;
  const int64_t nnz = F.row_ptr[F.n];
  T* const columns;                                                // of three operands; behind them four rows
  T *const lower = columns + 3 * nnz, *const upper = lower + F.n;  // of column j, at each of its rows
  T *const sum = upper + F.n, *const upper_sum = sum + F.n;

  CompleteFactor(const CompleteFill<I>& fill, T* work) : F(fill), columns(work) {}

  // L by columns, and V, which is by columns where it stands; the same for L L^T.
  struct Operand {
    const T *l, *v;
  };
  struct Gradient {
    T *l, *v;
  };

  // Places by columns of the entries of L and U in A's values, which are by rows of both: f(place, q, in L).
  template <class G>
  LS_INLINE void values(const G& f) const {
    if constexpr (!LU) {
      for (int64_t p = 0; p < nnz; ++p) f(p, F.at[p], true);
    } else {
      for (int64_t j = 0; j < F.n; ++j) {
        const int64_t first = F.ptr[j] - j, behind = F.row_ptr[j + 1] - j - 1;
        for (int64_t p = F.row_ptr[j]; p + 1 < F.row_ptr[j + 1]; ++p) f(p + first, F.at[p], true);
        for (int64_t q = F.ptr[j]; q < F.ptr[j + 1]; ++q) f(q + behind, q, false);
      }
    }
  }
  void read_values(const T* a, T* l, T* v) const {
    values([&](int64_t place, int64_t q, bool in_l) LS_LAMBDA { (in_l ? l : v)[q] = a[place]; });
    if constexpr (LU)
      for (int64_t j = 0; j < F.n; ++j) l[F.ptr[j]] = 0;
  }
  void write_values(const T* l, const T* v, T* a) const {
    values([&](int64_t place, int64_t q, bool in_l) LS_LAMBDA { a[place] = (in_l ? l : v)[q]; });
  }
  const T* read_factor(const T* f, T* l) const {  // returns V
    for (int64_t p = 0; p < nnz; ++p) l[F.at[p]] = f[p];
    return LU ? f + nnz : l;
  }
  void write_factor(const T* l, T* f) const {
    for (int64_t p = 0; p < nnz; ++p) f[p] = l[F.at[p]];
  }

  // f(places of row j's entries in a group of columns, how many, rows of their tails, how many)
  template <class G>
  LS_INLINE void groups(int64_t j, const G& f) const {
    for (int64_t p = F.row_ptr[j], count; p + 1 < F.row_ptr[j + 1]; p += count) {
      const int64_t k = F.col[p], end = F.next[k];
      count = (end < j ? end : j) - k;
      f(F.at + p, count, F.row + F.at[p], F.ptr[k + 1] - F.at[p]);
    }
  }

  // s_i += sum over k of x_jk y_ik
  LS_INLINE static void add_products(const I* at, int64_t count, int64_t m, const T* x, const T* y, T* s) {
    int64_t c = 0;
    for (; c + 4 <= count; c += 4) {
      const int64_t q0 = at[c], q1 = at[c + 1], q2 = at[c + 2], q3 = at[c + 3];
      const T x0 = x[q0], x1 = x[q1], x2 = x[q2], x3 = x[q3];
      const T *LS_RESTRICT y0 = y + q0, *LS_RESTRICT y1 = y + q1, *LS_RESTRICT y2 = y + q2,
                           *LS_RESTRICT y3 = y + q3;
#pragma GCC ivdep
      for (int64_t r = 0; r < m; ++r) s[r] += (x0 * y0[r] + x1 * y1[r]) + (x2 * y2[r] + x3 * y3[r]);
    }
    for (; c < count; ++c) {
      const T x0 = x[at[c]];
      const T* LS_RESTRICT y0 = y + at[c];
#pragma GCC ivdep
      for (int64_t r = 0; r < m; ++r) s[r] += x0 * y0[r];
    }
  }

  // Its transpose: gy_ik += s_i x_jk, gx_jk += sum over i of s_i y_ik; gx may be gy.
  LS_INLINE static void add_gradients(const I* at, int64_t count, int64_t m, const T* s, const T* x,
                                      const T* y, T* gx, T* gy) {
    constexpr int64_t V = kLanes<T>;
    for (int64_t c = 0; c < count; ++c) {
      const int64_t q = at[c];
      const T xk = x[q];
      const T* yk = y + q;
      T* gk = gy + q;
      typename Lanes<T>::vector lanes = {}, more = {};
      int64_t r = 0;
      for (; r + 2 * V <= m; r += 2 * V) {
        const auto s0 = load(s + r), s1 = load(s + r + V);
        lanes += s0 * load(yk + r), more += s1 * load(yk + r + V);
        store(gk + r, load(gk + r) + s0 * xk), store(gk + r + V, load(gk + r + V) + s1 * xk);
      }
      T dot = sum_lanes(lanes + more);
      for (; r < m; ++r) {
        dot += s[r] * yk[r];
        gk[r] += s[r] * xk;
      }
      gx[q] += dot;
    }
  }

  // lower += sign times the products of row j, of x and y if they are two, else of x with itself.
  LS_INLINE void gather(int64_t j, T sign, Operand x, const Operand* y = nullptr) const {
    groups(j, [&](const I* at, int64_t count, const I* rows, int64_t m) LS_LAMBDA {
      const auto one = [&](const T* row, const T* column, const T* row2, const T* column2, T* out) LS_LAMBDA {
        for (int64_t r = 0; r < m; ++r) sum[r] = 0;
        add_products(at, count, m, row, column, sum);
        if (row2) add_products(at, count, m, row2, column2, sum);
        for (int64_t r = 0; r < m; ++r) out[rows[r]] += sign * sum[r];
      };
      one(x.v, y ? y->l : x.l, y ? y->v : nullptr, x.l, lower);
      if constexpr (LU) one(x.l, y ? y->v : x.v, y ? y->l : nullptr, x.v, upper);
    });
  }
  LS_INLINE void spread(int64_t j, Operand x, Gradient g) const {
    groups(j, [&](const I* at, int64_t count, const I* rows, int64_t m) LS_LAMBDA {
      for (int64_t r = 0; r < m; ++r) {
        sum[r] = lower[rows[r]];
        if constexpr (LU) upper_sum[r] = upper[rows[r]];
      }
      add_gradients(at, count, m, sum, x.v, x.l, g.v, g.l);
      if constexpr (LU) add_gradients(at, count, m, upper_sum, x.l, x.v, g.l, g.v);
    });
  }

  // The column of f, or -1.
  int64_t factor(const T* a, T* f, T* pivot) const {
    T *const l = columns, *const v = LU ? f + nnz : l;
    read_values(a, l, v);
    for (int64_t j = 0; j < F.n; ++j) {
      const int64_t begin = F.ptr[j], end = F.ptr[j + 1];
      for (int64_t q = begin; q < end; ++q) {
        lower[F.row[q]] = l[q];
        if constexpr (LU) upper[F.row[q]] = v[q];
      }
      gather(j, -1, {l, v});
      T d = (LU ? upper : lower)[j];
      if (!((LU ? d != 0 : d > 0) && d - d == 0)) return *pivot = d, j;
      if constexpr (!LU) d = square_root(d);
      for (int64_t q = begin + 1; q < end; ++q) {
        l[q] = lower[F.row[q]] / d;
        if constexpr (LU) v[q] = upper[F.row[q]];
      }
      l[begin] = LU ? T(1) : d;
      if constexpr (LU) v[begin] = d;
    }
    write_factor(l, f);
    return -1;
  }

  // z = J(f)^-1 v
  void tangent(const T* f, const T* a, T* z) const {
    T *const l = columns, *const zl = columns + nnz, *const zv = LU ? z + nnz : zl;
    const Operand x{l, read_factor(f, l)}, y{zl, zv};
    read_values(a, zl, zv);
    for (int64_t j = 0; j < F.n; ++j) {
      const int64_t begin = F.ptr[j], end = F.ptr[j + 1];
      for (int64_t q = begin; q < end; ++q) {
        lower[F.row[q]] = zl[q];
        if constexpr (LU) upper[F.row[q]] = zv[q];
      }
      gather(j, -1, x, &y);
      const T scale = T(1) / x.v[begin], d = LU ? upper[j] : lower[j] * scale / 2;
      for (int64_t q = begin + 1; q < end; ++q) {
        zl[q] = (lower[F.row[q]] - l[q] * d) * scale;
        if constexpr (LU) zv[q] = upper[F.row[q]];
      }
      zv[begin] = d;
      if constexpr (LU) zl[begin] = 0;
    }
    write_factor(zl, z);
  }

  // w = J(f)^-T g
  void adjoint(const T* f, const T* g, T* w) const {
    T *const l = columns, *const gl = columns + nnz, *const gv = LU ? gl + nnz : gl;
    const Operand x{l, read_factor(f, l)};
    const T* given = read_factor(g, gl);
    if constexpr (LU)
      for (int64_t q = 0; q < nnz; ++q) gv[q] = given[q];
    for (int64_t j = F.n - 1; j >= 0; --j) {
      const int64_t begin = F.ptr[j], end = F.ptr[j + 1];
      const T scale = T(1) / x.v[begin];
      T dot = 0;
      for (int64_t q = begin + 1; q < end; ++q) {
        gl[q] *= scale;
        dot += gl[q] * l[q];
        lower[F.row[q]] = -gl[q];
      }
      gv[begin] -= dot;
      if constexpr (LU) {
        gl[begin] = lower[j] = 0;
        for (int64_t q = begin; q < end; ++q) upper[F.row[q]] = -gv[q];
      } else {
        gl[begin] *= scale / 2;
        lower[j] = -gl[begin];
      }
      spread(j, x, {gl, gv});
    }
    write_values(gl, gv, w);
  }

  // b = B(x, z)
  void product(const T* x_, const T* z_, T* b) const {
    T *const xl = columns, *const zl = columns + nnz, *const bl = columns + 2 * nnz;
    const Operand x{xl, read_factor(x_, xl)}, z{zl, read_factor(z_, zl)};
    for (int64_t j = 0; j < F.n; ++j) {
      const int64_t begin = F.ptr[j], end = F.ptr[j + 1], behind = F.row_ptr[j + 1] - j - 1;
      for (int64_t q = begin; q < end; ++q) {
        lower[F.row[q]] = xl[q] * z.v[begin] + zl[q] * x.v[begin];
        if constexpr (LU) upper[F.row[q]] = 0;
      }
      gather(j, 1, x, &z);
      for (int64_t q = begin; q < end; ++q) {
        bl[q] = lower[F.row[q]];
        if constexpr (LU) b[q + behind] = upper[F.row[q]];
      }
    }
    values([&](int64_t place, int64_t q, bool in_l) LS_LAMBDA {
      if (in_l) b[place] = bl[q];
    });
  }

  // c = C(x, w)
  void product_adjoint(const T* x_, const T* w, T* c) const {
    T *const xl = columns, *const wl = columns + nnz, *const cl = columns + 2 * nnz;
    T* const cv = LU ? c + nnz : cl;
    const Operand x{xl, read_factor(x_, xl)};
    for (int64_t p = 0; p < nnz; ++p) cl[p] = cv[p] = 0;
    values([&](int64_t place, int64_t q, bool in_l) LS_LAMBDA {
      if (in_l) wl[q] = w[place];
    });
    for (int64_t j = 0; j < F.n; ++j) {
      const int64_t begin = F.ptr[j], end = F.ptr[j + 1], behind = F.row_ptr[j + 1] - j - 1;
      if constexpr (LU) wl[begin] = 0;
      T dot = 0;
      for (int64_t q = begin; q < end; ++q) {
        lower[F.row[q]] = wl[q];
        dot += wl[q] * xl[q];
        if constexpr (LU) upper[F.row[q]] = w[q + behind];
      }
      spread(j, x, {cl, cv});
      for (int64_t q = begin; q < end; ++q) cl[q] += wl[q] * x.v[begin];
      cv[begin] += dot;
    }
    write_factor(cl, c);
  }
};

}  // namespace learnsolve::LEARNSOLVE_ISA
