// Preconditioned conjugate gradients as three passes an iteration,
//
//     q = A p, pi = <p, q>        r' = r - alpha q, ||r'||, rho' = <r', M r'>        x += alpha p, p' = z' +
//     beta p
//
// between which the scalars alpha = rho / pi and beta = rho' / rho are known, and the adjoint of an iteration
// as three more (pcg_passes.h). One column is worked on in vectors of rows, several row by row.
#pragma once

#include "kernels/csr_view.h"
#include "kernels/pcg_passes.h"
#include "kernels/sddmm.h"
#include "kernels/spmm.h"

namespace learnsolve::LEARNSOLVE_ISA {

// Vectors as variables, in registers or on the stack: those of lanes.h are for memory of any alignment, which
// a template argument would forget.
template <class T>
struct Wide;
template <>
struct Wide<double> {
  typedef double type __attribute__((vector_size(LS_VECTOR_BYTES)));
};
template <>
struct Wide<float> {
  typedef float type __attribute__((vector_size(LS_VECTOR_BYTES)));
};

// W is T or a vector of T.
template <class W, class T>
LS_INLINE W get(const T* at) {
  if constexpr (sizeof(W) == sizeof(T))
    return *at;
  else
    return load(at);
}
template <class W, class T>
LS_INLINE void set(T* at, W value) {
  if constexpr (sizeof(W) == sizeof(T))
    *at = value;
  else
    store(at, value);
}

// Where a pass is: element o of the vectors, in row i and column c. One column: W consecutive rows.
template <class T>
struct OneColumn {
  int64_t o;
  template <class W>
  LS_INLINE W coefficient(const T* a) const {
    return W{} + a[0];
  }
  template <class W>
  LS_INLINE W of_row(const T* d) const {
    return get<W>(d + o);
  }
};
// Several columns: W consecutive columns of a row.
template <class T>
struct Columns {
  int64_t o, i, c;
  template <class W>
  LS_INLINE W coefficient(const T* a) const {
    return get<W>(a + c);
  }
  template <class W>
  LS_INLINE W of_row(const T* d) const {
    return W{} + d[i];
  }
};

// A pass has sums() pointers to the sums that it makes and `at<W>(place, sums)`, which works on W elements,
// adds to the sums, and returns what is to be added to rows() of the row.
template <class T, class I, class Pass>
LS_INLINE void run_pass(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, int64_t k, const Pass& pass) {
  using W = typename Wide<T>::type;
  constexpr int V = kLanes<T>, S = Pass::kSums;
  for (int64_t b = b0; b < b1; ++b) {
    const int64_t r0 = blocks.table[2 * b], r1 = blocks.table[2 * b + 2];
    if (k == 1) {
      W wide[S + 1] = {};
      T single[S + 1] = {};
      int64_t i = r0;
      for (; i + V <= r1; i += V) {
        const W e = pass.template at<W>(OneColumn<T>{i}, wide);
        if constexpr (Pass::kRowSums) set<W>(pass.rows() + i, get<W>(pass.rows() + i) + e);
      }
      for (; i < r1; ++i) {
        const T e = pass.template at<T>(OneColumn<T>{i}, single);
        if constexpr (Pass::kRowSums) pass.rows()[i] += e;
      }
      for (int s = 0; s < S; ++s) pass.sums(s)[b] = sum_lanes(wide[s]) + single[s];
    } else {
      for (int s = 0; s < S; ++s)
        for (int64_t c = 0; c < k; ++c) pass.sums(s)[b * k + c] = 0;
      for (int64_t i = r0; i < r1; ++i) {
        W wide_row{};
        T single_row = 0;
        int64_t c = 0;
        for (; c + V <= k; c += V) {
          W sums[S + 1];
          for (int s = 0; s < S; ++s) sums[s] = get<W>(pass.sums(s) + b * k + c);
          wide_row += pass.template at<W>(Columns<T>{i * k + c, i, c}, sums);
          for (int s = 0; s < S; ++s) set<W>(pass.sums(s) + b * k + c, sums[s]);
        }
        for (; c < k; ++c) {
          T sums[S + 1];
          for (int s = 0; s < S; ++s) sums[s] = pass.sums(s)[b * k + c];
          single_row += pass.template at<T>(Columns<T>{i * k + c, i, c}, sums);
          for (int s = 0; s < S; ++s) pass.sums(s)[b * k + c] = sums[s];
        }
        if constexpr (Pass::kRowSums) pass.rows()[i] += sum_lanes(wide_row) + single_row;
      }
    }
  }
}

// A coefficient of a single column in a variable of its own: no store of the pass can be to it.
template <class T>
struct Pinned {
  T value;
  Pinned(const T*& pointer, int64_t k) {
    if (k != 1 || !pointer) return;
    value = *pointer;
    pointer = &value;
  }
};

template <class T, bool Diagonal>
struct ResidualPass : PcgResidual<T> {
  static constexpr int kSums = Diagonal ? 2 : 1;
  static constexpr bool kRowSums = false;
  LS_INLINE T* sums(int s) const { return s == 0 ? this->squares : this->rho; }
  template <class W, class P>
  LS_INLINE W at(const P& place, W* sums) const {
    const W a = place.template coefficient<W>(this->alpha);
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

template <class T>
struct DotPass : PcgDot<T> {
  static constexpr int kSums = 1;
  static constexpr bool kRowSums = false;
  LS_INLINE T* sums(int) const { return this->sum; }
  template <class W, class P>
  LS_INLINE W at(const P& place, W* sums) const {
    sums[0] += get<W>(this->u + place.o) * get<W>(this->w + place.o);
    return W{};
  }
};

template <class T, class I>
void pcg_dot(const RowBlocks<I>& blocks, int64_t b0, int64_t b1, PcgDot<T> a, int64_t k) {
  run_pass<T>(blocks, b0, b1, k, DotPass<T>{a});
}

// Sums over the rows of a block of what an epilogue of `for_each_row` adds up.
template <class T>
struct BlockSums {
  T* sum;  // blocks x k
  int64_t k;
  int64_t at = 0;
  T lanes[kRows<T>] = {};

  void begin(int64_t block) {
    at = block * k;
    for (int e = 0; e < kRows<T>; ++e) lanes[e] = 0;
    if (k != 1)
      for (int64_t c = 0; c < k; ++c) sum[at + c] = 0;
  }
  void end() {
    if (k != 1) return;
    T total = 0;
    for (int e = 0; e < kRows<T>; ++e) total += lanes[e];
    sum[at] = total;
  }
};

// y = A x,  sum = <u, y>
template <class T>
struct ProductAndDot {
  const T* LS_RESTRICT u;
  T* LS_RESTRICT y;
  BlockSums<T> sums;

  void begin(int64_t block) { sums.begin(block); }
  void end(int64_t) { sums.end(); }
  LS_INLINE void rows(int64_t i, int n, const T* s) {
    for (int e = 0; e < n; ++e) {
      y[i + e] = s[e];
      sums.lanes[e] += u[i + e] * s[e];
    }
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

// `for_each_row` with an epilogue of its own: through a reference its sums would stay in memory, where every
// store of a result could be to them (48 us for N = 32768 tridiagonal, not 20).
template <class T, class I, class Epilogue>
LS_INLINE void run_rows(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                        const T* x, int64_t k, const Epilogue& epilogue) {
  if (k == 1) {
    Epilogue out = epilogue;
    for (int64_t b = b0; b < b1; ++b) {
      out.begin(b);
      vector_block(A, blocks.table[2 * b], blocks.table[2 * b + 2], blocks.table[2 * b + 1], x, out);
      out.end(b);
    }
    return;
  }
  Epilogue out = epilogue;
  for (int64_t b = b0; b < b1; ++b) {
    out.begin(b);
    for (int64_t i = blocks.table[2 * b]; i < blocks.table[2 * b + 2]; ++i)
      row_tiles<kTileVectors>(A, i, 0, x, k, out);
    out.end(b);
  }
}

template <class T, class I>
void spmm_dot(const CsrView<T, I>& A, const RowBlocks<I>& blocks, int64_t b0, int64_t b1, const T* x,
              const T* u, int64_t k, T* y, T* sum) {
  run_rows(A, blocks, b0, b1, x, k, ProductAndDot<T>{u, y, {sum, k}});
}

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
    const T b = beta[0], a = alpha[0], c = curvature[0];
    T value[kRows<T>];
    for (int e = 0; e < n; ++e) {
      value[e] = b * pbar[i + e] + c * (r[i + e] - next[i + e]) + s[e];
    }
    if (xbar)
      for (int e = 0; e < n; ++e) value[e] += a * xbar[i + e];
    for (int e = 0; e < n; ++e) pbar[i + e] = value[e];
    if (before)
      for (int e = 0; e < n; ++e) sums.lanes[e] += value[e] * before[i + e];
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
    run_rows(S, blocks, b0, b1, a.qbar, k, out);
}

// Uniform rows: the entries of V rows stay in registers for all pairs.
template <int L, class T, class I>
LS_INLINE bool pairs_uniform_rows(const I* ptr, const I* idx, int64_t r0, int64_t r1, const T* const* u,
                                  const T* const* v, int64_t pairs, T* out) {
  if constexpr (kShuffles<L, T>) {
    constexpr int V = kLanes<T>;
    const int64_t first = ptr[r0], n = r1 - r0;
    int64_t column[L];
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) column[l] = idx[first + l];
    LanePicker<L, T> picker;
    LaneWeaver<L, T> weaver;
    int64_t t = 0;
    for (; t + V <= n; t += V) {
      T* at = out + first + t * L;
      picker.read(at);
#pragma GCC unroll 16
      for (int l = 0; l < L; ++l) weaver.lanes[l] = picker.pick(l);
      for (int64_t j = 0; j < pairs; ++j) {
        const auto uj = load(u[j] + r0 + t);
        const T* vj = v[j] + t;
#pragma GCC unroll 16
        for (int l = 0; l < L; ++l) weaver.lanes[l] += uj * load(vj + column[l]);
      }
#pragma GCC unroll 16
      for (int s = 0; s < L; ++s) store(at + s * V, weaver.weave(s));
    }
    for (; t < n; ++t)
      for (int64_t j = 0; j < pairs; ++j)
#pragma GCC unroll 16
        for (int l = 0; l < L; ++l) out[first + t * L + l] += u[j][r0 + t] * v[j][t + column[l]];
    return true;
  } else {
    return false;
  }
}

template <class T, class I>
LS_INLINE bool pairs_uniform_block(const I* ptr, const I* idx, int64_t r0, int64_t r1, int64_t length,
                                   const T* const* u, const T* const* v, int64_t pairs, T* out) {
  switch (length) {
    case 2: return pairs_uniform_rows<2>(ptr, idx, r0, r1, u, v, pairs, out);
    case 3: return pairs_uniform_rows<3>(ptr, idx, r0, r1, u, v, pairs, out);
    case 4: return pairs_uniform_rows<4>(ptr, idx, r0, r1, u, v, pairs, out);
    case 5: return pairs_uniform_rows<5>(ptr, idx, r0, r1, u, v, pairs, out);
    case 6: return pairs_uniform_rows<6>(ptr, idx, r0, r1, u, v, pairs, out);
    case 7: return pairs_uniform_rows<7>(ptr, idx, r0, r1, u, v, pairs, out);
    default: return false;
  }
}

// Pairs that are added in one pass over a block: more streams than this and the machine no longer reads
// ahead.
inline constexpr int64_t kPairsAtOnce = 4;

// out_p += sum over the pairs of <u_i, v_j>, one after another: no bit depends on how pairs are grouped. What
// `out` and the indices of a block take stays in the cache for all pairs.
template <class T, class I>
void sddmm_pairs(const I* ptr, const I* idx, const RowBlocks<I>& blocks, int64_t b0, int64_t b1,
                 const T* const* u, const T* const* v, int64_t pairs, int64_t k, T* out) {
  for (int64_t b = b0; b < b1; ++b) {
    const I* block = blocks.table + 2 * b;
    for (int64_t j = 0; j < pairs; j += kPairsAtOnce) {
      const int64_t some = pairs - j < kPairsAtOnce ? pairs - j : kPairsAtOnce;
      if (k == 1 && pairs_uniform_block(ptr, idx, block[0], block[2], block[1], u + j, v + j, some, out))
        continue;
      for (int64_t e = j; e < j + some; ++e)
        sddmm_blocks<T, I, true>(ptr, idx, blocks, b, b + 1, u[e], v[e], k, out);
    }
  }
}

}  // namespace learnsolve::LEARNSOLVE_ISA
