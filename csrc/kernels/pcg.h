// Preconditioned conjugate gradients as three passes an iteration,
//
//     q = A p,  pi = <p, q>
//     r' = r - alpha q,  ||r'||,  rho' = <r', M r'>
//     x += alpha p,  p' = z' + beta p
//
// between which the scalars alpha = rho / pi and beta = rho' / rho are known. Those of the adjoint come
// after.
#pragma once

#include "kernels/products.h"
#include "kernels/vectors.h"
#include "kernels/views.h"

namespace learnsolve::LEARNSOLVE_ISA {

template <class T, bool Diagonal>
struct ResidualPass : PcgResidual<T> {
  static constexpr int kSums = Diagonal ? 2 : 1;
  static constexpr bool kRowSums = false;
  LS_INLINE T* sums(int s) const { return s == 0 ? this->squares : this->rho; }
  template <class W, class P>
  LS_INLINE W at(const P& place, W* sums) const {
    const W a = place.template coefficient<W>(this->alpha);
    prefetch<true>(this->out + place.o);
    const W r = get<W>(this->r + place.o) - a * get<W>(this->q + place.o);
    set<W>(this->out + place.o, r);
    const W square = r * r;
    sums[0] += square;
    if constexpr (Diagonal) sums[1] += place.template of_row<W>(this->d) * square;
    return W{};
  }
};

template <class T, class I>
void pcg_residual(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, PcgResidual<T> a, int64_t k) {
  const Pinned<T> alpha(a.alpha, k);
  if (a.d)
    run_pass<T>(blocks, b0, b1, k, ResidualPass<T, true>{a});
  else
    run_pass<T>(blocks, b0, b1, k, ResidualPass<T, false>{a});
}

template <class T, bool Diagonal, bool X>
struct UpdatePass : PcgUpdate<T> {
  static constexpr int kSums = 0;
  static constexpr bool kRowSums = false;
  LS_INLINE T* sums(int) const { return nullptr; }
  template <class W, class P>
  LS_INLINE W at(const P& place, W*) const {
    const W p = get<W>(this->p + place.o), keep = place.template coefficient<W>(this->keep);
    W z = get<W>(this->z + place.o);
    if constexpr (Diagonal) z *= place.template of_row<W>(this->d);
    if constexpr (X)
      set<W>(this->x + place.o, get<W>(this->x + place.o) + place.template coefficient<W>(this->alpha) * p);
    prefetch<true>(this->next + place.o);
    const W next = z + place.template coefficient<W>(this->beta) * p;
    set<W>(this->next + place.o, keep != W{} ? next : W{});
    return W{};
  }
};

template <class T, class I>
void pcg_update(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, PcgUpdate<T> a, int64_t k) {
  const Pinned<T> alpha(a.alpha, k), beta(a.beta, k), keep(a.keep, k);
  if (a.x) {
    if (a.d)
      run_pass<T>(blocks, b0, b1, k, UpdatePass<T, true, true>{a});
    else
      run_pass<T>(blocks, b0, b1, k, UpdatePass<T, false, true>{a});
  } else if (a.d) {
    run_pass<T>(blocks, b0, b1, k, UpdatePass<T, true, false>{a});
  } else {
    run_pass<T>(blocks, b0, b1, k, UpdatePass<T, false, false>{a});
  }
}

template <class T>
struct CombinePass : PcgCombine<T> {
  static constexpr int kSums = 0;
  static constexpr bool kRowSums = false;
  LS_INLINE T* sums(int) const { return nullptr; }
  template <class W, class P>
  LS_INLINE W at(const P& place, W*) const {
    set<W>(this->out + place.o, place.template coefficient<W>(this->a) * get<W>(this->u + place.o) +
                                    place.template coefficient<W>(this->b) * get<W>(this->w + place.o));
    return W{};
  }
};

template <class T, class I>
void pcg_combine(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, PcgCombine<T> a, int64_t k) {
  const Pinned<T> ca(a.a, k), cb(a.b, k);
  run_pass<T>(blocks, b0, b1, k, CombinePass<T>{a});
}

template <class T, class I>
void pcg_dot(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, PcgDot<T> a, int64_t k) {
  for (int64_t b = b0; b < b1; ++b) {
    const int64_t r0 = blocks.table[2 * b], r1 = blocks.table[2 * b + 2];
    column_dots(a.u + r0 * k, a.w + r0 * k, r1 - r0, k, a.sum + b * k);
  }
}

// y = A x,  sum = <u, y>
template <class T>
struct ProductAndDot {
  static constexpr bool kAddsByLanes = true;
  const T* LS_RESTRICT u;
  T* LS_RESTRICT y;
  BlockSums<T> sums;

  void begin(int64_t block) { sums.begin(block); }
  void end(int64_t) { sums.end(); }
  LS_INLINE void rows(int64_t i, int n, const T* s) {
    each_row<T>(n, [&]<class W>(int e) LS_LAMBDA {
      const W value = get<W>(s + e);
      set<W>(y + i + e, value);
      sums.add(e, get<W>(u + i + e) * value);
    });
  }
  LS_INLINE void columns(int64_t i, int64_t j, int n, const T* s) {
    const int64_t o = i * sums.k + j;
    T* LS_RESTRICT sum = sums.sum + sums.at + j;
    for (int e = 0; e < n; ++e) {
      y[o + e] = s[e];
      sum[e] += u[o + e] * s[e];
    }
  }
};

template <class T, class I>
void spmm_dot(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const T* x,
              const T* u, int64_t k, T* y, T* sum) {
  for_each_row(A, blocks, b0, b1, x, k, ProductAndDot<T>{u, y, {sum, k}});
}

// The passes of the adjoint of preconditioned conjugate gradients, iterations last to first. With r', z',
// rho' of the next iteration, M symmetric, and an overbar for the cotangent:
//
//     zbar = pbar + rhobar' r'                        rhobar' += <pbar, p> / rho
//     rbar += M zbar + rhobar' z' + c r'              c: the cotangent of ||r'||, over it
//     alphabar = <xbar, p> - <rbar, q>                pibar = -alphabar alpha / pi
//     qbar = pibar p - alpha rbar
//     pbar = beta pbar + alpha xbar + pibar q + A^T qbar
//     rhobar = alphabar / pi - beta <pbar, p> / rho
//     Abar += qbar p^T,  Mbar += zbar r'^T            each on its pattern, several iterations at once

template <class T, bool Diagonal, bool Given, bool Sum, bool X>
struct AdjointResidualPass : PcgAdjointResidual<T> {
  static constexpr int kSums = Sum;
  static constexpr bool kRowSums = Diagonal;
  LS_INLINE T* sums(int) const { return this->sum; }
  LS_INLINE T* rows() const { return this->dbar; }
  template <class W, class P>
  LS_INLINE W at(const P& place, W* sums) const {
    const int64_t o = place.o;
    const W next = get<W>(this->next + o), c = place.template coefficient<W>(this->c);
    W rbar = get<W>(this->rbar + o), for_row{};
    if constexpr (Given) {
      rbar += get<W>(this->v + o) + c * next;
    } else {
      const W rhobar = place.template coefficient<W>(this->rhobar);
      const W zbar = get<W>(this->pbar + o) + rhobar * next;
      if constexpr (Diagonal) {
        rbar += place.template of_row<W>(this->d) * (zbar + rhobar * next) + c * next;
        for_row = zbar * next;
      } else {
        rbar += zbar + (rhobar + c) * next;
      }
    }
    set<W>(this->rbar + o, rbar);
    if constexpr (Sum) {
      prefetch(this->r + o);
      const W q = (get<W>(this->r + o) - next) * place.template coefficient<W>(this->inverse_alpha);
      sums[0] -= rbar * q;
      if constexpr (X) sums[0] += get<W>(this->xbar + o) * get<W>(this->p + o);
    }
    return for_row;
  }
};

template <class T, class I, bool Diagonal, bool Given>
void adjoint_residual(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const PcgAdjointResidual<T>& a,
                      int64_t k) {
  if (!a.r)
    run_pass<T>(blocks, b0, b1, k, AdjointResidualPass<T, Diagonal, Given, false, false>{a});
  else if (a.xbar)
    run_pass<T>(blocks, b0, b1, k, AdjointResidualPass<T, Diagonal, Given, true, true>{a});
  else
    run_pass<T>(blocks, b0, b1, k, AdjointResidualPass<T, Diagonal, Given, true, false>{a});
}

template <class T, class I>
void pcg_adjoint_residual(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, PcgAdjointResidual<T> a,
                          int64_t k) {
  const Pinned<T> rhobar(a.rhobar, k), c(a.c, k), inverse_alpha(a.inverse_alpha, k);
  if (a.v)
    adjoint_residual<T, I, false, true>(blocks, b0, b1, a, k);
  else if (a.d)
    adjoint_residual<T, I, true, false>(blocks, b0, b1, a, k);
  else
    adjoint_residual<T, I, false, false>(blocks, b0, b1, a, k);
}

template <class T>
struct AdjointDirection {
  const T* LS_RESTRICT beta;
  const T* LS_RESTRICT alpha;
  const T* LS_RESTRICT curvature;
  const T* LS_RESTRICT xbar;
  const T* LS_RESTRICT r;
  const T* LS_RESTRICT next;
  const T* LS_RESTRICT before;
  T* LS_RESTRICT pbar;
  BlockSums<T> sums;
  static constexpr bool kAddsByLanes = true;

  explicit AdjointDirection(const PcgAdjointDirection<T>& a, int64_t k)
      : beta(a.beta),
        alpha(a.alpha),
        curvature(a.pibar_over_alpha),
        xbar(a.xbar),
        r(a.r),
        next(a.next),
        before(a.before),
        pbar(a.pbar),
        sums{a.sum, k} {}
  void begin(int64_t block) {
    if (before) sums.begin(block);
  }
  void end(int64_t) {
    if (before) sums.end();
  }
  LS_INLINE void rows(int64_t i, int n, const T* s) {
    if (before) prefetch(before + i);
    each_row<T>(n, [&]<class W>(int e) LS_LAMBDA {
      const int64_t o = i + e;
      W value =
          beta[0] * get<W>(pbar + o) + curvature[0] * (get<W>(r + o) - get<W>(next + o)) + get<W>(s + e);
      if (xbar) value += alpha[0] * get<W>(xbar + o);
      set<W>(pbar + o, value);
      if (before) sums.add(e, value * get<W>(before + o));
    });
  }
  LS_INLINE void columns(int64_t i, int64_t j, int n, const T* s) {
    const int64_t o = i * sums.k + j;
    for (int e = 0; e < n; ++e) {
      T value = beta[j + e] * pbar[o + e] + curvature[j + e] * (r[o + e] - next[o + e]) + s[e];
      if (xbar) value += alpha[j + e] * xbar[o + e];
      pbar[o + e] = value;
    }
    if (!before) return;
    T* LS_RESTRICT sum = sums.sum + sums.at + j;
    for (int e = 0; e < n; ++e) sum[e] += pbar[o + e] * before[o + e];
  }
};

// S is the structure of A^T. With `ga`, the gradient <qbar_i, p_j> of the values is added in the same pass.
template <class T, class I>
void pcg_adjoint_direction(const CsrView<T, I>& S, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                           PcgAdjointDirection<T> a, int64_t k, const T* p, T* ga) {
  const Pinned<T> beta(a.beta, k), alpha(a.alpha, k), curvature(a.pibar_over_alpha, k);
  AdjointDirection<T> out(a, k);
  if (ga)
    backward_blocks<true>(S, blocks, b0, b1, a.qbar, p, k, ga, out);
  else
    for_each_row(S, blocks, b0, b1, a.qbar, k, out);
}

}  // namespace learnsolve::LEARNSOLVE_ISA
