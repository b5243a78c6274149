// The bodies of the CUDA kernels for triangular solves (kernels/triangular.cuh): rows by level in any order,
// gradients by entry, against the host's sweep.
#include "tests/triangles.h"

namespace learnsolve::test {
namespace {

// All results by levels; the rows of each, and the lanes of each row, forwards or backwards.
template <int N, class T, class I, class F>
Array<T> by_levels(const Triangles<T, I>& S, const Array<T>& b, int64_t k, bool backwards, const F& flags,
                   bool in_place) {
  const int64_t depth = S.bounds.size() - 1, step = S.n * k;
  Array<T> x = in_place ? b : unwritten<T>(S.batch * step);
  const cuda::Sides<T> sides{in_place ? x.data() : b.data(), x.data(), step, step, k};
  const cuda::HostTeam<N> team{backwards};
  for (int64_t n = 0; n < depth; ++n) {
    const int64_t l = S.upper ? depth - 1 - n : n, begin = S.bounds[l], end = S.bounds[l + 1];
    for (int64_t t = begin; t < end; ++t)
      for (int64_t c = 0; c < k; ++c)
        for (int64_t m = 0; m < S.batch; ++m)
          cuda::solve_row(team, S.on_device(), sides, S.order[backwards ? begin + end - 1 - t : t], c, m,
                          flags);
  }
  return x;
}

// The same by one block of 4 lanes, all levels in one sweep.
template <class T, class I>
Array<T> by_sweep(const Triangles<T, I>& S, const Array<T>& b, int64_t k, bool backwards) {
  const int64_t depth = S.bounds.size() - 1, step = S.n * k;
  Array<T> x = b;
  const cuda::Sides<T> sides{x.data(), x.data(), step, step, k};
  const auto bound = [&](int64_t n, bool end) { return S.bounds[(S.upper ? depth - 1 - n : n) + end]; };
  for (int64_t m = 0; m < S.batch; ++m)
    for (int64_t c = 0; c < k; c += 3)
      cuda::sweep_levels(cuda::HostTeam<4>{backwards}, S.on_device(), sides, S.order.data(), depth, bound, c,
                         static_cast<int>(std::min<int64_t>(k - c, 3)), m);
  return x;
}

template <int N, class T, class I>
void lanes_case(const Triangles<T, I>& S, const Array<T>& b, int64_t k, const Array<T>& wanted) {
  const std::string name = S.name + ", " + std::to_string(N) + " lanes, k = " + std::to_string(k);
  const Array<T> x = by_levels<N>(S, b, k, false, cuda::NoFlags{}, false);
  require_near(x, wanted, "rows by level, " + name);
  require_same_bits(by_levels<N>(S, b, k, true, cuda::NoFlags{}, false), x, name + ", backwards");
  Array<int32_t> done(S.batch * S.n * k);
  require_same_bits(by_levels<N>(S, b, k, true, cuda::Flags{done.data()}, true), x, name + ", in place");
  for (int64_t i = 0; i < done.size(); ++i) require(done[i] == 1, "a result without its flag, " + name);
  if (N > 1) return;
  for (const bool backwards : {false, true})
    require_same_bits(by_sweep(S, b, k, backwards), x, name + ", in one sweep");
}

template <class T, class I>
void gradient_case(Random& random, const Triangles<T, I>& S, int64_t k) {
  const int64_t step = S.n * k;
  Array<I> rows(S.idx.size());
  for (int64_t i = 0; i < S.n; ++i)
    for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p) rows[p] = static_cast<I>(i);
  const Array<T> u = uniform<T>(random, S.batch * step), w = uniform<T>(random, S.batch * step);
  std::vector<Sum> expected(S.idx.size());
  for (int64_t p = 0; p < S.idx.size(); ++p)
    for (int64_t m = 0; m < S.batch; ++m)
      for (int64_t c = 0; c < k; ++c)
        expected[p].add(-static_cast<long double>(u[m * step + rows[p] * k + c]),
                        w[m * step + S.idx[p] * k + c]);
  for (const bool backwards : {false, true}) {
    Array<T> ga = unwritten<T>(S.nnz), in_order(S.idx.size());
    for (int64_t p = 0; p < S.idx.size(); ++p) {
      cuda::entry_gradient(cuda::HostTeam<8>{backwards}, rows.data(), S.idx.data(), S.perm.data(), p,
                           u.data(), w.data(), step, k, S.batch, ga.data());
      in_order[p] = ga[S.perm[p]];
    }
    require_close(in_order, expected, "gradients by entry, " + S.name);
  }
}

template <class T, class I>
void all_cases(Random& random) {
  std::vector<Pattern> tried = patterns(random);
  tried.push_back(banded(60, 60, {-20, -7, -1, 1, 3}));
  for (Pattern& pattern : tried) {
    if (pattern.rows != pattern.cols) continue;
    for (int64_t i = 0; i < pattern.rows; ++i) {
      auto& row = pattern.columns[i];
      const auto at = std::lower_bound(row.begin(), row.end(), i);
      if (at == row.end() || *at != i) row.insert(at, i);
    }
    const Structure<I> A = structure<I>(pattern, 48);
    for (const bool upper : {false, true})
      for (const bool unit : {false, true})
        for (const Structure<I>& side : {A, transposed(A, 48)}) {
          const Triangles<T, I> S(random, side, upper, unit);
          for (const int64_t k : {1, 5}) {
            const Array<T> b = uniform<T>(random, S.batch * S.n * k), wanted = S.on_host(b, k);
            lanes_case<1>(S, b, k, wanted);
            lanes_case<8>(S, b, k, wanted);
            lanes_case<32>(S, b, k, wanted);
            gradient_case(random, S, k);
          }
        }
  }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(device_triangular) {
  using namespace learnsolve::test;
  Random random(17);
  all_cases<float, int32_t>(random);
  all_cases<double, int64_t>(random);
}
