// What an incomplete factorisation without fill does, found once per pattern: for every entry of the factors
// the pairs of entries whose product its equation subtracts (kernels/incomplete.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "analysis/pattern.h"

namespace learnsolve::analysis {

enum class Factors { lu, cholesky, modified_cholesky };

// kernels/incomplete.h says what the arrays mean. Numbers are int64_t here; the caller narrows them.
struct EliminationPlan {
  std::vector<int64_t> order, source, pivot, ptr, units;
  std::vector<int64_t> pairs;
  std::vector<int64_t> lower_ptr, lower_idx, upper_ptr, upper_idx;  // patterns of L and, for LU, of U
};

namespace detail {

// f(target, p, q) for every product of the LU elimination, by rows of L: l_ik u_kj, k < min(i, j), into
// (i, j). Places of L are lower[i] + (a - ptr[i]), of U upper[i] + (a - diagonal[i]), for place a in A.
template <class I, class F>
void lu_products(const I* ptr, int64_t n, const I* idx, const I* diagonal, const int64_t* lower,
                 const int64_t* upper, const F& f) {
  std::vector<int64_t> place(n, -1);
  const auto place_of = [&](int64_t i, int64_t a) {
    return a < diagonal[i] ? lower[i] + a - ptr[i] : upper[i] + a - diagonal[i];
  };
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t a = ptr[i]; a < ptr[i + 1]; ++a) place[idx[a]] = place_of(i, a);
    for (int64_t a = ptr[i]; a < diagonal[i]; ++a) {
      const int64_t k = idx[a];
      for (int64_t b = diagonal[k] + 1; b < ptr[k + 1]; ++b)
        if (place[idx[b]] >= 0) f(place[idx[b]], place_of(i, a), place_of(k, b));
    }
    for (int64_t a = ptr[i]; a < ptr[i + 1]; ++a) place[idx[a]] = -1;
  }
}

// The same for L L^T: l_ik l_jk, k < j <= i, into (i, j). Where L has no such entry (dropped fill), the
// modified factorisation takes the product from the diagonal of row i and of row j, as A's symmetric fill
// would have stood in both.
template <class F>
void cholesky_products(const std::vector<int64_t>& ptr, const std::vector<int64_t>& idx, bool modified,
                       const F& f) {
  const int64_t n = static_cast<int64_t>(ptr.size()) - 1;
  std::vector<int64_t> tptr(n + 1), tidx(idx.size()), perm(idx.size()), place(n, -1);
  transpose(ptr.data(), n, idx.data(), n, tptr.data(), tidx.data(), perm.data());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t end = ptr[i + 1] - 1;  // the diagonal comes last
    for (int64_t p = ptr[i]; p <= end; ++p) place[idx[p]] = p;
    for (int64_t p = ptr[i]; p < end; ++p) {
      const int64_t k = idx[p];
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

}  // namespace detail

// A is square with a full diagonal, in places `diagonal`. O(n + nnz + products) time; the plan holds
// 2 numbers a product and about 4 an entry.
template <class I>
EliminationPlan elimination_plan(const I* ptr, int64_t n, const I* idx, const I* diagonal, Factors kind) {
  EliminationPlan plan;
  const bool lu = kind == Factors::lu;
  plan.lower_ptr.assign(n + 1, 0);
  plan.upper_ptr.assign(lu ? n + 1 : 0, 0);
  for (int64_t i = 0; i < n; ++i) {
    plan.lower_ptr[i + 1] = plan.lower_ptr[i] + diagonal[i] + 1 - ptr[i];
    plan.lower_idx.insert(plan.lower_idx.end(), idx + ptr[i], idx + diagonal[i] + 1);
    if (!lu) continue;
    plan.upper_ptr[i + 1] = plan.upper_ptr[i] + ptr[i + 1] - diagonal[i];
    plan.upper_idx.insert(plan.upper_idx.end(), idx + diagonal[i], idx + ptr[i + 1]);
  }
  const int64_t lower_size = plan.lower_ptr[n];
  std::vector<int64_t> upper(plan.upper_ptr);
  for (int64_t& u : upper) u += lower_size;

  // Steps: every entry after those that its equation reads.
  const auto step = [&](int64_t entry, int64_t source, int64_t pivot) {
    plan.order.push_back(entry), plan.source.push_back(source), plan.pivot.push_back(pivot);
  };
  if (lu) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t a = ptr[i]; a < diagonal[i]; ++a) step(plan.lower_ptr[i] + a - ptr[i], a, upper[idx[a]]);
      plan.units.push_back(plan.lower_ptr[i + 1] - 1);
      for (int64_t a = diagonal[i]; a < ptr[i + 1]; ++a)
        step(upper[i] + a - diagonal[i], a, a == diagonal[i] ? upper[i] : -1);
    }
  } else if (kind == Factors::cholesky) {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t a = ptr[i]; a <= diagonal[i]; ++a)
        step(plan.lower_ptr[i] + a - ptr[i], a, plan.lower_ptr[idx[a] + 1] - 1);
  } else {
    // Dropped fill (i, j) changes the diagonal of j < i too: by columns, so that column k < j is there.
    std::vector<int64_t> tptr(n + 1), tidx(lower_size), perm(lower_size);
    transpose(plan.lower_ptr.data(), n, plan.lower_idx.data(), n, tptr.data(), tidx.data(), perm.data());
    for (int64_t j = 0; j < n; ++j)
      for (int64_t c = tptr[j]; c < tptr[j + 1]; ++c) {
        const int64_t i = tidx[c], entry = perm[c];
        step(entry, ptr[i] + entry - plan.lower_ptr[i], perm[tptr[j]]);
      }
  }
  std::vector<int64_t> step_of(lower_size + (lu ? plan.upper_ptr[n] : 0), -1);
  for (size_t t = 0; t < plan.order.size(); ++t) step_of[plan.order[t]] = static_cast<int64_t>(t);

  const auto products = [&](const auto& f) {
    if (lu)
      detail::lu_products(ptr, n, idx, diagonal, plan.lower_ptr.data(), upper.data(), f);
    else
      detail::cholesky_products(plan.lower_ptr, plan.lower_idx, kind == Factors::modified_cholesky, f);
  };
  plan.ptr.assign(plan.order.size() + 1, 0);
  products([&](int64_t target, int64_t, int64_t) { ++plan.ptr[step_of[target] + 1]; });
  for (size_t t = 0; t < plan.order.size(); ++t) plan.ptr[t + 1] += plan.ptr[t];
  std::vector<int64_t> next(plan.ptr.begin(), plan.ptr.end() - 1);
  plan.pairs.resize(2 * plan.ptr.back());
  products([&](int64_t target, int64_t p, int64_t q) {
    const int64_t at = next[step_of[target]]++;
    plan.pairs[2 * at] = p, plan.pairs[2 * at + 1] = q;
  });
  return plan;
}

}  // namespace learnsolve::analysis
