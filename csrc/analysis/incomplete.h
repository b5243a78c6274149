// What an incomplete factorization without fill does, found once per pattern: for every entry of the factors
// the pairs of entries whose product its equation subtracts (kernels/incomplete.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "analysis/pattern.h"

namespace learnsolve::analysis {

enum class Factors { lu, cholesky, modified_cholesky };

// kernels/elimination.h says what the first arrays mean; units are the places of L's ones. Then the patterns
// of L and, for LU, of U, whose entries follow those of L.
template <class N>
struct EliminationPlan {
  std::vector<N> order, source, pivot, ptr, pairs, units;
  std::vector<N> lower_ptr, lower_idx, upper_ptr, upper_idx;
};

namespace detail {

// f(target, p, q) for every product of the LU elimination, by rows of L: l_ik u_kj, k < min(i, j), into
// (i, j). All three are places in the factors.
template <class I, class F>
void lu_products(const I* ptr, int64_t n, const I* idx, const I* diagonal, const F& f) {
  std::vector<int64_t> lower(n + 1, 0), upper(n + 1, 0), place(n, -1);
  for (int64_t i = 0; i < n; ++i) {
    lower[i + 1] = lower[i] + diagonal[i] + 1 - ptr[i];
    upper[i + 1] = upper[i] + ptr[i + 1] - diagonal[i];
  }
  for (int64_t i = 0; i < n; ++i) upper[i] += lower[n];
  const auto place_of = [&](int64_t i, int64_t a) {
    return a < diagonal[i] ? lower[i] + a - ptr[i] : upper[i] + a - diagonal[i];
  };
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    pulse(ptr[i + 1] - ptr[i] + 1);
    for (int64_t a = ptr[i]; a < ptr[i + 1]; ++a) place[idx[a]] = place_of(i, a);
    for (int64_t a = ptr[i]; a < diagonal[i]; ++a) {
      const int64_t k = idx[a];
      pulse(ptr[k + 1] - diagonal[k]);
      for (int64_t b = diagonal[k] + 1; b < ptr[k + 1]; ++b)
        if (place[idx[b]] >= 0) f(place[idx[b]], place_of(i, a), place_of(k, b));
    }
    for (int64_t a = ptr[i]; a < ptr[i + 1]; ++a) place[idx[a]] = -1;
  }
}

// The same for L L^T: l_ik l_jk, k < j <= i, into (i, j). Where L has no such entry (dropped fill), the
// modified factorization takes the product from the diagonal of row i and of row j, since the symmetric fill
// would occur in both.
template <class N, class F>
void cholesky_products(const std::vector<N>& ptr, const std::vector<N>& idx, bool modified, const F& f) {
  const int64_t n = static_cast<int64_t>(ptr.size()) - 1;
  std::vector<N> tptr(n + 1), tidx(idx.size()), perm(idx.size());
  std::vector<int64_t> place(n, -1);
  transpose(ptr.data(), n, idx.data(), n, tptr.data(), tidx.data(), perm.data());
  Pulse pulse;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t end = ptr[i + 1] - 1;  // the diagonal comes last
    pulse(end - ptr[i] + 1);
    for (int64_t p = ptr[i]; p <= end; ++p) place[idx[p]] = p;
    for (int64_t p = ptr[i]; p < end; ++p) {
      const int64_t k = idx[p];
      pulse(tptr[k + 1] - tptr[k]);
      for (int64_t c = tptr[k] + 1; c < tptr[k + 1] && tidx[c] <= i; ++c) {
        const int64_t j = tidx[c], q = perm[c];
        if (place[j] >= 0) {
          f(place[j], p, q);
        } else if (modified) {
          f(end, p, q);
          f(ptr[j + 1] - 1, p, q);
        }
      }
    }
    for (int64_t p = ptr[i]; p <= end; ++p) place[idx[p]] = -1;
  }
}

// The patterns of the factors.
template <class I, class N>
void factor_patterns(const I* ptr, int64_t n, const I* idx, const I* diagonal, Factors kind,
                     EliminationPlan<N>& plan) {
  const bool lu = kind == Factors::lu;
  plan.lower_ptr.assign(n + 1, 0);
  plan.upper_ptr.assign(n + 1, 0);
  for (int64_t i = 0; i < n; ++i) {
    plan.lower_ptr[i + 1] = static_cast<N>(plan.lower_ptr[i] + diagonal[i] + 1 - ptr[i]);
    plan.upper_ptr[i + 1] = static_cast<N>(plan.upper_ptr[i] + (lu ? ptr[i + 1] - diagonal[i] : 0));
  }
  plan.lower_idx.reserve(plan.lower_ptr[n]);
  plan.upper_idx.reserve(plan.upper_ptr[n]);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t a = ptr[i]; a <= diagonal[i]; ++a) plan.lower_idx.push_back(static_cast<N>(idx[a]));
    for (int64_t a = diagonal[i]; lu && a < ptr[i + 1]; ++a) plan.upper_idx.push_back(static_cast<N>(idx[a]));
  }
}

template <class I, class N, class F>
void products(const I* ptr, int64_t n, const I* idx, const I* diagonal, Factors kind,
              const EliminationPlan<N>& plan, const F& f) {
  if (kind == Factors::lu)
    lu_products(ptr, n, idx, diagonal, f);
  else
    cholesky_products(plan.lower_ptr, plan.lower_idx, kind == Factors::modified_cholesky, f);
}

}  // namespace detail

// The number of products of the elimination, which is what its plan costs. A is square with a full diagonal,
// in places `diagonal`.
template <class I>
int64_t elimination_products(const I* ptr, int64_t n, const I* idx, const I* diagonal, Factors kind) {
  EliminationPlan<int64_t> plan;
  if (kind != Factors::lu) detail::factor_patterns(ptr, n, idx, diagonal, kind, plan);
  int64_t count = 0;
  detail::products(ptr, n, idx, diagonal, kind, plan, [&](int64_t, int64_t, int64_t) { ++count; });
  return count;
}

// O(n + nnz + products) time and memory. N must hold the number of products, and of entries plus rows.
template <class N, class I>
EliminationPlan<N> elimination_plan(const I* ptr, int64_t n, const I* idx, const I* diagonal, Factors kind) {
  EliminationPlan<N> plan;
  const bool lu = kind == Factors::lu;
  detail::factor_patterns(ptr, n, idx, diagonal, kind, plan);
  const int64_t lower_size = plan.lower_ptr[n], steps = lu ? ptr[n] : lower_size;
  plan.order.reserve(steps), plan.source.reserve(steps), plan.pivot.reserve(steps);

  // Steps: every entry after those that its equation reads.
  const auto step = [&](int64_t entry, int64_t source, int64_t pivot) {
    plan.order.push_back(static_cast<N>(entry));
    plan.source.push_back(static_cast<N>(source));
    plan.pivot.push_back(static_cast<N>(pivot));
  };
  if (lu) {
    const auto upper = [&](int64_t i) { return lower_size + plan.upper_ptr[i]; };
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t a = ptr[i]; a < diagonal[i]; ++a) step(plan.lower_ptr[i] + a - ptr[i], a, upper(idx[a]));
      plan.units.push_back(plan.lower_ptr[i + 1] - 1);
      for (int64_t a = diagonal[i]; a < ptr[i + 1]; ++a)
        step(upper(i) + a - diagonal[i], a, a == diagonal[i] ? upper(i) : -1);
    }
  } else if (kind == Factors::cholesky) {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t a = ptr[i]; a <= diagonal[i]; ++a)
        step(plan.lower_ptr[i] + a - ptr[i], a, plan.lower_ptr[idx[a] + 1] - 1);
  } else {
    // Dropped fill (i, j) changes the diagonal of j < i too: by columns, so that column k < j is there.
    std::vector<N> tptr(n + 1), tidx(lower_size), perm(lower_size);
    transpose(plan.lower_ptr.data(), n, plan.lower_idx.data(), n, tptr.data(), tidx.data(), perm.data());
    for (int64_t j = 0; j < n; ++j)
      for (int64_t c = tptr[j]; c < tptr[j + 1]; ++c)
        step(perm[c], ptr[tidx[c]] + perm[c] - plan.lower_ptr[tidx[c]], perm[tptr[j]]);
  }
  std::vector<N> step_of(lower_size + plan.upper_ptr[n], -1);
  for (int64_t t = 0; t < steps; ++t) step_of[plan.order[t]] = static_cast<N>(t);

  plan.ptr.assign(steps + 1, 0);
  detail::products(ptr, n, idx, diagonal, kind, plan,
                   [&](int64_t target, int64_t, int64_t) { ++plan.ptr[step_of[target] + 1]; });
  for (int64_t t = 0; t < steps; ++t) plan.ptr[t + 1] += plan.ptr[t];
  std::vector<N> next(plan.ptr.begin(), plan.ptr.end() - 1);
  plan.pairs.resize(2 * static_cast<size_t>(plan.ptr.back()));
  detail::products(ptr, n, idx, diagonal, kind, plan, [&](int64_t target, int64_t p, int64_t q) {
    const int64_t at = next[step_of[target]]++;
    plan.pairs[2 * at] = static_cast<N>(p), plan.pairs[2 * at + 1] = static_cast<N>(q);
  });
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
