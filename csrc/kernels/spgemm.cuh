// The three derivatives of the trilinear form of a sparse product (kernels/spgemm.h): gathers by a plan that
// learnsolve/matrix/device.py makes on the device or, for products too many for that, by search in the
// rows of C. Every sum has an order that depends on the patterns and the number of lanes alone.
#pragma once

#include "kernels/schedule.cuh"

namespace learnsolve::cuda {

// Where the products of an entry e of A or A^T fall, by the plan: that with entry n of its row of B goes to
// entry positions[first[e] + n] of C, or nowhere if that is negative.
template <class N>
struct PlannedPlaces {
  const int32_t* positions;
  const N* first;
  struct Row {
    const int32_t* at;
    LS_DEVICE int64_t operator()(int64_t n, int64_t) const { return at[n]; }
  };
  LS_DEVICE Row of(int64_t e) const { return {positions + first[e]}; }
};

// The place of j among the sorted idx[begin .. end), -1 if it is not there.
template <class Indices, class I>
LS_BOTH int64_t place_of(const Indices& idx, int64_t begin, int64_t end, I j) {
  int64_t last = end;
  while (begin < last) {
    const int64_t middle = begin + (last - begin) / 2;
    if (idx[middle] < j)
      begin = middle + 1;
    else
      last = middle;
  }
  return begin < end && idx[begin] == j ? begin : -1;
}

// The same without a plan, by search in the row of C: that with entry q of B has its column. The row of e
// stands in row_of or, for the entries of A, is found by a search in a_ptr (row_of is null then).
template <class I>
struct SearchedPlaces {
  const I *row_of, *a_ptr;
  int64_t a_rows;
  const I *b_idx, *c_ptr, *c_idx;
  struct Row {
    const I *b_idx, *c_idx;
    int64_t begin, end;
    LS_DEVICE int64_t operator()(int64_t, int64_t q) const { return place_of(c_idx, begin, end, b_idx[q]); }
  };
  LS_DEVICE Row of(int64_t e) const {
    const int64_t i = row_of ? static_cast<int64_t>(row_of[e]) : row_of_entry(a_ptr, 0, a_rows - 1, e);
    return {b_idx, c_idx, c_ptr[i], c_ptr[i + 1]};
  }
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

// The same without a plan: a team adds up row i of C where it stands, entry of A by entry of A, whose
// products fall on different entries of C.
template <class T, class I>
struct RowSums {
  const I *a_ptr, *a_idx, *b_ptr, *b_idx, *c_ptr, *c_idx;
  BatchOf<const T> a, b;
  BatchOf<T> c;
  int64_t rows, batch;
};

template <class Team, class T, class I>
LS_DEVICE void row_sums(const Team& team, const RowSums<T, I>& P, int64_t i, Members members) {
  const int64_t begin = P.c_ptr[i], end = P.c_ptr[i + 1];
  for (int64_t m = members.b0; m < members.b1; ++m) {
    const T *a = P.a.of(m), *b = P.b.of(m);
    T* c = P.c.of(m);
    if (P.c.step != 0 || m == members.b0) {
      team.each([&](int lane) {
        for (int64_t t = begin + lane; t < end; t += Team::size) c[t] = T(0);
      });
      team.sync();
    }
    for (int64_t p = P.a_ptr[i]; p < P.a_ptr[i + 1]; ++p) {
      const int64_t k = P.a_idx[p], q_end = P.b_ptr[k + 1];
      const T ap = a[p];
      team.each([&](int lane) {
        for (int64_t q = P.b_ptr[k] + lane; q < q_end; q += Team::size) {
          const int64_t t = place_of(P.c_idx, begin, end, P.b_idx[q]);
          if (t >= 0) c[t] += ap * b[q];
        }
      });
      team.sync();  // the next entry's products fall on the same row
    }
  }
}

// ga_p = sum of g[place] b[q] over the products of p that have one.
template <class T, class I, class Places>
struct LeftSums {
  const I* a_idx;
  const I* b_ptr;
  Places places;
  BatchOf<const T> g, b;
  BatchOf<T> ga;
  int64_t entries, batch;
};

template <class Team, class T, class I, class Places>
LS_DEVICE void left_sum(const Team& team, const LeftSums<T, I, Places>& P, int64_t p, Members members) {
  const int64_t k = P.a_idx[p], begin = P.b_ptr[k], count = P.b_ptr[k + 1] - begin;
  const auto place = P.places.of(p);
  typename Team::template Own<T> sum;
  for (int64_t m = members.b0; m < members.b1; ++m) {
    const T *g = P.g.of(m), *b = P.b.of(m) + begin;
    team.each([&](int lane) {
      for (int64_t n = lane; n < count; n += Team::size)
        if (const int64_t t = place(n, begin + n); t >= 0) sum[lane] += g[t] * b[n];
    });
    if (P.ga.step != 0 || m + 1 == members.b1) {
      const T total = team.sum(sum);
      team.first([&] { P.ga.of(m)[p] = total; });
      team.each([&](int lane) { sum[lane] = T(0); });
    }
  }
}

// Rows k of B with column k of A, entry e of which is entry perm[e] of A: gb_q = sum_e a[perm[e]] g[place]
// and, with Left, ga as above.
template <class T, class I, class Places>
struct ColumnSums {
  const I* t_ptr;
  const I* perm;
  const I* b_ptr;
  Places places;
  BatchOf<const T> a, b, g;
  BatchOf<T> ga, gb;
  int64_t rows, batch;
  bool adds_left, adds_right;  // sums over the batch
};

// Lane n has entry n of a part of row k; the team goes through all of A's column.
template <bool Left, class Team, class T, class I, class Places>
LS_DEVICE void column_sums(const Team& team, const ColumnSums<T, I, Places>& P, int64_t k, Members members) {
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
        const auto place = P.places.of(e);
        team.each([&](int lane) {
          part[lane] = T(0);
          if (from + lane >= count) return;
          const int64_t t = place(from + lane, begin + from + lane);
          if (t < 0) return;
          const T gt = g[t];
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
