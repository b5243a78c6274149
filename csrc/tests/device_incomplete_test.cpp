// The bodies of the CUDA kernels for incomplete factorization (kernels/incomplete.cuh): steps of a level in
// any order, against the host's sweeps.
#include "analysis/incomplete.h"
#include "kernels/incomplete.cuh"
#include "kernels/incomplete.h"
#include "tests/cases.h"
#include "tests/schedules.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;
using analysis::Factors;

// A plan in its own order for the host, by levels for the device (learnsolve/ops/core/incomplete.py).
template <class I>
struct Plans {
  Structure<I> A;
  analysis::EliminationPlan<I> host;
  std::vector<I> order, source, pivot, ptr{0}, pairs, uses_ptr{0}, uses;
  std::vector<int64_t> levels{0};
  bool cholesky;

  Plans(const Pattern& pattern, Factors kind) : A(structure<I>(pattern, 48)), cholesky(kind != Factors::lu) {
    Array<I> diagonal(A.rows);
    analysis::diagonal_positions(A.ptr.data(), A.rows, A.idx.data(), diagonal.data());
    host = analysis::elimination_plan<I>(A.ptr.data(), A.rows, A.idx.data(), diagonal.data(), kind);
    const int64_t steps = static_cast<int64_t>(host.order.size());
    std::vector<int64_t> level(steps), by_level(steps);
    analysis::elimination_levels(steps, host.order.data(), host.pivot.data(), host.ptr.data(),
                                 host.pairs.data(), entries(), level.data());
    for (int64_t t = 0; t < steps; ++t) by_level[t] = t;
    std::stable_sort(by_level.begin(), by_level.end(),
                     [&](int64_t s, int64_t t) { return level[s] < level[t]; });
    std::vector<std::vector<I>> uses_of(entries());
    for (int64_t n = 0; n < steps; ++n) {
      const int64_t t = by_level[n];
      if (n > 0 && level[t] != level[by_level[n - 1]]) levels.push_back(n);
      const I e = host.order[t], from = host.source[t], d = host.pivot[t];
      order.push_back(e), source.push_back(from), pivot.push_back(d);
      for (int64_t u = host.ptr[t]; u < host.ptr[t + 1]; ++u) {
        const I p = host.pairs[2 * u], q = host.pairs[2 * u + 1];
        pairs.insert(pairs.end(), {p, q});
        uses_of[p].insert(uses_of[p].end(), {from, q});
        uses_of[q].insert(uses_of[q].end(), {from, p});
      }
      if (d >= 0 && d != e) uses_of[d].insert(uses_of[d].end(), {from, e});
      ptr.push_back(static_cast<I>(pairs.size() / 2));
    }
    if (steps > 0) levels.push_back(steps);
    for (const auto& list : uses_of) {
      uses.insert(uses.end(), list.begin(), list.end());
      uses_ptr.push_back(static_cast<I>(uses.size() / 2));
    }
  }
  int64_t entries() const { return static_cast<int64_t>(host.order.size() + host.units.size()); }
  Elimination<I> on_host() const {
    return {static_cast<int64_t>(host.order.size()),
            host.order.data(),
            host.source.data(),
            host.pivot.data(),
            host.ptr.data(),
            host.pairs.data(),
            cholesky};
  }
  cuda::LevelPlan<I> on_device() const {
    return {{static_cast<int64_t>(order.size()), order.data(), source.data(), pivot.data(), ptr.data(),
             pairs.data(), cholesky},
            levels.data(),
            uses_ptr.data(),
            uses.data(),
            entries(),
            A.nnz(),
            1};
  }
  // Level by level, the steps of each in turn, forwards or backwards.
  template <class Step>
  void run(const Step& step, bool backwards) const {
    const int64_t count = static_cast<int64_t>(levels.size()) - 1;
    for (int64_t n = 0; n < count; ++n) {
      const int64_t level = Step::kReversed ? count - 1 - n : n, begin = levels[level],
                    end = levels[level + 1];
      for (int64_t t = begin; t < end; ++t) step(backwards ? begin + end - 1 - t : t, 0);
    }
  }
};

// To a few roundings: the host and the device add up the same terms, in other orders.
template <class T>
void require_near(const Array<T>& a, const Array<T>& b, const std::string& what) {
  for (int64_t i = 0; i < a.size(); ++i) {
    const T far = std::fabs(a[i] - b[i]), scale = 1 + std::fabs(a[i]) + std::fabs(b[i]);
    require(far <= 2000 * std::numeric_limits<T>::epsilon() * scale, what);
  }
}

template <class T, class I>
void incomplete_case(Random& random, const Pattern& pattern, Factors kind) {
  const Plans<I> plans(pattern, kind);
  const cuda::LevelPlan<I> P = plans.on_device();
  const Elimination<I> E = plans.on_host();
  const int64_t n = plans.entries(), nnz = plans.A.nnz(), rows = plans.A.rows;
  const std::string name = pattern.name + ", kind " + std::to_string(static_cast<int>(kind));
  Array<T> a = uniform<T>(random, nnz);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t p = plans.A.ptr[i]; p < plans.A.ptr[i + 1]; ++p)
      if (plans.A.idx[p] == i) a[p] += 3 * static_cast<T>(rows);
  const Array<T> v = uniform<T>(random, nnz), g = uniform<T>(random, n), x = uniform<T>(random, n);
  const auto with_units = [&](T value) {
    Array<T> f = unwritten<T>(n);
    for (const int64_t u : plans.host.units) f[u] = value;
    return f;
  };
  Array<T> f = with_units(1), z = with_units(0), used = g, w(nnz), b(nnz), c(n);
  require(isa::incomplete_factor<T, I>(E, a.data(), f.data()) == -1, "a pivot broke down, " + name);
  isa::incomplete_tangent<T, I>(E, f.data(), v.data(), z.data());
  isa::incomplete_adjoint<T, I>(E, f.data(), used.data(), w.data());
  isa::incomplete_product<T, I>(E, x.data(), g.data(), b.data());
  isa::incomplete_product_adjoint<T, I>(E, x.data(), v.data(), c.data());
  for (const bool backwards : {false, true}) {
    Array<T> df = with_units(1), dz = with_units(0), dw(nnz), db(nnz), dc(n);
    plans.run(cuda::FactorStep<T, I>{P, {a.data(), 0}, df.data()}, backwards);
    plans.run(cuda::TangentStep<T, I>{P, {f.data(), 0}, {v.data(), 0}, dz.data()}, backwards);
    plans.run(cuda::AdjointStep<T, I>{P, {f.data(), 0}, {g.data(), 0}, dw.data()}, backwards);
    const cuda::ProductStep<T, I> product{P, {x.data(), 0}, {g.data(), 0}, db.data()};
    const cuda::ProductAdjointStep<T, I> adjoint{P, {x.data(), 0}, {v.data(), 0}, dc.data()};
    for (int64_t t = 0; t < E.steps; ++t) product(t, 0), adjoint(t, 0);
    require_near(df, f, "factor by levels, " + name);
    require_near(dz, z, "tangent by levels, " + name);
    require_near(dw, w, "adjoint by levels, " + name);
    require_near(db, b, "product by levels, " + name);
    require_near(dc, c, "adjoint of the product by levels, " + name);

    int64_t firsts[8];
    double breakdown[2];
    const cuda::HostTeam<8> team{backwards};
    cuda::find_breakdown(team, P, plans.A.ptr.data(), rows, df.data(), firsts, breakdown);
    require(breakdown[0] == -1, "a breakdown is found where there is none, " + name);
    if (rows == 0) continue;
    Array<T> bad = a;  // the diagonal of the first row: nothing comes before it
    bad[0] = plans.A.idx[0] == 0 ? T(0) : bad[0];
    plans.run(cuda::FactorStep<T, I>{P, {bad.data(), 0}, df.data()}, backwards);
    cuda::find_breakdown(team, P, plans.A.ptr.data(), rows, df.data(), firsts, breakdown);
    require(breakdown[0] == 0 && breakdown[1] == 0, "a breakdown is not found, " + name);
  }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(device_incomplete) {
  using namespace learnsolve::test;
  Random random(13);
  for (Pattern& pattern : patterns(random)) {
    if (pattern.rows != pattern.cols) continue;
    for (int64_t i = 0; i < pattern.rows; ++i) {
      auto& row = pattern.columns[i];
      const auto at = std::lower_bound(row.begin(), row.end(), i);
      if (at == row.end() || *at != i) row.insert(at, i);
    }
    for (const Factors kind : {Factors::lu, Factors::cholesky, Factors::modified_cholesky}) {
      incomplete_case<float, int32_t>(random, pattern, kind);
      incomplete_case<double, int64_t>(random, pattern, kind);
    }
  }
}
