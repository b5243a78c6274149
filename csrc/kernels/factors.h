// Incomplete factorization on a pattern and its derivatives, to any order.
//
// The factors f, entry by entry (L and, for LU, U behind it), are defined by one quadratic equation for each
// entry (i, j) of A that is read,
//     F_e(f) = sum over the products of e of f_p f_q + own_e(f) = a_e,
// where own_e is what holds the unknown itself: l_ij d_j below the diagonal (d_j the pivot of column j),
// l_jj^2 on that of L L^T, u_ij on and above that of L U. Elimination solves them one after another.
//
// With B(x, z) the symmetric bilinear form of F's quadratic part, the derivative of F is J(f) z = E z + B(f,
// z) (E: the entries of U), and all derivatives are made of
//     tangent   z = J(f)^-1 v      of the factors, for that of A's values: substitution, forward
//     adjoint   w = J(f)^-T g      gradient for A's values, for that of the factors: the same, backward
//     product   B(x, z)            product^T: C(x, w) with <C(x, w), z> = <w, B(x, z)>
// (learnsolve/ops/incomplete_factors.py). The adjoint is the reverse sweep of the elimination of: Murray,
// "Differentiation of the Cholesky decomposition", arXiv 1602.07527, restricted to the pattern.
#pragma once

#include "kernels/vectors.h"
#include "kernels/views.h"

namespace learnsolve::LEARNSOLVE_ISA {

inline float square_root(float x) { return __builtin_sqrtf(x); }
inline double square_root(double x) { return __builtin_sqrt(x); }

// f for A's values a. Returns the step that met a pivot that is not positive (Cholesky), zero (LU) or not
// finite, and leaves it in f; -1 if all are good. The entries `units` of f are the caller's.
template <class T, class I>
int64_t incomplete_factor(const Elimination<I>& E, const T* LS_RESTRICT a, T* LS_RESTRICT f) {
  for (int64_t t = 0; t < E.steps; ++t) {
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = a[E.source[t]];
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) s -= f[E.pairs[2 * u]] * f[E.pairs[2 * u + 1]];
    if (d == e) {
      f[e] = s;
      if (!((E.cholesky ? s > 0 : s != 0) && s - s == 0)) return t;
      if (E.cholesky) f[e] = square_root(s);
    } else {
      f[e] = d < 0 ? s : s / f[d];
    }
  }
  return -1;
}

// z = J(f)^-1 v
template <class T, class I>
void incomplete_tangent(const Elimination<I>& E, const T* LS_RESTRICT f, const T* LS_RESTRICT v,
                        T* LS_RESTRICT z) {
  for (int64_t t = 0; t < E.steps; ++t) {
    const int64_t e = E.order[t], d = E.pivot[t];
    // Known before s: a step waits for a product instead of a quotient (L L^T of a 1000 x 1000 grid, float64:
    // 20 ms instead of 35).
    const T scale = d < 0 || (d == e && !E.cholesky) ? T(1) : T(1) / (d == e ? 2 * f[e] : f[d]);
    T s = v[E.source[t]];
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) {
      const int64_t p = E.pairs[2 * u], q = E.pairs[2 * u + 1];
      s -= f[p] * z[q] + z[p] * f[q];
    }
    if (d >= 0 && d != e) s -= f[e] * z[d];
    z[e] = s * scale;
  }
}

// w = J(f)^-T g, in the places of A's values. g is overwritten.
template <class T, class I>
void incomplete_adjoint(const Elimination<I>& E, const T* LS_RESTRICT f, T* LS_RESTRICT g, T* LS_RESTRICT w) {
  for (int64_t t = E.steps - 1; t >= 0; --t) {
    const int64_t e = E.order[t], d = E.pivot[t];
    // As in the tangent: 25 ms instead of 41.
    const T scale = d < 0 || (d == e && !E.cholesky) ? T(1) : T(1) / (d == e ? 2 * f[e] : f[d]);
    const T s = g[e] * scale;
    if (d >= 0 && d != e) g[d] -= s * f[e];
    w[E.source[t]] = s;
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) {
      const int64_t p = E.pairs[2 * u], q = E.pairs[2 * u + 1];
      if (p == q) {  // a square: one write less to wait for
        g[p] -= 2 * s * f[p];
      } else {
        g[p] -= s * f[q];
        g[q] -= s * f[p];
      }
    }
  }
}

// b = B(x, z), in the places of A's values.
template <class T, class I>
void incomplete_product(const Elimination<I>& E, const T* LS_RESTRICT x, const T* LS_RESTRICT z,
                        T* LS_RESTRICT b) {
  for (int64_t t = 0; t < E.steps; ++t) {
    const int64_t e = E.order[t], d = E.pivot[t];
    T s = 0;
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) {
      const int64_t p = E.pairs[2 * u], q = E.pairs[2 * u + 1];
      s += x[p] * z[q] + z[p] * x[q];
    }
    if (d == e) {
      if (E.cholesky) s += 2 * x[e] * z[e];
    } else if (d >= 0) {
      s += x[e] * z[d] + z[e] * x[d];
    }
    b[E.source[t]] = s;
  }
}

// c += C(x, w), w in the places of A's values.
template <class T, class I>
void incomplete_product_adjoint(const Elimination<I>& E, const T* LS_RESTRICT x, const T* LS_RESTRICT w,
                                T* LS_RESTRICT c) {
  for (int64_t t = 0; t < E.steps; ++t) {
    const int64_t e = E.order[t], d = E.pivot[t];
    const T s = w[E.source[t]];
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) {
      const int64_t p = E.pairs[2 * u], q = E.pairs[2 * u + 1];
      c[p] += s * x[q];
      c[q] += s * x[p];
    }
    if (d == e) {
      if (E.cholesky) c[e] += 2 * s * x[e];
    } else if (d >= 0) {
      c[e] += s * x[d];
      c[d] += s * x[e];
    }
  }
}

// Complete factorization, L L^T or L U, and its derivatives, to any order: the maps above, of the same
// equations, where the pattern has all fill. Then no plan of the products is necessary: those of
// column j are the products of row j with what the columns that it names have from row j on,
//     F_ij = sum over k <= j of l_ik v_jk, i > j,      V = L, or U^T (and sum of v_ik l_jk, i >= j),
// column after column (left-looking). Columns of a supernode have one pattern there: their sum is dense, and
// is added to column j at once (Ng, Peyton, "Block sparse Cholesky algorithms on advanced uniprocessor
// computers", SIAM J. Sci. Comput. 14, 1993).
//
// The adjoint for g_jj = 2 / l_jj, the derivative of log det(L L^T), is Takahashi's recurrence: it gives the
// entries of the inverse.

template <bool LU, class T, class I>
struct CompleteFactor {
  static constexpr int64_t W = 8;  // columns of a panel

  const CompleteFill<I>& F;
  const int64_t nnz = F.row_ptr[F.n];
  // The panel, at each of its rows one number for each column; and sums, or copies, of a group's tails.
  T *const lower, *const upper = lower + W * F.n;
  T *const sum = upper + W * F.n, *const upper_sum = sum + W * F.n;
  T* const columns =
      upper_sum + W * F.n;  // of the operands: one of a factor, two or, LU's, three of an adjoint

  CompleteFactor(const CompleteFill<I>& fill, T* work) : F(fill), lower(work) {}

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

  // Columns that have one pattern below them: from row j on, `m` rows, for `count` columns, whose entries of
  // row j are in the places `at`. The first of them are rows of the panel: `targets` of them.
  struct Group {
    const I* at;
    int64_t count;
    const I* rows;
    int64_t m, targets;
  };

  // Those of columns before the panel j0 <= j < j1, each once: f(group)
  template <class G>
  LS_INLINE void groups(int64_t j0, int64_t j1, const G& f) const {
    for (int64_t j = j0; j < j1; ++j)
      for (int64_t p = F.row_ptr[j], count; p + 1 < F.row_ptr[j + 1] && F.col[p] < j0; p += count) {
        const int64_t k = F.col[p], q = F.at[p], end = F.next[k], m = F.ptr[k + 1] - q;
        count = (end < j0 ? end : j0) - k;
        if (F.row[q - 1] >= j0) continue;  // with a row of the panel before
        int64_t targets = 1;
        while (targets < m && F.row[q + targets] < j1) ++targets;
        f(Group{F.at + p, count, F.row + q, m, targets});
      }
  }
  // That of the panel's own columns before j.
  Group before(int64_t j, int64_t j0) const {
    return {F.at + F.row_ptr[j + 1] - 1 - (j - j0), j - j0, F.row + F.ptr[j], F.ptr[j + 1] - F.ptr[j], 1};
  }

  // s_ij += sum over k of x_jk y_ik for N rows j, the first in place `x`, and C columns k from number c on;
  // s_ij in place m j + i.
  template <int N, int C>
  LS_INLINE static void add_columns(const Group& G, int64_t c, const T* x, const T* y, T* s) {
    constexpr int64_t V = kLanes<T>;
    T xk[C][N];
    const T* yk[C];
#pragma GCC unroll 8
    for (int k = 0; k < C; ++k) {
      yk[k] = y + G.at[c + k];
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) xk[k][j] = x[G.at[c + k] + j];
    }
    int64_t r = 0;
    for (; r + V <= G.m; r += V) {
      typename Lanes<T>::vector yr[C];
#pragma GCC unroll 8
      for (int k = 0; k < C; ++k) yr[k] = load(yk[k] + r);
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) {
        auto a = load(s + j * G.m + r);
#pragma GCC unroll 8
        for (int k = 0; k < C; ++k) a += xk[k][j] * yr[k];
        store(s + j * G.m + r, a);
      }
    }
    for (; r < G.m; ++r)
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j)
#pragma GCC unroll 8
        for (int k = 0; k < C; ++k) s[j * G.m + r] += xk[k][j] * yk[k][r];
  }
  template <int N>
  LS_INLINE static void add_products(const Group& G, const T* x, const T* y, T* s) {
    constexpr int C = N > 2 ? 2 : 4;
    int64_t c = 0;
    for (; c + C <= G.count; c += C) add_columns<N, C>(G, c, x, y, s);
    for (; c < G.count; ++c) add_columns<N, 1>(G, c, x, y, s);
  }

  // The transpose: gy_ik += s_ij x_jk, gx_jk += sum over i of s_ij y_ik; gx may be gy.
  template <int N>
  LS_INLINE static void add_gradients(const Group& G, int64_t t, const T* s, const T* x, const T* y, T* gx,
                                      T* gy) {
    constexpr int64_t V = kLanes<T>;
    for (int64_t c = 0; c < G.count; ++c) {
      const int64_t q = G.at[c];
      const T* yk = y + q;
      T* gk = gy + q;
      T xk[N], dot[N];
      typename Lanes<T>::vector lanes[N] = {};
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) xk[i] = x[q + t + i];
      int64_t r = 0;
      for (; r + V <= G.m; r += V) {
        const auto yr = load(yk + r);
        auto g = load(gk + r);
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
          const auto si = load(s + i * G.m + r);
          lanes[i] += si * yr, g += si * xk[i];
        }
        store(gk + r, g);
      }
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) dot[i] = sum_lanes(lanes[i]);
      for (; r < G.m; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) dot[i] += s[i * G.m + r] * yk[r], gk[r] += s[i * G.m + r] * xk[i];
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) gx[q + t + i] += dot[i];
    }
  }

  // f.template operator()<N>(t) for the targets in groups of N, t the first.
  template <class G>
  LS_INLINE static void by_targets(int64_t targets, const G& f) {
    int64_t t = 0;
    if (targets == 8) return f.template operator()<8>(t);
    if (targets & 4) f.template operator()<4>(t), t += 4;
    if (targets & 2) f.template operator()<2>(t), t += 2;
    if (targets & 1) f.template operator()<1>(t);
  }

  // panel += sign times the products of its rows, of x and y if they are two, else of x with itself.
  LS_FUNCTION void gather(const Group& G, int64_t j0, T sign, Operand x, const Operand* y) const {
    const auto one = [&](const T* row, const T* column, const T* row2, const T* column2, T* panel) LS_LAMBDA {
      for (int64_t r = 0; r < G.targets * G.m; ++r) sum[r] = 0;
      by_targets(G.targets, [&]<int N>(int64_t t) LS_LAMBDA {
        add_products<N>(G, row + t, column, sum + t * G.m);
        if (row2) add_products<N>(G, row2 + t, column2, sum + t * G.m);
      });
      for (int64_t t = 0; t < G.targets; ++t) {
        T* target = panel + (G.rows[t] - j0);
        for (int64_t r = 0; r < G.m; ++r) target[W * G.rows[r]] += sign * sum[t * G.m + r];
      }
    };
    one(x.v, y ? y->l : x.l, y ? y->v : nullptr, x.l, lower);
    if constexpr (LU) one(x.l, y ? y->v : x.v, y ? y->l : nullptr, x.v, upper);
  }
  LS_FUNCTION void spread(const Group& G, int64_t j0, Operand x, Gradient g) const {
    const auto one = [&](const T* panel, T* s, const T* row, const T* column, T* g_row, T* g_column)
                         LS_LAMBDA {
                           for (int64_t t = 0; t < G.targets; ++t)
                             for (int64_t r = 0; r < G.m; ++r)
                               s[t * G.m + r] = panel[W * G.rows[r] + G.rows[t] - j0];
                           by_targets(G.targets, [&]<int N>(int64_t t) LS_LAMBDA {
                             add_gradients<N>(G, t, s + t * G.m, row, column, g_row, g_column);
                           });
                         };
    one(lower, sum, x.v, x.l, g.v, g.l);
    if constexpr (LU) one(upper, upper_sum, x.l, x.v, g.l, g.v);
  }

  LS_INLINE void clear(int64_t j0) const {
    for (int64_t q = F.ptr[j0]; q < F.ptr[j0 + 1]; ++q)
      for (int64_t t = 0; t < W; ++t) {
        lower[W * F.row[q] + t] = 0;
        if constexpr (LU) upper[W * F.row[q] + t] = 0;
      }
  }
  // Column j, into its columns of the panel.
  LS_INLINE void spread_column(Operand from, int64_t j, T* lj, T* uj) const {
    for (int64_t q = F.ptr[j]; q < F.ptr[j + 1]; ++q) {
      lj[W * F.row[q]] = from.l[q];
      if constexpr (LU) uj[W * F.row[q]] = from.v[q];
    }
  }
  // begin(j, its columns of the panel), sums, end(j, the same): column after column. Stops at the column
  // where `end` says so, and returns it, else -1.
  template <class Begin, class End>
  LS_INLINE int64_t forward(T sign, Operand x, const Operand* y, const Begin& begin, const End& end) const {
    for (int64_t j0 = 0, j1; j0 < F.n; j0 = j1) {
      j1 = j0 + W < F.next[j0] ? j0 + W : F.next[j0];
      clear(j0);
      for (int64_t j = j0; j < j1; ++j) begin(j, lower + (j - j0), upper + (j - j0));
      groups(j0, j1, [&](const Group& G) LS_LAMBDA { gather(G, j0, sign, x, y); });
      for (int64_t j = j0; j < j1; ++j) {
        if (j > j0) gather(before(j, j0), j0, sign, x, y);
        if (end(j, lower + (j - j0), upper + (j - j0))) return j;
      }
    }
    return -1;
  }
  // begin(j, its columns of the panel), then what it gives to the columns before: from the last to the first.
  template <class Begin>
  LS_INLINE void backward(Operand x, Gradient g, const Begin& begin) const {
    for (int64_t j1 = F.n, j0; j1 > 0; j1 = j0) {
      for (j0 = j1 - 1; j0 > 0 && j1 - j0 < W && F.next[j0 - 1] == F.next[j0];) --j0;
      clear(j0);
      for (int64_t j = j1 - 1; j >= j0; --j) {
        begin(j, lower + (j - j0), upper + (j - j0));
        if (j > j0) spread(before(j, j0), j0, x, g);
      }
      groups(j0, j1, [&](const Group& G) LS_LAMBDA { spread(G, j0, x, g); });
    }
  }

  // The column whose pivot breaks down, or -1.
  int64_t factor(const T* a, T* f, T* pivot) const {
    T *const l = columns, *const v = LU ? f + nnz : l;
    read_values(a, l, v);
    const int64_t failed = forward(
        -1, {l, v}, nullptr, [&](int64_t j, T* lj, T* uj) LS_LAMBDA { spread_column({l, v}, j, lj, uj); },
        [&](int64_t j, const T* lj, const T* uj) LS_LAMBDA {
          const int64_t begin = F.ptr[j];
          T d = (LU ? uj : lj)[W * j];
          if (!((LU ? d != 0 : d > 0) && d - d == 0)) return *pivot = d, true;
          if constexpr (!LU) d = square_root(d);
          for (int64_t q = begin + 1; q < F.ptr[j + 1]; ++q) {
            l[q] = lj[W * F.row[q]] / d;
            if constexpr (LU) v[q] = uj[W * F.row[q]];
          }
          l[begin] = LU ? T(1) : d;
          if constexpr (LU) v[begin] = d;
          return false;
        });
    write_factor(l, f);
    return failed;
  }

  // z = J(f)^-1 v
  void tangent(const T* f, const T* a, T* z) const {
    T *const l = columns, *const zl = columns + nnz, *const zv = LU ? z + nnz : zl;
    const Operand x{l, read_factor(f, l)}, y{zl, zv};
    read_values(a, zl, zv);
    forward(
        -1, x, &y, [&](int64_t j, T* lj, T* uj) LS_LAMBDA { spread_column({zl, zv}, j, lj, uj); },
        [&](int64_t j, const T* lj, const T* uj) LS_LAMBDA {
          const int64_t begin = F.ptr[j];
          const T scale = T(1) / x.v[begin], d = LU ? uj[W * j] : lj[W * j] * scale / 2;
          for (int64_t q = begin + 1; q < F.ptr[j + 1]; ++q) {
            zl[q] = (lj[W * F.row[q]] - l[q] * d) * scale;
            if constexpr (LU) zv[q] = uj[W * F.row[q]];
          }
          zv[begin] = d;
          if constexpr (LU) zl[begin] = 0;
          return false;
        });
    write_factor(zl, z);
  }

  // w = J(f)^-T g; without g, for the derivative of log |det A|.
  void adjoint(const T* f, const T* g, T* w) const {
    T *const l = columns, *const gl = columns + nnz, *const gv = LU ? gl + nnz : gl;
    const Operand x{l, read_factor(f, l)};
    if (g == nullptr) {
      for (int64_t q = 0; q < nnz; ++q) gl[q] = gv[q] = 0;
      for (int64_t j = 0; j < F.n; ++j) gv[F.ptr[j]] = (LU ? T(1) : T(2)) / x.v[F.ptr[j]];
    } else {
      const T* given = read_factor(g, gl);
      if constexpr (LU)
        for (int64_t q = 0; q < nnz; ++q) gv[q] = given[q];
    }
    backward(x, {gl, gv}, [&](int64_t j, T* lj, T* uj) LS_LAMBDA {
      const int64_t begin = F.ptr[j], end = F.ptr[j + 1];
      const T scale = T(1) / x.v[begin];
      T dot = 0;
      for (int64_t q = begin + 1; q < end; ++q) {
        gl[q] *= scale;
        dot += gl[q] * l[q];
        lj[W * F.row[q]] = -gl[q];
      }
      gv[begin] -= dot;
      if constexpr (LU) {
        gl[begin] = 0;
        for (int64_t q = begin; q < end; ++q) uj[W * F.row[q]] = -gv[q];
      } else {
        gl[begin] *= scale / 2;
        lj[W * j] = -gl[begin];
      }
    });
    write_values(gl, gv, w);
  }

  // b = B(x, z)
  void product(const T* x_, const T* z_, T* b) const {
    T *const xl = columns, *const zl = columns + nnz, *const bl = columns + 2 * nnz;
    const Operand x{xl, read_factor(x_, xl)}, z{zl, read_factor(z_, zl)};
    forward(
        1, x, &z,
        [&](int64_t j, T* lj, T*) LS_LAMBDA {
          const int64_t begin = F.ptr[j];
          for (int64_t q = begin; q < F.ptr[j + 1]; ++q)
            lj[W * F.row[q]] = xl[q] * z.v[begin] + zl[q] * x.v[begin];
        },
        [&](int64_t j, const T* lj, const T* uj) LS_LAMBDA {
          const int64_t behind = F.row_ptr[j + 1] - j - 1;  // as in `values`
          for (int64_t q = F.ptr[j]; q < F.ptr[j + 1]; ++q) {
            bl[q] = lj[W * F.row[q]];
            if constexpr (LU) b[q + behind] = uj[W * F.row[q]];
          }
          return false;
        });
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
    backward(x, {cl, cv}, [&](int64_t j, T* lj, T* uj) LS_LAMBDA {
      const int64_t begin = F.ptr[j], behind = F.row_ptr[j + 1] - j - 1;
      if constexpr (LU) wl[begin] = 0;
      T dot = 0;
      for (int64_t q = begin; q < F.ptr[j + 1]; ++q) {
        lj[W * F.row[q]] = wl[q];
        dot += wl[q] * xl[q];
        cl[q] += wl[q] * x.v[begin];
        if constexpr (LU) uj[W * F.row[q]] = w[q + behind];
      }
      cv[begin] += dot;
    });
    write_factor(cl, c);
  }
};

}  // namespace learnsolve::LEARNSOLVE_ISA
