// The bodies of the CUDA kernels for triangular solves (kernels/triangular.cuh): rows by level in any order,
// chains by scans, gradients by entry, against the host's sweep.
#include "analysis/levels.h"
#include "kernels/sptrsv.h"
#include "kernels/triangular.cuh"
#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;

// The triangle of a pattern with a full diagonal, `batch` sets of values whose solutions stay small.
template <class T, class I>
struct Triangles {
  std::string name;
  bool upper, unit;
  int64_t n, nnz, batch = 2;
  Array<I> ptr, idx, perm, blocks, order, bounds;
  Array<T> values;

  Triangles(Random& random, const Structure<I>& S, bool upper_, bool unit_)
      : name(S.name + (upper_ ? ", upper" : ", lower") + (unit_ ? ", unit" : "")),
        upper(upper_),
        unit(unit_),
        n(S.rows),
        nnz(S.nnz()) {
    const auto t = analysis::triangle<I>(S.ptr.data(), n, S.idx.data(), S.permuted ? S.perm.data() : nullptr,
                                         upper, unit);
    ptr = Array<I>(t.ptr), idx = Array<I>(t.idx), perm = Array<I>(t.perm);
    blocks = Array<I>(analysis::triangle_blocks<I>(ptr.data(), n, idx.data(), perm.data()));
    const auto schedule = analysis::level_schedule<I>(S.ptr.data(), n, S.idx.data(), upper);
    order = Array<I>(schedule.order), bounds = Array<I>(schedule.levels);
    values = uniform<T>(random, batch * nnz);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p)
        for (int64_t m = 0; m < batch; ++m) {
          T& v = values[m * nnz + perm[p]];
          v = idx[p] == i ? v + (v < 0 ? -1 : 1) : v / (4 * (ptr[i + 1] - ptr[i]));
        }
  }
  cuda::Triangle<T, I> on_device() const {
    return {ptr.data(), idx.data(), perm.data(), values.data(), nnz, n, upper, unit};
  }
  Array<T> on_host(const Array<T>& b, int64_t k) const {
    Array<T> x = unwritten<T>(batch * n * k);
    for (int64_t m = 0; m < batch; ++m) {
      const TriangleView<T, I> view{{ptr.data(), idx.data(), perm.data(), values.data() + m * nnz},
                                    blocks.data(),
                                    blocks.size() / 3 - 1,
                                    n,
                                    upper,
                                    unit};
      const int64_t at = m * n * k;
      require(isa::sptrsv<T, I>(view, b.data() + at, x.data() + at, k, 0, k), name + ": no zero");
    }
    return x;
  }
};

template <class T>
void require_near(const Array<T>& a, const Array<T>& b, const std::string& what) {
  for (int64_t i = 0; i < a.size(); ++i) {
    const T far = std::fabs(a[i] - b[i]), scale = 1 + std::fabs(a[i]) + std::fabs(b[i]);
    require(far <= 200 * std::numeric_limits<T>::epsilon() * scale, what);
  }
}

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

template <int N, class T, class I>
void lanes_case(const Triangles<T, I>& S, const Array<T>& b, int64_t k, const Array<T>& wanted) {
  const std::string name = S.name + ", " + std::to_string(N) + " lanes, k = " + std::to_string(k);
  const Array<T> x = by_levels<N>(S, b, k, false, cuda::NoFlags{}, false);
  require_near(x, wanted, "rows by level, " + name);
  require_same_bits(by_levels<N>(S, b, k, true, cuda::NoFlags{}, false), x, name + ", backwards");
  Array<int32_t> done(S.batch * S.n * k);
  require_same_bits(by_levels<N>(S, b, k, true, cuda::Flags{done.data()}, true), x, name + ", in place");
  for (int64_t i = 0; i < done.size(); ++i) require(done[i] == 1, "a result without its flag, " + name);
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

constexpr int kLanes = 8, kRows = 2;
constexpr int64_t kChunk = kLanes * kRows;

// A chain as three launches do it: maps of chunks, their ends, results.
template <class T, class I>
Array<T> by_scan(const cuda::Triangle<T, I>& S, const Array<T>& b, int64_t k, int64_t c, bool backwards) {
  const cuda::HostTeam<kLanes> team{backwards};
  Array<T> x = b;
  const cuda::Chain<T, I> C{S, x.data() + c, x.data() + c, k};
  const int64_t n = S.rows, chunks = (n + kChunk - 1) / kChunk;
  std::vector<cuda::Affine<T>> maps(chunks), parts(2 * kLanes);
  std::vector<T> ends(chunks);
  const auto end = [&](int64_t t) { return std::min((t + 1) * kChunk, n); };
  for (int64_t t = 0; t < chunks; ++t)
    cuda::chunk_map<kRows>(team, C, t * kChunk, end(t), parts.data(), &maps[t]);
  cuda::chunk_ends(team, C, kChunk, maps.data(), parts.data(), ends.data());
  for (int64_t t = chunks; t-- > 0;)
    cuda::solve_chunk<kRows>(team, C, t * kChunk, end(t), t == 0 ? T(0) : ends[t - 1], parts.data());
  return x;
}

template <class T, class I>
void chain_case(Random& random, int64_t n, bool transpose, bool upper, bool unit) {
  const Structure<I> P = structure<I>(banded(n, n, {-1, 0, 1}), 48);
  Triangles<T, I> S(random, transpose ? transposed(P, 48) : P, upper, unit);
  const std::string name = "scan, " + std::to_string(n) + " rows, " + S.name;
  const int64_t k = 3;
  const cuda::Triangle<T, I> view = S.on_device();
  const Array<T> b = uniform<T>(random, S.batch * n * k), wanted = S.on_host(b, k);
  const auto scanned = [&](const Array<T>& b) {
    Array<T> x = by_scan(view, b, k, 1, false);
    require_same_bits(by_scan(view, b, k, 1, true), x, name + ", backwards");
    return x;
  };
  const auto row = [&](int64_t t) { return upper ? n - 1 - t : t; };
  Array<T> x = scanned(b);
  for (int64_t t = 0; t < n; ++t) {
    const int64_t at = row(t) * k + 1;
    require(std::fabs(x[at] - wanted[at]) <= 200 * std::numeric_limits<T>::epsilon(), name);
  }
  // A NaN spreads from where it is.
  Array<T> with_nan = b;
  with_nan[row(n / 2) * k + 1] = std::numeric_limits<T>::quiet_NaN();
  x = scanned(with_nan);
  for (int64_t t = 0; t < n; ++t)
    require((x[row(t) * k + 1] != x[row(t) * k + 1]) == (t >= n / 2), name + ", NaN");
  // So does what has no reciprocal.
  if (!unit) {
    T& d = S.values[S.perm[2 * row(n / 2)]];
    const T before = d;
    d = 0;
    x = scanned(b);
    for (int64_t t = 0; t < n; ++t)
      require((x[row(t) * k + 1] != x[row(t) * k + 1]) == (t >= n / 2), name + ", zero");
    d = before;
  }
  // Factors whose products overflow, of a solution that stays small: every second coupling is missing.
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p)
      S.values[S.perm[p]] = S.idx[p] == i ? T(1) : i % 2 ? std::numeric_limits<T>::max() / 4 : T(0);
  Array<T> ones(n * k);
  for (int64_t i = 0; i < ones.size(); ++i) ones[i] = 1;
  x = scanned(ones);
  T known = 0;
  const cuda::Chain<T, I> C{view, ones.data() + 1, nullptr, k};
  for (int64_t t = 0; t < n; ++t) {
    known = C.map(t).of(known);
    require(x[row(t) * k + 1] == known && cuda::finite(known), name + ", overflow");
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
  for (const int64_t n : {1, 2, 15, 16, 17, 40, 128, 129, 300})
    for (const bool transpose : {false, true})
      for (const bool upper : {false, true})
        for (const bool unit : {false, true}) chain_case<T, I>(random, n, transpose, upper, unit);
}

}  // namespace
}  // namespace learnsolve::test

void test_device_triangular() {
  using namespace learnsolve::test;
  Random random(17);
  all_cases<float, int32_t>(random);
  all_cases<double, int64_t>(random);
}
