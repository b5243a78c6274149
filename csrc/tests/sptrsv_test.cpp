// Triangular solves and their gradients against plain sums, and levels against their definition.
#include "kernels/sptrsv.h"

#include "analysis/levels.h"
#include "kernels/sptrsv_gradient.h"
#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;

// A pattern with a full diagonal, and its triangle.
template <class I>
struct System {
  std::string name;
  bool upper, unit;
  Array<I> ptr, idx, perm, blocks;
  int64_t n, nnz;

  System(const Structure<I>& S, bool upper_, bool unit_)
      : name(S.name), upper(upper_), unit(unit_), n(S.rows) {
    nnz = S.nnz();
    const I* from = S.permuted ? S.perm.data() : nullptr;
    const auto t = analysis::triangle<I>(S.ptr.data(), n, S.idx.data(), from, upper,
                                         analysis::triangle_rows<I>(S.ptr.data(), n, S.idx.data(), upper,
                                                                    analysis::last_diagonal(upper, unit)));
    ptr = Array<I>(t.ptr), idx = Array<I>(t.idx), perm = Array<I>(t.perm);
    blocks = Array<I>(analysis::triangle_blocks<I>(ptr.data(), n, idx.data(), perm.data()));
  }
  template <class T>
  TriangleView<T, I> view(const Array<T>& values) const {
    return {{ptr.data(), idx.data(), perm.data(), values.data()},
            blocks.data(),
            blocks.size() / 3 - 1,
            n,
            upper,
            unit};
  }
};

inline Pattern with_diagonal(Pattern p) {
  for (int64_t i = 0; i < p.rows; ++i) {
    auto& row = p.columns[i];
    if (std::find(row.begin(), row.end(), i) == row.end()) row.push_back(i);
    std::sort(row.begin(), row.end());
  }
  return p;
}

// The residual of every row is within the bound of its sums, a rounding more an entry for the reciprocal.
// Bounds of a scan are those of |T^-1|, which is small here: off-diagonal entries are scaled down.
template <class T, class I>
void solve_case(Random& random, const Structure<I>& S, bool upper, bool unit, int64_t k) {
  const System<I> system(S, upper, unit);
  const int64_t n = system.n;
  const std::string name = "sptrsv, " + system.name + ", k = " + std::to_string(k);
  Array<T> values = uniform<T>(random, system.nnz);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = system.ptr[i]; p < system.ptr[i + 1]; ++p) {
      T& v = values[system.perm[p]];
      v = system.idx[p] == i ? v + (v < 0 ? -1 : 1) : v / (4 * (system.ptr[i + 1] - system.ptr[i]));
    }
  const Array<T> b = uniform<T>(random, n * k);
  Array<T> x = unwritten<T>(n * k);
  require(isa::sptrsv<T, I>(system.view(values), b.data(), x.data(), k, 0, k), name + ": no zero");
  Array<T> product(n * k);
  std::vector<Sum> expected(n * k);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < k; ++c) {
      Sum& s = expected[i * k + c];
      s.add(b[i * k + c]);
      long double y = unit ? x[i * k + c] : 0;
      for (int64_t p = system.ptr[i]; p < system.ptr[i + 1]; ++p) {
        const long double term = static_cast<long double>(values[system.perm[p]]) * x[system.idx[p] * k + c];
        y += term, s.magnitude += 2 * std::fabs(term), s.roundings += 8;
      }
      s.magnitude += 2 * std::fabs(static_cast<long double>(x[i * k + c])), s.roundings += 8;
      product[i * k + c] = static_cast<T>(y);
    }
  require_close(product, expected, name);

  Array<T> in_place = b;
  require(isa::sptrsv<T, I>(system.view(values), in_place.data(), in_place.data(), k, 0, k),
          name + ": in place");
  require_same_bits(in_place, x, name + ", in place");

  // Levels: a row's columns lie in earlier ones, and solving them in any partition gives the same numbers.
  const auto schedule = analysis::level_schedule<I>(S.ptr.data(), n, S.idx.data(), upper);
  const int64_t depth = static_cast<int64_t>(schedule.levels.size()) - 1;
  std::vector<int64_t> level(n, -1);
  for (int64_t l = 0; l < depth; ++l)
    for (int64_t t = schedule.levels[l]; t < schedule.levels[l + 1]; ++t) level[schedule.order[t]] = l;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = system.ptr[i]; p < system.ptr[i + 1]; ++p)
      if (system.idx[p] != i)
        require(upper ? level[i] < level[system.idx[p]] : level[i] > level[system.idx[p]], "levels, " + name);
  Array<T> by_level = unwritten<T>(n * k);
  for (int64_t t = 0; t < depth; ++t) {
    const int64_t l = upper ? depth - 1 - t : t, r0 = schedule.levels[l], r1 = schedule.levels[l + 1];
    for_ranges({"rows", {r0, r0 + (r1 - r0) / 2, r1}}, [&](int64_t b0, int64_t b1) {
      isa::sptrsv_rows<T, I>(system.view(values), schedule.order.data(), b0, b1, b.data(), by_level.data(),
                             k);
    });
  }
  bool scan = false;  // of one column, the only exception
  for (int64_t t = 0; k == 1 && t + 3 < system.blocks.size(); t += 3)
    scan = scan || system.blocks[t + 1] == (unit ? 1 : 2);
  if (!scan) require_same_bits(by_level, x, name + ", by levels");

  Array<T> start = uniform<T>(random, system.nnz), ga = start, parts = start;
  isa::sptrsv_gradient<T, I>(system.view(values), 0, n, b.data(), x.data(), k, ga.data(), true);
  std::vector<Sum> gradient(system.nnz);
  for (int64_t q = 0; q < system.nnz; ++q) gradient[q].add(start[q]);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = system.ptr[i]; p < system.ptr[i + 1]; ++p)
      for (int64_t c = 0; c < k; ++c)
        gradient[system.perm[p]].add(-static_cast<long double>(b[i * k + c]), x[system.idx[p] * k + c]);
  require_close(ga, gradient, "sptrsv_gradient, " + name);
  for_ranges({"rows", {0, n / 3, n}}, [&](int64_t r0, int64_t r1) {
    isa::sptrsv_gradient<T, I>(system.view(values), r0, r1, b.data(), x.data(), k, parts.data(), true);
  });
  require_same_bits(parts, ga, "sptrsv_gradient, " + name);

  if (!unit && n > 0 && k > 0) {
    const int64_t i = n / 2;
    values[system.perm[upper ? system.ptr[i] : system.ptr[i + 1] - 1]] = 0;
    require(!isa::sptrsv<T, I>(system.view(values), b.data(), x.data(), k, 0, k), name + ": a zero is found");
  }
}

template <class T, class I>
void all_cases(Random& random) {
  std::vector<Pattern> tried = patterns(random);
  for (const Pattern& p : vector_patterns()) tried.push_back(p);
  tried.push_back(banded(41, 41, {-1}));
  tried.push_back(banded(41, 41, {-2, -1}));
  tried.push_back(banded(60, 60, {-20, -7, -1, 1, 3}));
  for (const Pattern& p : tried) {
    if (p.rows != p.cols) continue;
    const Structure<I> S = structure<I>(with_diagonal(p), 48);
    for (const int64_t k : {1, 2, 7, 33})
      for (const bool upper : {false, true})
        for (const bool unit : {false, true}) {
          if (kThreads && k > 1 && k < 33) continue;
          solve_case<T, I>(random, S, upper, unit, k);
          solve_case<T, I>(random, transposed(S, 48), upper, unit, k);
        }
  }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(sptrsv) {
  using namespace learnsolve::test;
  Random random(5);
  all_cases<float, int32_t>(random);
  all_cases<double, int32_t>(random);
  all_cases<double, int64_t>(random);
}
