// Preconditioned conjugate gradients as three passes an iteration,
//
//     q = A p,  pi = <p, q>
//     r' = r - alpha q,  ||r'||,  rho' = <r', M r'>
//     x += alpha p,  p' = z' + beta p
//
// between which the scalars alpha = rho / pi and beta = rho' / rho are known. Those of the adjoint are in
// pcg_adjoint.h.
#pragma once

#include "kernels/column_dots.h"
#include "kernels/pcg_passes.h"
#include "kernels/spmm.h"
#include "kernels/vector_pass.h"

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

}  // namespace learnsolve::LEARNSOLVE_ISA
