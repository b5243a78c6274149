// What an incomplete factorization without fill does, found once per pattern: for every entry of the factors
// the pairs of entries whose product its equation subtracts (kernels/incomplete.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "analysis/growing.h"
#include "analysis/pattern.h"

namespace learnsolve::analysis {

enum class Factors { lu, cholesky, modified_cholesky, relaxed_cholesky };

// kernels/elimination.h says what the arrays mean; units are the places of L's ones. U follows L.
//
// The relaxed factorization multiplies the products of dropped fill by omega. Its equations are products of
// two entries as well, by auxiliary entries behind those of L: w = -omega, a value that follows A's, and g_p
// = omega l_p for every entry p of L (after the equation of l_p: 0 = g_p + w l_p), whose zeros follow w.
template <class N>
struct EliminationPlan {
  int64_t steps = 0, products = 0, ones = 0;
  Growing<N> order, source, pivot, ptr, pairs, units;

  void reserve(int64_t most) {
    for (Growing<N>* a : {&order, &source, &pivot, &ptr}) a->reserve(most + 1);
  }
  // The next step; the pairs that follow are its own.
  void step(int64_t entry, int64_t from, int64_t divisor) {
    order.data()[steps] = static_cast<N>(entry);
    source.data()[steps] = static_cast<N>(from);
    pivot.data()[steps] = static_cast<N>(divisor);
    ptr.data()[steps++] = static_cast<N>(products);
  }
  void put(int64_t at, int64_t p, int64_t q) {
    pairs.data()[2 * at] = static_cast<N>(p), pairs.data()[2 * at + 1] = static_cast<N>(q);
  }
};

namespace detail {

// Where the rows of L and, for LU, those of U behind them begin in the factors.
template <class N>
struct FactorRows {
  std::vector<N> lower, upper;

  template <class I>
  FactorRows(const I* ptr, int64_t n, const I* diagonal, bool lu) : lower(n + 1, 0), upper(lu ? n + 1 : 0) {
    for (int64_t i = 0; i < n; ++i) lower[i + 1] = static_cast<N>(lower[i] + diagonal[i] + 1 - ptr[i]);
    if (!lu) return;
    upper[0] = lower[n];
    for (int64_t i = 0; i < n; ++i) upper[i + 1] = static_cast<N>(upper[i] + ptr[i + 1] - diagonal[i]);
  }
};

// A product of the LU elimination, l_ik u_kj, k < min(i, j): place in A of (i, j), places p and q of the two.
template <class N>
struct LuProduct {
  N target, p, q;
};

// f(i, its products by k, their number) for every row i.
template <class I, class N, class F>
void lu_products(const I* ptr, int64_t n, const I* idx, const I* diagonal, const FactorRows<N>& rows,
                 const F& f) {
  std::vector<N> place(n, -1);  // in A; less than ptr[i]: not in row i
  Growing<LuProduct<N>> found;
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = ptr[i];
    int64_t most = 1, count = 0;
    for (int64_t a = begin; a < ptr[i + 1]; ++a) place[idx[a]] = static_cast<N>(a);
    for (int64_t a = begin; a < diagonal[i]; ++a) most += ptr[idx[a] + 1] - diagonal[idx[a]];
    pulse(ptr[i + 1] - begin + most);
    found.reserve(most);
    LuProduct<N>* const at = found.data();
    for (int64_t a = begin; a < diagonal[i]; ++a) {
      const int64_t k = idx[a], p = rows.lower[i] + a - begin, shift = rows.upper[k] - diagonal[k];
      for (int64_t b = diagonal[k] + 1; b < ptr[k + 1]; ++b) {
        const N target = place[idx[b]];
        at[count] = {target, static_cast<N>(p), static_cast<N>(b + shift)};
        count += target >= begin;  // written in any case: no branch
      }
    }
    f(i, at, count);
  }
}

// The products of L L^T, by entries (i, j) of L, row by row, and k: l_ik l_jk, k < j <= i. entry(place in A,
// place in L, place of its pivot, number of candidates), then product(is it one, p, q) for each candidate.
template <class I, class N, class Entry, class F>
void cholesky_products(const I* ptr, int64_t n, const I* idx, const I* diagonal, const FactorRows<N>& rows,
                       const Entry& entry, const F& product) {
  const std::vector<N>& lower = rows.lower;
  std::vector<N> place(n, -1);  // in L; less than lower[i]: not in row i
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t begin = lower[i], shift = begin - ptr[i];
    for (int64_t a = ptr[i]; a <= diagonal[i]; ++a) place[idx[a]] = static_cast<N>(a + shift);
    for (int64_t a = ptr[i]; a <= diagonal[i]; ++a) {
      const int64_t j = idx[a], first = lower[j], count = lower[j + 1] - 1 - first;
      pulse(count + 2);
      entry(a, a + shift, first + count, count);
      for (int64_t b = 0; b < count; ++b) {
        const int64_t p = place[idx[ptr[j] + b]];
        product(p >= begin, p, first + b);
      }
    }
  }
}

// L by columns: rows, and places in L.
template <class N>
struct FactorColumns {
  std::vector<N> ptr, row, place;

  template <class I>
  FactorColumns(const I* A_ptr, int64_t n, const I* idx, const I* diagonal, const FactorRows<N>& rows)
      : ptr(n + 1), row(rows.lower[n]), place(rows.lower[n]) {
    std::vector<N> columns(rows.lower[n]);
    for (int64_t i = 0; i < n; ++i)
      std::copy(idx + A_ptr[i], idx + diagonal[i] + 1, columns.begin() + rows.lower[i]);
    transpose(rows.lower.data(), n, columns.data(), n, ptr.data(), row.data(), place.data());
  }
};

// The products of L L^T with those of dropped fill, by rows i and k: begin(i), product(is (i, j) an entry,
// its place, else that of (j, j), p, q) for l_ik l_jk, k < j < i, square(p) for l_ik^2, end(place of (i, i)).
template <class I, class N, class Begin, class F, class Square, class End>
void modified_products(const I* ptr, int64_t n, const I* idx, const FactorRows<N>& rows,
                       const FactorColumns<N>& columns, const Begin& begin, const F& product,
                       const Square& square, const End& end) {
  const std::vector<N>& lower = rows.lower;
  std::vector<N> place(n, -1), above(columns.ptr.begin(), columns.ptr.end() - 1);  // entries above row i
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t first = lower[i], last = lower[i + 1] - 1;
    pulse(last - first + 1);
    begin(i);
    for (int64_t p = first; p <= last; ++p) {
      const int64_t k = idx[ptr[i] + p - first];
      place[k] = static_cast<N>(p);
      ++above[k];
    }
    for (int64_t p = first; p < last; ++p) {
      const int64_t k = idx[ptr[i] + p - first];
      pulse(above[k] - columns.ptr[k]);
      for (int64_t c = columns.ptr[k] + 1; c + 1 < above[k]; ++c) {
        const int64_t j = columns.row[c], own = place[j], diagonal = lower[j + 1] - 1;
        const bool kept = own >= first;  // both are read: no branch
        product(kept, kept ? own : diagonal, p, columns.place[c]);
      }
      square(p);
    }
    end(last);
  }
}

// The number of products of each entry of L.
template <class I, class N>
std::vector<N> modified_counts(const I* ptr, int64_t n, const I* idx, const FactorRows<N>& rows,
                               const FactorColumns<N>& columns) {
  std::vector<N> counts(rows.lower[n], 0);
  N own = 0;  // of the diagonal of row i, by products of its row
  modified_products(
      ptr, n, idx, rows, columns, [&](int64_t) { own = 0; },
      [&](bool kept, int64_t target, int64_t, int64_t) { ++counts[target], own += !kept; },
      [&](int64_t) { ++own; }, [&](int64_t target) { counts[target] += own; });
  return counts;
}

template <class N, class I>
void plan_lu(const I* ptr, int64_t n, const I* idx, const I* diagonal, EliminationPlan<N>& plan) {
  const FactorRows<N> rows(ptr, n, diagonal, true);
  std::vector<N> next;  // of each entry of a row: where its next product goes
  plan.reserve(ptr[n]);
  plan.units.reserve(n + 1);
  plan.ones = n;
  lu_products(ptr, n, idx, diagonal, rows, [&](int64_t i, const LuProduct<N>* found, int64_t count) {
    const int64_t begin = ptr[i], length = ptr[i + 1] - begin;
    next.assign(length + 1, 0);
    for (int64_t u = 0; u < count; ++u) ++next[found[u].target - begin + 1];
    plan.units.data()[i] = rows.lower[i + 1] - 1;
    for (int64_t a = begin; a < ptr[i + 1]; ++a) {
      const int64_t of_next = next[a - begin + 1], place = rows.upper[i] + a - diagonal[i];
      next[a - begin] = static_cast<N>(plan.products);
      if (a < diagonal[i])
        plan.step(rows.lower[i] + a - begin, a, rows.upper[idx[a]]);
      else
        plan.step(place, a, a == diagonal[i] ? place : -1);
      plan.products += of_next;
    }
    plan.pairs.reserve(2 * plan.products);
    for (int64_t u = 0; u < count; ++u) plan.put(next[found[u].target - begin]++, found[u].p, found[u].q);
  });
}

template <class N, class I>
void plan_cholesky(const I* ptr, int64_t n, const I* idx, const I* diagonal, EliminationPlan<N>& plan) {
  const FactorRows<N> rows(ptr, n, diagonal, false);
  plan.reserve(rows.lower[n]);
  cholesky_products(
      ptr, n, idx, diagonal, rows,
      [&](int64_t source, int64_t place, int64_t pivot, int64_t most) {
        plan.step(place, source, pivot);
        plan.pairs.reserve(2 * (plan.products + most + 1));
      },
      [&](bool there, int64_t p, int64_t q) {
        plan.put(plan.products, p, q);
        plan.products += there;  // written in any case: no branch
      });
}

// Dropped fill (i, j) changes the diagonal of j < i too: by columns, so that column k < j is there.
template <class N, class I>
void plan_modified(const I* ptr, int64_t n, const I* idx, const I* diagonal, bool relaxed,
                   EliminationPlan<N>& plan) {
  const FactorRows<N> rows(ptr, n, diagonal, false);
  const FactorColumns<N> columns(ptr, n, idx, diagonal, rows);
  const int64_t entries = rows.lower[n], omega = entries, scaled = entries + 1;
  std::vector<N> next = modified_counts(ptr, n, idx, rows, columns);
  plan.reserve(relaxed ? 2 * entries + 1 : entries);
  if (relaxed) plan.step(omega, ptr[n], -1);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t c = columns.ptr[j]; c < columns.ptr[j + 1]; ++c) {
      const int64_t i = columns.row[c], p = columns.place[c];
      plan.step(p, ptr[i] + p - rows.lower[i], columns.place[columns.ptr[j]]);
      plan.products += std::exchange(next[p], static_cast<N>(plan.products));
      if (relaxed) plan.step(scaled + p, ptr[n] + scaled - entries + p, -1), ++plan.products;
    }
  plan.pairs.reserve(2 * plan.products);
  for (int64_t t = 2; relaxed && t < plan.steps; t += 2)
    plan.put(plan.ptr.data()[t], omega, plan.order.data()[t - 1]);
  const int64_t shift = relaxed ? scaled : 0;
  int64_t own = 0;  // where the next product of the row's diagonal goes
  modified_products(
      ptr, n, idx, rows, columns, [&](int64_t i) { own = next[rows.lower[i + 1] - 1]; },
      [&](bool kept, int64_t target, int64_t p, int64_t q) {
        p += kept ? 0 : shift;
        plan.put(next[target]++, p, q);
        plan.put(own, p, q);  // in any case: a square follows
        own += !kept;
      },
      [&](int64_t p) { plan.put(own++, p, p); }, [&](int64_t target) { next[target] = static_cast<N>(own); });
}

}  // namespace detail

// The number of products of the elimination, which is what its plan costs, or a bound on it that is at most
// `enough`, in O(n + nnz). A is square with a full diagonal, in places `diagonal`.
template <class I>
int64_t elimination_products(const I* ptr, int64_t n, const I* idx, const I* diagonal, Factors kind,
                             int64_t enough) {
  using namespace detail;
  const bool lu = kind == Factors::lu, twice = !lu && kind != Factors::cholesky;
  int64_t bound = 0, count = 0, left = 0;
  std::vector<int64_t> below(n, 0);  // entries of each column
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    pulse(diagonal[i] - ptr[i] + 1);
    for (int64_t a = ptr[i]; a < diagonal[i]; ++a) ++below[idx[a]];
    left += diagonal[i] + 1 - ptr[i];
  }
  if (kind == Factors::relaxed_cholesky) bound = left;
  for (int64_t k = 0; k < n && bound <= enough; ++k)
    bound += lu ? below[k] * (ptr[k + 1] - diagonal[k] - 1) : below[k] * (below[k] + 1) / (twice ? 1 : 2);
  if (bound <= enough) return bound;

  const FactorRows<int64_t> rows(ptr, n, diagonal, lu);
  if (lu) {
    lu_products(ptr, n, idx, diagonal, rows,
                [&](int64_t, const LuProduct<int64_t>*, int64_t more) { count += more; });
  } else if (kind == Factors::cholesky) {
    cholesky_products(
        ptr, n, idx, diagonal, rows, [](int64_t, int64_t, int64_t, int64_t) {},
        [&](bool there, int64_t, int64_t) { count += there; });
  } else {
    const FactorColumns<int64_t> columns(ptr, n, idx, diagonal, rows);
    for (const int64_t more : modified_counts(ptr, n, idx, rows, columns)) count += more;
    if (kind == Factors::relaxed_cholesky) count += left;
  }
  return count;
}

// O(n + nnz) and a few steps for each product; memory for the result. N must hold the number of products, and
// of entries plus rows. `products`: this number, more or less.
template <class N, class I>
EliminationPlan<N> elimination_plan(const I* ptr, int64_t n, const I* idx, const I* diagonal, Factors kind,
                                    int64_t products) {
  EliminationPlan<N> plan;
  plan.pairs.reserve(2 * std::min(products, int64_t{1} << 25));  // growing costs: pages are mapped again
  if (kind == Factors::lu)
    detail::plan_lu(ptr, n, idx, diagonal, plan);
  else if (kind == Factors::cholesky)
    detail::plan_cholesky(ptr, n, idx, diagonal, plan);
  else
    detail::plan_modified(ptr, n, idx, diagonal, kind == Factors::relaxed_cholesky, plan);
  plan.ptr.reserve(plan.steps + 1);
  plan.ptr.data()[plan.steps] = static_cast<N>(plan.products);
  return plan;
}

// The level of every step: one more than the highest of those whose results it reads. `entries` of the
// factors.
template <class N>
void elimination_levels(int64_t steps, const N* order, const N* pivot, const N* ptr, const N* pairs,
                        int64_t entries, int64_t* levels) {
  std::vector<int64_t> next(entries, 0);  // for each entry, the lowest level that may read it
  Pulse pulse;
  for (int64_t t = 0; t < steps; ++t) {
    pulse(ptr[t + 1] - ptr[t] + 1);
    int64_t level = pivot[t] >= 0 && pivot[t] != order[t] ? next[pivot[t]] : 0;
    for (int64_t u = 2 * static_cast<int64_t>(ptr[t]); u < 2 * static_cast<int64_t>(ptr[t + 1]); ++u)
      level = std::max(level, next[pairs[u]]);
    levels[t] = level;
    next[order[t]] = level + 1;
  }
}

}  // namespace learnsolve::analysis
