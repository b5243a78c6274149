// Incomplete factors: their equations hold, and the four maps of the derivatives are what
// kernels/incomplete.h says, against plain sums over the rows of the factors.
#include "kernels/incomplete.h"

#include "analysis/incomplete.h"
#include "analysis/levels.h"
#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;
using analysis::Factors;

constexpr float kOmega = 0.625f;

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
  Factors kind;
  std::vector<I> lower_ptr, lower_idx, upper_ptr, upper_idx;  // patterns of the factors
  Array<I> order, source, pivot, ptr, pairs, units;
  Array<T> a;
  std::string name;

  Problem(Random& random, const Pattern& pattern, Factors k, const char* types)
      : A(structure<I>(pattern, 48)), kind(k) {
    Array<I> diagonal(A.rows);
    analysis::diagonal_positions(A.ptr.data(), A.rows, A.idx.data(), diagonal.data());
    const auto products = [&](int64_t enough) {
      return analysis::elimination_products(A.ptr.data(), A.rows, A.idx.data(), diagonal.data(), kind,
                                            enough);
    };
    const auto plan =
        analysis::elimination_plan<I>(A.ptr.data(), A.rows, A.idx.data(), diagonal.data(), kind, A.rows);
    const auto copy = [](const analysis::Growing<I>& from, int64_t n) {
      return Array<I>(std::vector<I>(from.data(), from.data() + n));
    };
    order = copy(plan.order, plan.steps), source = copy(plan.source, plan.steps);
    pivot = copy(plan.pivot, plan.steps), ptr = copy(plan.ptr, plan.steps + 1);
    pairs = copy(plan.pairs, 2 * plan.products), units = copy(plan.units, plan.ones);
    require(products(-1) == plan.products, "elimination_products, " + A.name);
    const int64_t bound = products(int64_t{1} << 40);
    require(bound >= plan.products, "a bound on elimination_products, " + A.name);
    for (const bool upper : {false, true}) {
      const auto t =
          analysis::triangle<I>(A.ptr.data(), A.rows, A.idx.data(), nullptr, upper,
                                analysis::triangle_rows<I>(A.ptr.data(), A.rows, A.idx.data(), upper, 0));
      (upper ? upper_ptr : lower_ptr) = t.ptr, (upper ? upper_idx : lower_idx) = t.idx;
    }
    a = uniform<T>(random, A.nnz());
    for (int64_t i = 0; i < A.rows; ++i) a[diagonal[i]] += 3 * static_cast<T>(A.rows);  // dominant
    if (kind == Factors::relaxed_cholesky) {
      std::vector<T> with_omega(a.data(), a.data() + A.nnz());
      with_omega.push_back(-kOmega);
      with_omega.resize(A.nnz() + 1 + lower_idx.size(), 0);
      a = Array<T>(with_omega);
    }
    name = A.name + ", " + types + ", kind " + std::to_string(static_cast<int>(kind));
  }
  Elimination<I> view() const {
    return {order.size(), order.data(), source.data(),      pivot.data(),
            ptr.data(),   pairs.data(), kind != Factors::lu};
  }
  bool modified() const { return kind != Factors::lu && kind != Factors::cholesky; }
  int64_t entries() const { return order.size() + units.size(); }
  void set_units(Array<T>& f, T value) const {
    for (int64_t i = 0; i < units.size(); ++i) f[units[i]] = value;
  }
  Array<T> factors() const {
    Array<T> f = unwritten<T>(entries());
    set_units(f, 1);
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
    for (int64_t p = lower_ptr[i]; p < lower_ptr[i + 1]; ++p) {
      const int64_t k = lower_idx[p];
      const int64_t q = lu ? find(upper_ptr, upper_idx, k, j) : find(lower_ptr, lower_idx, j, k);
      if (q >= 0) sum.add(f[p], f[lu ? lower_ptr[A.rows] + q : q]);
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
      if (P.modified() && j == i) continue;
      Sum s = P.product(f, i, j);
      s.roundings += 4;
      require(std::fabs(s.value - P.a[p]) <= error_bound<T>(s), "the equations do not hold, " + P.name);
    }
  }
}

// Those of the diagonal of a modified factor: with omega times the products of dropped fill in row i, the sum
// of the row is A's.
template <class T, class I>
void row_sums(const Problem<T, I>& P) {
  if (!P.modified()) return;
  const Array<T> f = P.factors();
  const T omega = P.kind == Factors::relaxed_cholesky ? kOmega : T(1);
  const int64_t n = P.A.rows;
  std::vector<Sum> sums(n);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      const Sum s = P.product(f, i, j);
      const auto begin = P.lower_idx.begin();
      const bool kept =
          std::binary_search(begin + P.lower_ptr[i], begin + P.lower_ptr[i + 1], static_cast<I>(j));
      const long double part = kept && j < i ? 0 : kept ? 1 : omega;
      for (const int64_t r : {i, j}) {
        sums[r].value += (i == j ? 0.5L : 1) * part * s.value;
        sums[r].magnitude += s.magnitude, sums[r].roundings += s.roundings + 4;
      }
    }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = P.A.ptr[i]; p < P.A.ptr[i + 1]; ++p)
      if (P.A.idx[p] == i)
        require(std::fabs(sums[i].value - P.a[p]) <= error_bound<T>(sums[i]), "a row sum changes, " + P.name);
}

// tangent and adjoint undo J(f) and J(f)^T; product and its adjoint are sums over the plan, and J is the
// product with f but for the entries of U.
template <class T, class I>
void derivatives(Random& random, const Problem<T, I>& P) {
  const Elimination<I> E = P.view();
  const Array<T> f = P.factors();
  const int64_t n = P.entries(), nnz = P.a.size();
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
  P.set_units(start, 0), P.set_units(back, 0);
  isa::incomplete_product<T, I>(E, f.data(), start.data(), v.data());
  isa::incomplete_product_adjoint<T, I>(E, f.data(), w.data(), g.data());
  for (int64_t t = 0; t < E.steps; ++t)
    if (E.pivot[t] < 0 || (!E.cholesky && E.pivot[t] == E.order[t]))
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
  if (steps < 2 || P.A.rows == 0) return;
  const auto reported = [&](int64_t t, T bad) {
    const T kept = P.a[P.source[t]];
    P.a[P.source[t]] = bad;
    Array<T> f(P.entries());
    P.set_units(f, 1);
    const int64_t found = isa::incomplete_factor<T, I>(P.view(), P.a.data(), f.data());
    P.a[P.source[t]] = kept;
    return found == t;
  };
  const bool negative_is_bad = P.kind != Factors::lu;
  int64_t first = 0;
  while (P.pivot[first] != P.order[first]) ++first;
  require(reported(first, T(0)), "a zero pivot is not reported, " + P.name);
  require(reported(first, T(-1)) == negative_is_bad, "a negative pivot, " + P.name);
  int64_t last = steps - 1;
  while (P.pivot[last] != P.order[last]) --last;
  require(reported(last, -std::numeric_limits<T>::infinity()),
          "an infinite pivot is not reported, " + P.name);
  require(reported(last, std::numeric_limits<T>::quiet_NaN()), "a NaN pivot is not reported, " + P.name);
}

template <class T, class I>
void all_cases(Random& random, const char* types) {
  for (const Pattern& pattern : square_patterns(random))
    for (const Factors kind :
         {Factors::lu, Factors::cholesky, Factors::modified_cholesky, Factors::relaxed_cholesky}) {
      const Problem<T, I> P(random, pattern, kind, types);
      equations(P);
      row_sums(P);
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
