// The patterns of incomplete and complete factors, and the plans of their elimination.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "analysis/memory.h"
#include "analysis/pattern.h"
#include "analysis/pieces.h"

namespace learnsolve::analysis {

// A sparse row in the making: entries are added in any order, those left of the diagonal come out from left
// to right, also those that the elimination fills in on the way.

// Columns 0 <= j < n as bits; a bit of a level says that the word below it is not zero.
class ColumnSet {
 public:
  explicit ColumnSet(int64_t n) {
    do levels_.emplace_back((n = (n + 63) >> 6) + 1, 0);
    while (n > 1);
  }
  bool empty() const { return levels_.back()[0] == 0; }
  void insert(int64_t j) {
    for (auto& words : levels_) {
      uint64_t& word = words[j >> 6];
      const bool known = word != 0;
      word |= uint64_t{1} << (j & 63);
      if (known) return;
      j >>= 6;
    }
  }
  // Takes out the first.
  int64_t take() {
    int64_t j = 0;
    for (size_t l = levels_.size(); l-- > 0;) j = j << 6 | std::countr_zero(levels_[l][j]);
    int64_t at = j;
    for (auto& words : levels_) {
      uint64_t& word = words[at >> 6];
      word &= word - 1;
      if (word) break;
      at >>= 6;
    }
    return j;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

// `V` holds what is known of an entry: its value, or its level. Rows come in ascending order.
template <class V>
class FillRow {
 public:
  explicit FillRow(int64_t n) : cells_(n, {V(), -1}), open_(n) {}

  void begin(int64_t i) {
    diagonal_ = i;
    right_.clear();
    while (!open_.empty()) open_.take();
  }
  V& operator[](int64_t j) { return cells_[j].value; }
  bool has(int64_t j) const { return cells_[j].row == diagonal_; }
  void insert(int64_t j, V v) {
    cells_[j] = {v, diagonal_};
    if (j < diagonal_)
      open_.insert(j);
    else if (j > diagonal_)
      right_.push_back(j);
  }
  // The entry in column j, new ones as `v`.
  V& at(int64_t j, V v) {
    if (!has(j)) insert(j, v);
    return cells_[j].value;
  }
  // The next column left of the diagonal, -1 after the last.
  int64_t next() { return open_.empty() ? -1 : open_.take(); }
  // The columns right of the diagonal, in any order; the caller may drop some.
  std::vector<int64_t>& right() { return right_; }

 private:
  struct Cell {
    V value;
    int64_t row;  // that has an entry in this column
  };
  int64_t diagonal_ = 0;
  std::vector<Cell> cells_;
  ColumnSet open_;
  std::vector<int64_t> right_;
};

// The pattern of incomplete factors by levels of fill, ILU(k) and IC(k).
struct RowsOfColumns {
  std::vector<int64_t> ptr{0}, idx;
};

// The entries (i, j) with lev_ij <= most. lev_ij is zero for an entry of A and on the diagonal, else
// min_k (lev_ik + lev_kj + 1), k < min(i, j). An entry above `most` cannot lower another one to it: it is
// dropped when met. O(products of the elimination on the result).
template <class I>
RowsOfColumns level_fill(const I* ptr, int64_t n, const I* idx, int64_t most) {
  RowsOfColumns found;
  std::vector<int64_t> upper(n), level;  // where row k is right of its diagonal; the level of each entry
  FillRow<int64_t> row(n);
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    row.begin(i);
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) row.insert(idx[p], 0);
    const auto put = [&](int64_t j, int64_t l) { found.idx.push_back(j), level.push_back(l); };
    for (int64_t k = row.next(); k >= 0; k = row.next()) {
      const int64_t step = row[k] + 1, end = found.ptr[k + 1];
      put(k, row[k]);
      pulse(end - upper[k] + 1);
      for (int64_t q = upper[k]; q < end; ++q) {
        const int64_t j = found.idx[q], l = step + level[q];
        if (l > most) continue;
        int64_t& known = row.at(j, l);
        known = std::min(known, l);
      }
    }
    put(i, 0);
    upper[i] = static_cast<int64_t>(found.idx.size());
    std::sort(row.right().begin(), row.right().end());
    for (const int64_t j : row.right()) put(j, row[j]);
    found.ptr.push_back(static_cast<int64_t>(found.idx.size()));
  }
  return found;
}

// The complete fill of a Cholesky factor, by its elimination tree.
// Source: Liu, "The role of elimination trees in sparse factorization", SIAM J. Matrix Anal. Appl. 11 (1990).

// L by rows, the diagonal last; empty if it has more than `most` entries, whose number `entries` is.
struct CompleteRows {
  int64_t entries = 0;
  std::vector<int64_t> ptr, idx;
};

namespace detail {

// Below the diagonal of A + A^T, its rows and columns permuted: row order[i] becomes row i. Unsorted, with
// entries that come twice.
template <class I>
void lower_rows(const I* ptr, int64_t n, const I* idx, const I* order, std::vector<int64_t>& rows,
                std::vector<int64_t>& columns) {
  std::vector<int64_t> inverse(n);
  for (int64_t i = 0; i < n; ++i) inverse[order[i]] = i;
  const auto each = [&](const auto& f) {
    for (int64_t r = 0; r < n; ++r)
      for (int64_t p = ptr[r]; p < ptr[r + 1]; ++p)
        if (const int64_t a = inverse[r], b = inverse[idx[p]]; a != b) f(std::max(a, b), std::min(a, b));
  };
  rows.assign(n + 1, 0);
  each([&](int64_t i, int64_t) { ++rows[i + 1]; });
  std::partial_sum(rows.begin(), rows.end(), rows.begin());
  columns.resize(rows[n]);
  std::vector<int64_t> next(rows.begin(), rows.end() - 1);
  each([&](int64_t i, int64_t j) { columns[next[i]++] = j; });
}

// f(i, k) for the entries of L below the diagonal, row by row: those on the way up the tree from the columns
// of A's row.
template <class F>
void row_subtrees(const std::vector<int64_t>& rows, const std::vector<int64_t>& columns,
                  const std::vector<int64_t>& parent, const F& f) {
  const auto n = static_cast<int64_t>(parent.size());
  std::vector<int64_t> row(n, -1);  // the last that came by
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    row[i] = i;
    for (int64_t p = rows[i]; p < rows[i + 1]; ++p)
      for (int64_t k = columns[p]; row[k] != i; k = parent[k]) pulse(1), row[k] = i, f(i, k);
  }
}

}  // namespace detail

// Of A + A^T with row order[i] as row i. O(nnz log n) for the tree, then O(entries).
template <class I>
CompleteRows complete_fill(const I* ptr, int64_t n, const I* idx, const I* order, int64_t most) {
  std::vector<int64_t> rows, columns, parent(n, -1), ancestor(n, -1);
  detail::lower_rows(ptr, n, idx, order, rows, columns);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = rows[i]; p < rows[i + 1]; ++p)
      for (int64_t k = columns[p], up; k != -1 && k < i; k = up) {  // shortcuts to the root, of which i is
        up = std::exchange(ancestor[k], i);
        if (up == -1) parent[k] = i;
      }
  CompleteRows L;
  L.ptr.assign(n + 1, 0);
  std::vector<int64_t> next(n + 1, 0);  // of each column: its first place by columns, then the next one
  detail::row_subtrees(rows, columns, parent, [&](int64_t i, int64_t k) { ++L.ptr[i + 1], ++next[k + 1]; });
  for (int64_t i = 0; i < n; ++i) L.ptr[i + 1] += L.ptr[i] + 1, next[i + 1] += next[i];
  L.entries = L.ptr[n];
  if (L.entries > most) return L;
  // Twice in order: rows within columns, then columns within rows.
  std::vector<int64_t> below(next[n]), begin(next.begin(), next.end());
  detail::row_subtrees(rows, columns, parent, [&](int64_t i, int64_t k) { below[next[k]++] = i; });
  L.idx.resize(L.entries);
  std::vector<int64_t> place(L.ptr.begin(), L.ptr.end() - 1);
  for (int64_t k = 0; k < n; ++k) {
    L.idx[place[k]++] = k;
    for (int64_t q = begin[k]; q < begin[k + 1]; ++q) L.idx[place[below[q]]++] = k;
  }
  return L;
}

// What an incomplete factorization without fill does, found once per pattern: for every entry of the factors
// the pairs of entries whose product its equation subtracts (kernels/factors.h).
enum class Factors { lu, cholesky, modified_cholesky, relaxed_cholesky };

// kernels/views.h says what the arrays mean; units are the places of L's ones. U follows L.
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

// The patterns of incomplete factors by a threshold, ICT and ILUT: numbers decide which entries are kept.

// The pattern, or the first row whose pivot breaks down.
struct Choice {
  std::vector<int64_t> ptr;
  Growing<int64_t> idx;  // ptr.back() of them
  int64_t row = -1;
  double pivot = 0;
};

namespace detail {

struct Magnitude {
  double size;
  int64_t column;
  bool before(const Magnitude& other) const {
    return size != other.size ? size > other.size : column < other.column;
  }
};

// Of `columns` keeps those whose magnitudes are not below `least`, and of these the `most` largest, of equal
// ones the first. What is not a number counts as largest: whoever uses it will find it. `sizes` is room.
template <class Value>
void keep_largest(std::vector<int64_t>& columns, const Value& value, double least, int64_t most,
                  std::vector<Magnitude>& sizes) {
  sizes.clear();
  size_t kept = 0;
  for (const int64_t j : columns) {
    const double size = std::fabs(value(j));
    if (size < least) continue;
    sizes.push_back({std::isnan(size) ? std::numeric_limits<double>::infinity() : size, j});
    columns[kept++] = j;
  }
  columns.resize(kept);
  if (static_cast<int64_t>(kept) <= most) return;
  if (most == 0) return columns.clear();
  const auto before = [](const Magnitude& a, const Magnitude& b) { return a.before(b); };
  std::nth_element(sizes.begin(), sizes.begin() + most - 1, sizes.end(), before);
  const Magnitude last = sizes[most - 1];
  std::erase_if(columns, [&](int64_t j) {
    const double size = std::fabs(value(j));
    return last.before({std::isnan(size) ? std::numeric_limits<double>::infinity() : size, j});
  });
}

// Entries that one part of a factor is given memory for at first: all that it may have, or many. Growing
// costs: pages are mapped again.
inline int64_t expected_entries(int64_t entries, int64_t n, int64_t fill) {
  return std::min(entries + n * fill, int64_t{1} << 24);
}

// The norm of the values f(p), begin <= p < end.
template <class F>
double norm(int64_t begin, int64_t end, const F& f) {
  double sum = 0, norm = 0;
  for (int64_t p = begin; p < end; ++p) sum += f(p) * f(p);
  if (sum > 1e-290 && sum < 1e290) return std::sqrt(sum);
  for (int64_t p = begin; p < end; ++p) norm = std::hypot(norm, f(p));
  return norm;
}

}  // namespace detail

// L of A ~ L L^T, column by column. Of column j, the numbers w_i = a_ij - sum_k l_ik l_jk, i > j, k < j, over
// what was kept: those with |w_i| >= tolerance |a_j|_2 are kept, at most `fill` more than A has there, the
// largest first; then l_ij = w_i / sqrt(w_j). a_j is the column on and below the diagonal. Row j of (ptr,
// idx, values) is column j of A; what lies above the diagonal is not read.
inline Choice threshold_cholesky(const int64_t* ptr, int64_t n, const int64_t* idx, const double* values,
                                 int64_t fill, double tolerance) {
  Choice choice;
  std::vector<int64_t> first(n + 1, 0), size(n + 1, 1);  // columns below the diagonal; entries of each row
  Growing<int64_t> rows;
  Growing<double> l;
  rows.reserve(detail::expected_entries(ptr[n] / 2, n, fill)), l.reserve(rows.capacity());
  // Columns by the row of their next entry, that at at[k]: head[row], then after[column], to -1.
  std::vector<int64_t> head(n, -1), after(n, -1), at(n);
  const auto wait = [&](int64_t k) {
    if (at[k] == first[k + 1]) return;
    after[k] = head[rows[at[k]]], head[rows[at[k]]] = k;
  };
  std::vector<detail::Magnitude> sizes;
  FillRow<double> w(n);
  Pulse pulse;
  for (int64_t j = 0; j < n; ++j) {
    pulse(ptr[j + 1] - ptr[j] + 1);
    w.begin(j);
    w.insert(j, 0);
    int64_t own = 0, begin = ptr[j];
    while (begin < ptr[j + 1] && idx[begin] < j) ++begin;
    const double norm = detail::norm(begin, ptr[j + 1], [&](int64_t p) { return values[p]; });
    for (int64_t p = begin; p < ptr[j + 1]; ++p) {
      if (idx[p] == j)
        w[j] = values[p];
      else
        w.insert(idx[p], values[p]), ++own;
    }
    for (int64_t k = head[j], next; k >= 0; k = next) {
      next = after[k];
      const double factor = l[at[k]];
      pulse(first[k + 1] - at[k]);
      for (int64_t q = at[k]; q < first[k + 1]; ++q) w.at(rows[q], 0) -= factor * l[q];
      ++at[k];
      wait(k);
    }
    const double pivot = w[j];
    if (!(pivot > 0) || std::isinf(pivot)) {
      choice.row = j, choice.pivot = pivot;
      return choice;
    }
    std::vector<int64_t>& below = w.right();
    detail::keep_largest(below, [&](int64_t i) { return w[i]; }, tolerance * norm, own + fill, sizes);
    std::sort(below.begin(), below.end());
    const double root = std::sqrt(pivot);
    int64_t end = first[j];
    at[j] = end;
    rows.reserve(end + static_cast<int64_t>(below.size())), l.reserve(rows.capacity());
    for (const int64_t i : below) rows[end] = i, l[end++] = w[i] / root, ++size[i];
    first[j + 1] = end;
    wait(j);
  }
  // By rows; the diagonal comes last, since the columns before it come first.
  choice.ptr.assign(n + 1, 0);
  for (int64_t i = 0; i < n; ++i) choice.ptr[i + 1] = choice.ptr[i] + size[i];
  choice.idx.reserve(choice.ptr[n]);
  std::vector<int64_t> next(choice.ptr.begin(), choice.ptr.end() - 1);
  for (int64_t j = 0; j < n; ++j) {
    pulse(first[j + 1] - first[j] + 1);
    choice.idx[next[j]++] = j;
    for (int64_t q = first[j]; q < first[j + 1]; ++q) choice.idx[next[rows[q]]++] = j;
  }
  return choice;
}

// L and U of A ~ L U, row by row. An entry w_k = l_ik u_kk of L, or w_j = u_ij of U, is dropped when it is
// computed if it is below tolerance |a_i|_2. After the elimination of a row the largest of each part are
// kept, `fill` more than A has there; before, the others take part in it.
inline Choice threshold_lu(const int64_t* ptr, int64_t n, const int64_t* idx, const double* values,
                           int64_t fill, double tolerance) {
  Choice choice;
  choice.ptr.assign(n + 1, 0);
  std::vector<int64_t> first(n + 1, 0), left;  // U right of the diagonal; what a row of L keeps
  std::vector<double> pivots(n);
  Growing<int64_t> columns;
  Growing<double> u;
  columns.reserve(detail::expected_entries(ptr[n] / 2, n, fill)), u.reserve(columns.capacity());
  choice.idx.reserve(2 * columns.capacity());
  std::vector<detail::Magnitude> sizes;
  FillRow<double> w(n);
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    w.begin(i);
    w.insert(i, 0);
    int64_t own_left = 0, own_right = 0;
    const double norm = detail::norm(ptr[i], ptr[i + 1], [&](int64_t p) { return values[p]; });
    for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) {
      if (idx[p] == i)
        w[i] = values[p];
      else
        w.insert(idx[p], values[p]), ++(idx[p] < i ? own_left : own_right);
    }
    const double least = tolerance * norm;
    left.clear();
    for (int64_t k = w.next(); k >= 0; k = w.next()) {
      if (std::fabs(w[k]) < least) continue;
      left.push_back(k);
      const double factor = w[k] / pivots[k];
      pulse(first[k + 1] - first[k] + 1);
      for (int64_t q = first[k]; q < first[k + 1]; ++q) w.at(columns[q], 0) -= factor * u[q];
    }
    const double pivot = w[i];
    if (pivot == 0 || !std::isfinite(pivot)) {
      choice.row = i, choice.pivot = pivot;
      return choice;
    }
    pivots[i] = pivot;
    const auto value = [&](int64_t j) { return w[j]; };
    detail::keep_largest(left, value, least, own_left + fill, sizes);
    detail::keep_largest(w.right(), value, least, own_right + fill, sizes);
    std::sort(w.right().begin(), w.right().end());
    const std::vector<int64_t>& right = w.right();
    const auto length = static_cast<int64_t>(left.size() + right.size()) + 1;
    choice.ptr[i + 1] = choice.ptr[i] + length;
    choice.idx.reserve(choice.ptr[i + 1]);
    int64_t* const row = choice.idx.data() + choice.ptr[i];
    *std::copy(left.begin(), left.end(), row) = i;
    std::copy(right.begin(), right.end(), row + left.size() + 1);
    int64_t end = first[i];
    columns.reserve(end + length), u.reserve(columns.capacity());
    for (const int64_t j : right) columns[end] = j, u[end++] = w[j];
    first[i + 1] = end;
  }
  return choice;
}

}  // namespace learnsolve::analysis
