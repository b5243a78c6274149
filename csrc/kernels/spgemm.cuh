// The three derivatives of the trilinear form of a sparse product (kernels/spgemm.h), each a gather by a plan
// that learnsolve/_device_analysis.py makes on the device. Product f belongs to entry p of A and entry q of B
// and goes to entry positions[f] of C, or nowhere if that is negative; those of p begin with first[p], in
// the order of B's row.
#pragma once

#include "kernels/row_pass.cuh"

namespace learnsolve::cuda {

// Values of one matrix for each member of the batch, or (step 0) of all.
template <class T>
struct BatchOf {
  T* values;
  int64_t step;
  LS_DEVICE T* of(int64_t b) const { return values + b * step; }
};

// c_t = sum over pairs u with starts[t] <= u < starts[t + 1] of a[pairs[2u]] b[pairs[2u + 1]].
template <class T>
struct PairSums {
  const int32_t* pairs;
  const int64_t* starts;
  BatchOf<const T> a, b;
  BatchOf<T> c;
  int64_t entries, batch;
};

template <class Team, class T>
LS_DEVICE void pair_sum(const Team& team, const PairSums<T>& P, int64_t t, Members members) {
  const int64_t begin = P.starts[t], end = P.starts[t + 1];
  typename Team::template Own<T> sum;
  for (int64_t m = members.b0; m < members.b1; ++m) {
    const T *a = P.a.of(m), *b = P.b.of(m);
    team.each([&](int lane) {
      for (int64_t u = begin + lane; u < end; u += Team::size)
        sum[lane] += a[P.pairs[2 * u]] * b[P.pairs[2 * u + 1]];
    });
    if (P.c.step != 0 || m + 1 == members.b1) {
      const T total = team.sum(sum);
      team.first([&] { P.c.of(m)[t] = total; });
      team.each([&](int lane) { sum[lane] = T(0); });
    }
  }
}

// ga_p = sum of g[positions[f]] b[q] over the products of p.
template <class T, class I>
struct LeftSums {
  const I* a_idx;
  const I* b_ptr;
  const int32_t* positions;
  const int64_t* first;
  BatchOf<const T> g, b;
  BatchOf<T> ga;
  int64_t entries, batch;
};

template <class Team, class T, class I>
LS_DEVICE void left_sum(const Team& team, const LeftSums<T, I>& P, int64_t p, Members members) {
  const int64_t k = P.a_idx[p], begin = P.b_ptr[k], count = P.b_ptr[k + 1] - begin;
  const int32_t* at = P.positions + P.first[p];
  typename Team::template Own<T> sum;
  for (int64_t m = members.b0; m < members.b1; ++m) {
    const T *g = P.g.of(m), *b = P.b.of(m) + begin;
    team.each([&](int lane) {
      for (int64_t n = lane; n < count; n += Team::size)
        if (at[n] >= 0) sum[lane] += g[at[n]] * b[n];
    });
    if (P.ga.step != 0 || m + 1 == members.b1) {
      const T total = team.sum(sum);
      team.first([&] { P.ga.of(m)[p] = total; });
      team.each([&](int lane) { sum[lane] = T(0); });
    }
  }
}

// Rows k of B with column k of A, entry e of which is entry perm[e] of A, whose products begin with
// starts[e]: gb_q = sum_e a[perm[e]] g[positions[f]] and, with Left, ga as above.
template <class T, class I>
struct ColumnSums {
  const I* t_ptr;
  const I* perm;
  const I* b_ptr;
  const int32_t* positions;
  const int32_t* starts;
  BatchOf<const T> a, b, g;
  BatchOf<T> ga, gb;
  int64_t rows, batch;
  bool adds_left, adds_right;  // sums over the batch
};

// Lane n has entry n of a part of row k; all of A's column pass by.
template <bool Left, class Team, class T, class I>
LS_DEVICE void column_sums(const Team& team, const ColumnSums<T, I>& P, int64_t k, Members members) {
  constexpr int N = Team::size;
  const int64_t begin = P.b_ptr[k], count = P.b_ptr[k + 1] - begin;
  if (Left && count == 0)
    for (int64_t m = members.b0; m < members.b1; ++m)
      team.each([&](int lane) {
        for (int64_t e = P.t_ptr[k] + lane; e < P.t_ptr[k + 1]; e += N) P.ga.of(m)[P.perm[e]] = T(0);
      });
  for (int64_t from = 0; from < count; from += N) {
    typename Team::template Own<T> bn, sum, part;
    for (int64_t m = members.b0; m < members.b1; ++m) {
      const T *a = P.a.of(m), *g = P.g.of(m);
      T* ga = P.ga.of(m);
      const bool add = from > 0 || (P.adds_left && m > members.b0);
      if (Left)
        team.each([&](int lane) {
          if (from + lane < count) bn[lane] = P.b.of(m)[begin + from + lane];
        });
      for (int64_t e = P.t_ptr[k]; e < P.t_ptr[k + 1]; ++e) {
        const int64_t p = P.perm[e];
        const T ap = a[p];
        const int32_t* at = P.positions + P.starts[e] + from;
        team.each([&](int lane) {
          part[lane] = T(0);
          if (from + lane >= count || at[lane] < 0) return;
          const T gt = g[at[lane]];
          sum[lane] += ap * gt;
          if (Left) part[lane] = gt * bn[lane];
        });
        if (Left) {
          const T total = team.sum(part);
          team.first([&] { ga[p] = add ? ga[p] + total : total; });
        }
      }
      if (!P.adds_right || m + 1 == members.b1)
        team.each([&](int lane) {
          if (from + lane < count) P.gb.of(m)[begin + from + lane] = sum[lane];
          sum[lane] = T(0);
        });
    }
  }
}

}  // namespace learnsolve::cuda
