// Complete fill is that of levels without a limit, and there the complete factorization and its derivatives
// are the incomplete ones, in another order of the sums.
#include "kernels/complete_factor.h"

#include "analysis/complete_fill.h"
#include "analysis/incomplete.h"
#include "analysis/level_fill.h"
#include "analysis/pattern.h"
#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;
using analysis::Factors;

template <class T, class I>
void complete(Random& random, const Pattern& pattern, bool lu) {
  const std::string name = pattern.name + (lu ? ", LU" : ", Cholesky");
  const int64_t n = pattern.rows;
  std::vector<std::vector<char>> there(n, std::vector<char>(n, 0));
  for (int64_t i = 0; i < n; there[i][i] = 1, ++i)
    for (const int64_t j : pattern.columns[i]) there[i][j] = there[j][i] = 1;
  std::vector<I> ptr{0}, idx, order(n);
  for (int64_t i = 0; i < n; ++i) {
    order[i] = static_cast<I>(i);
    for (int64_t j = 0; j < n; ++j)
      if (there[i][j]) idx.push_back(static_cast<I>(j));
    ptr.push_back(static_cast<I>(idx.size()));
  }
  const auto L = analysis::complete_fill(ptr.data(), n, idx.data(), order.data(), int64_t{1} << 40);
  const auto full = analysis::level_fill(ptr.data(), n, idx.data(), n);
  // The pattern that the incomplete factorization has: all of it for L U, else the lower triangle.
  std::vector<I> own_ptr{0}, own, row_ptr(L.ptr.begin(), L.ptr.end()), col(L.idx.begin(), L.idx.end());
  std::vector<int64_t> lower;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t p = full.ptr[i]; p < full.ptr[i + 1]; ++p) {
      if (full.idx[p] <= i) lower.push_back(full.idx[p]);
      if (full.idx[p] <= i || lu) own.push_back(static_cast<I>(full.idx[p]));
    }
    own_ptr.push_back(static_cast<I>(own.size()));
  }
  require(lower == L.idx && L.entries == static_cast<int64_t>(lower.size()), "complete_fill, " + name);

  const auto nnz = static_cast<int64_t>(own.size()), entries = (lu ? 2 : 1) * L.entries;
  std::vector<I> diagonal(n), column_ptr(n + 1), row(col.size()), at(col.size()), perm(col.size()), next(n);
  analysis::diagonal_positions(own_ptr.data(), n, own.data(), diagonal.data());
  const auto plan = analysis::elimination_plan<I>(own_ptr.data(), n, own.data(), diagonal.data(),
                                                  lu ? Factors::lu : Factors::cholesky, n);
  const Elimination<I> E{plan.steps,
                         plan.order.data(),
                         plan.source.data(),
                         plan.pivot.data(),
                         plan.ptr.data(),
                         plan.pairs.data(),
                         !lu};
  analysis::transpose(row_ptr.data(), n, col.data(), n, column_ptr.data(), row.data(), perm.data());
  for (size_t q = 0; q < perm.size(); ++q) at[perm[q]] = static_cast<I>(q);
  for (int64_t j = n - 1; j >= 0; --j) {
    const int64_t length = column_ptr[j + 1] - column_ptr[j];
    const bool joined = j + 1 < n && length > 1 && row[column_ptr[j] + 1] == j + 1 &&
                        length == column_ptr[j + 2] - column_ptr[j + 1] + 1;
    next[j] = joined ? next[j + 1] : static_cast<I>(j + 1);
  }
  const CompleteFill<I> F{n,          row_ptr.data(), col.data(), at.data(), column_ptr.data(),
                          row.data(), next.data(),    !lu};

  Array<T> a = uniform<T>(random, nnz), work = unwritten<T>(3 * L.entries + 32 * n);
  for (int64_t i = 0; i < n; ++i) a[diagonal[i]] += 3 * static_cast<T>(n);
  const auto with_units = [&](Array<T> f, T value) {
    for (int64_t i = 0; i < plan.ones; ++i) f[plan.units.data()[i]] = value;
    return f;
  };
  const auto compare = [&](const Array<T>& found, const Array<T>& wanted, const char* what) {
    T largest = 1;
    for (int64_t i = 0; i < wanted.size(); ++i) largest = std::max(largest, std::fabs(wanted[i]));
    for (int64_t i = 0; i < wanted.size(); ++i)
      require(std::fabs(found[i] - wanted[i]) <= 200 * std::numeric_limits<T>::epsilon() * largest,
              what + (", " + name));
  };
  const auto check = [&](const auto& C) {
    const Array<T> g = uniform<T>(random, entries), w = uniform<T>(random, nnz);
    Array<T> f = unwritten<T>(entries), wanted = with_units(Array<T>(entries), 1), z = f,
             wanted_z = with_units(Array<T>(entries), 0), b = unwritten<T>(nnz), wanted_b(nnz), used = g;
    T pivot = 0;
    require(C.factor(a.data(), f.data(), &pivot) == -1, "a pivot broke down, " + name);
    isa::incomplete_factor<T, I>(E, a.data(), wanted.data());
    compare(f, wanted, "factor");
    C.tangent(f.data(), w.data(), z.data());
    isa::incomplete_tangent<T, I>(E, f.data(), w.data(), wanted_z.data());
    compare(z, wanted_z, "tangent");
    C.adjoint(f.data(), g.data(), b.data());
    isa::incomplete_adjoint<T, I>(E, f.data(), used.data(), wanted_b.data());
    compare(b, wanted_b, "adjoint");
    const Array<T> x = with_units(g, 0);
    C.product(f.data(), x.data(), b.data());
    isa::incomplete_product<T, I>(E, f.data(), x.data(), wanted_b.data());
    compare(b, wanted_b, "product");
    wanted_z = Array<T>(entries);
    C.product_adjoint(f.data(), w.data(), z.data());
    isa::incomplete_product_adjoint<T, I>(E, f.data(), w.data(), wanted_z.data());
    compare(z, wanted_z, "product_adjoint");
    if (n == 0) return;
    for (const T bad : {lu ? T(0) : T(-1), std::numeric_limits<T>::quiet_NaN()}) {
      Array<T> spoiled = a;
      for (int64_t p = own_ptr[0]; p < own_ptr[1]; ++p) spoiled[p] = bad;  // row 0, eliminated first
      require(C.factor(spoiled.data(), f.data(), &pivot) == 0, "a bad pivot is not reported, " + name);
    }
  };
  if (lu)
    check(isa::CompleteFactor<true, T, I>(F, work.data()));
  else
    check(isa::CompleteFactor<false, T, I>(F, work.data()));
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(complete_factor) {
  using namespace learnsolve::test;
  Random random(6);
  for (const Pattern& pattern : patterns(random))
    if (pattern.rows == pattern.cols)
      for (const bool lu : {false, true}) {
        complete<float, int32_t>(random, pattern, lu);
        complete<double, int64_t>(random, pattern, lu);
      }
}
