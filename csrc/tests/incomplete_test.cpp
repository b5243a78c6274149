// Incomplete factors: their equations hold, and the four maps of the derivatives are what
// kernels/incomplete.h says, against plain sums over the rows of the factors.
#include "kernels/incomplete.h"

#include "analysis/incomplete.h"
#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;
using analysis::EliminationPlan;
using analysis::Factors;

// The square patterns with a diagonal put in where there is none.
std::vector<Pattern> square_patterns(Random& random) {
  std::vector<Pattern> found;
  for (Pattern& pattern : patterns(random)) {
    if (pattern.rows != pattern.cols) continue;
    for (int64_t i = 0; i < pattern.rows; ++i) {
      auto& row = pattern.columns[i];
      const auto at = std::lower_bound(row.begin(), row.end(), i);
      if (at == row.end() || *at != i) row.insert(at, i);
    }
    found.push_back(pattern);
  }
  return found;
}

template <class T, class I>
struct Problem {
  Structure<I> A;
  EliminationPlan<I> plan;
  Factors kind;
  Array<I> order, source, pivot, ptr, pairs;
  Array<T> a;
  std::string name;

  Problem(Random& random, const Pattern& pattern, Factors k, const char* types)
      : A(structure<I>(pattern, 48)), kind(k) {
    Array<I> diagonal(A.rows);
    analysis::diagonal_positions(A.ptr.data(), A.rows, A.idx.data(), diagonal.data());
    plan = analysis::elimination_plan<I>(A.ptr.data(), A.rows, A.idx.data(), diagonal.data(), kind);
    order = plan.order, source = plan.source, pivot = plan.pivot, ptr = plan.ptr, pairs = plan.pairs;
    require(2 * analysis::elimination_products(A.ptr.data(), A.rows, A.idx.data(), diagonal.data(), kind) ==
                pairs.size(),
            "elimination_products, " + A.name);
    a = uniform<T>(random, A.nnz());
    for (int64_t i = 0; i < A.rows; ++i) a[diagonal[i]] += 3 * static_cast<T>(A.rows);  // dominant
    name = A.name + ", " + types + ", kind " + std::to_string(static_cast<int>(kind));
  }
  Elimination<I> view() const {
    return {order.size(), order.data(), source.data(),      pivot.data(),
            ptr.data(),   pairs.data(), kind != Factors::lu};
  }
  int64_t entries() const { return order.size() + static_cast<int64_t>(plan.units.size()); }
  Array<T> factors() const {
    Array<T> f = unwritten<T>(entries());
    for (const int64_t u : plan.units) f[u] = 1;
    require(isa::incomplete_factor<T, I>(view(), a.data(), f.data()) == -1, "a pivot broke down, " + name);
    return f;
  }
  // (L U) or (L L^T) in row i and column j: the products l_ik u_kj, by the patterns of the factors.
  Sum product(const Array<T>& f, int64_t i, int64_t j) const {
    const auto find = [](const std::vector<I>& p, const std::vector<I>& c, int64_t r, int64_t k) {
      const auto at = std::lower_bound(c.begin() + p[r], c.begin() + p[r + 1], static_cast<I>(k));
      return at != c.begin() + p[r + 1] && *at == k ? at - c.begin() : int64_t{-1};
    };
    const bool lu = kind == Factors::lu;
    Sum sum;
    for (int64_t p = plan.lower_ptr[i]; p < plan.lower_ptr[i + 1]; ++p) {
      const int64_t k = plan.lower_idx[p];
      const int64_t q =
          lu ? find(plan.upper_ptr, plan.upper_idx, k, j) : find(plan.lower_ptr, plan.lower_idx, j, k);
      if (q >= 0) sum.add(f[p], f[lu ? plan.lower_ptr[A.rows] + q : q]);
    }
    return sum;
  }
};

// Within the backward error of elimination, |A - L U| <= gamma |L||U| (Higham, theorem 9.3).
template <class T, class I>
void equations(const Problem<T, I>& P) {
  const Array<T> f = P.factors();
  for (int64_t i = 0; i < P.A.rows; ++i) {
    for (int64_t p = P.A.ptr[i]; p < P.A.ptr[i + 1]; ++p) {
      const int64_t j = P.A.idx[p];
      if (P.kind != Factors::lu && j > i) continue;
      if (P.kind == Factors::modified_cholesky && j == i) continue;
      Sum s = P.product(f, i, j);
      s.roundings += 4;
      require(std::fabs(s.value - P.a[p]) <= error_bound<T>(s), "the equations do not hold, " + P.name);
    }
  }
}

// tangent and adjoint undo J(f) and J(f)^T; product and its adjoint are sums over the plan, and J is the
// product with f but for the entries of U.
template <class T, class I>
void derivatives(Random& random, const Problem<T, I>& P) {
  const Elimination<I> E = P.view();
  const Array<T> f = P.factors();
  const int64_t n = P.entries(), nnz = P.A.nnz();
  const Array<T> x = uniform<T>(random, n), z = uniform<T>(random, n), w = uniform<T>(random, nnz);
  std::vector<Sum> b(nnz), c(n);
  const auto term = [&](int64_t t, int64_t p, int64_t q) {
    b[E.source[t]].add(x[p], z[q]), b[E.source[t]].add(z[p], x[q]);
    c[p].add(w[E.source[t]], x[q]), c[q].add(w[E.source[t]], x[p]);
  };
  for (int64_t t = 0; t < E.steps; ++t) {
    for (int64_t u = E.ptr[t]; u < E.ptr[t + 1]; ++u) term(t, E.pairs[2 * u], E.pairs[2 * u + 1]);
    if (E.pivot[t] >= 0 && (E.cholesky || E.pivot[t] != E.order[t])) term(t, E.order[t], E.pivot[t]);
  }
  Array<T> got_b(nnz), got_c(n);
  isa::incomplete_product<T, I>(E, x.data(), z.data(), got_b.data());
  isa::incomplete_product_adjoint<T, I>(E, x.data(), w.data(), got_c.data());
  require_close(got_b, b, "incomplete_product, " + P.name);
  require_close(got_c, c, "incomplete_product_adjoint, " + P.name);

  // v = J(f) z, then back; the diagonal dominates, so an error grows by little.
  Array<T> start = z, v(nnz), back = unwritten<T>(n), g(n), back_w(nnz);
  for (const int64_t u : P.plan.units) start[u] = 0, back[u] = 0;
  isa::incomplete_product<T, I>(E, f.data(), start.data(), v.data());
  isa::incomplete_product_adjoint<T, I>(E, f.data(), w.data(), g.data());
  for (int64_t t = 0; t < E.steps; ++t)
    if (!E.cholesky && (E.pivot[t] < 0 || E.pivot[t] == E.order[t]))
      v[E.source[t]] += start[E.order[t]], g[E.order[t]] += w[E.source[t]];
  isa::incomplete_tangent<T, I>(E, f.data(), v.data(), back.data());
  isa::incomplete_adjoint<T, I>(E, f.data(), g.data(), back_w.data());
  const T tolerance = 1000 * std::numeric_limits<T>::epsilon();
  for (int64_t t = 0; t < E.steps; ++t) {
    const int64_t e = E.order[t], s = E.source[t];
    require(std::fabs(back[e] - start[e]) <= tolerance, "incomplete_tangent, " + P.name);
    require(std::fabs(back_w[s] - w[s]) <= tolerance, "incomplete_adjoint, " + P.name);
  }
}

// The first step with a bad pivot is reported. That of row 0 is A's own entry.
template <class T, class I>
void breakdown(Problem<T, I> P) {
  const int64_t steps = P.order.size();
  if (steps < 2) return;
  const auto reported = [&](int64_t t, T bad) {
    const T kept = P.a[P.source[t]];
    P.a[P.source[t]] = bad;
    Array<T> f(P.entries());
    for (const int64_t u : P.plan.units) f[u] = 1;
    const int64_t found = isa::incomplete_factor<T, I>(P.view(), P.a.data(), f.data());
    P.a[P.source[t]] = kept;
    return found == t;
  };
  const bool negative_is_bad = P.kind != Factors::lu;
  require(reported(0, T(0)), "a zero pivot is not reported, " + P.name);
  require(reported(0, T(-1)) == negative_is_bad, "a negative pivot, " + P.name);
  int64_t last = steps - 1;
  while (P.pivot[last] != P.order[last]) --last;
  require(reported(last, -std::numeric_limits<T>::infinity()),
          "an infinite pivot is not reported, " + P.name);
  require(reported(last, std::numeric_limits<T>::quiet_NaN()), "a NaN pivot is not reported, " + P.name);
}

template <class T, class I>
void all_cases(Random& random, const char* types) {
  for (const Pattern& pattern : square_patterns(random))
    for (const Factors kind : {Factors::lu, Factors::cholesky, Factors::modified_cholesky}) {
      const Problem<T, I> P(random, pattern, kind, types);
      equations(P);
      derivatives(random, P);
      breakdown(P);
    }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(incomplete) {
  using namespace learnsolve::test;
  Random random(5);
  all_cases<float, int32_t>(random, "float, int32");
  all_cases<float, int64_t>(random, "float, int64");
  all_cases<double, int32_t>(random, "double, int32");
  all_cases<double, int64_t>(random, "double, int64");
}
