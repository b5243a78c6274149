// The sum on a union of patterns and its adjoint against a merge by columns.
#include "kernels/add.h"

#include "analysis/union.h"
#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;

template <class T, class I>
void add_case(Random& random, const Structure<I>& A, const Structure<I>& B, const std::string& name) {
  const auto u = analysis::merge_patterns(A.ptr.data(), A.idx.data(), B.ptr.data(), B.idx.data(), A.rows);
  const int64_t n = static_cast<int64_t>(u.idx.size()), na = A.nnz(), nb = B.nnz();
  const Array<uint8_t> codes(u.codes);
  const Array<I> starts(u.starts);
  const Array<T> a = uniform<T>(random, na), b = uniform<T>(random, nb), g = uniform<T>(random, n);
  Array<T> wanted(n), wanted_a(na), wanted_b(nb);
  int64_t at = 0;
  for (int64_t i = 0; i < A.rows; ++i) {
    require(u.ptr[i] == at, "merge_patterns: ptr, " + name);
    std::vector<int64_t> in_a(A.cols, -1), in_b(A.cols, -1);
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) in_a[A.idx[p]] = p;
    for (int64_t p = B.ptr[i]; p < B.ptr[i + 1]; ++p) in_b[B.idx[p]] = p;
    for (int64_t j = 0; j < A.cols; ++j) {
      if (in_a[j] < 0 && in_b[j] < 0) continue;
      require(at < n && u.idx[at] == j, "merge_patterns: idx, " + name);
      wanted[at] = (in_a[j] < 0 ? T(0) : 2 * a[in_a[j]]) + (in_b[j] < 0 ? T(0) : T(-0.5) * b[in_b[j]]);
      if (in_a[j] >= 0) wanted_a[in_a[j]] = 2 * g[at];
      if (in_b[j] >= 0) wanted_b[in_b[j]] = T(-0.5) * g[at];
      ++at;
    }
  }
  require(at == n && u.ptr[A.rows] == n, "merge_patterns: length, " + name);
  // Powers of two: every product is exact, so any order and fused operations give the same bits.
  Array<T> c = unwritten<T>(n);
  for_ranges(partitions(union_chunks(n))[kThreads], [&](int64_t c0, int64_t c1) {
    isa::add<T, I>(codes.data(), starts.data(), c0, c1, n, a.data(), na, b.data(), nb, T(2), T(-0.5),
                   c.data());
  });
  require_same_bits(c, wanted, "add, " + name);
  for (int needs = 1; needs < 4; ++needs) {
    Array<T> ga = unwritten<T>(na), gb = unwritten<T>(nb);
    for_ranges(partitions(union_chunks(n))[kThreads], [&](int64_t c0, int64_t c1) {
      isa::add_backward<T, I>(codes.data(), starts.data(), c0, c1, n, g.data(), T(2), T(-0.5),
                              needs & 1 ? ga.data() : nullptr, needs & 2 ? gb.data() : nullptr);
    });
    if (needs & 1) require_same_bits(ga, wanted_a, "add_backward a, " + name);
    if (needs & 2) require_same_bits(gb, wanted_b, "add_backward b, " + name);
  }
}

template <class T, class I>
void all_cases(Random& random, const char* types) {
  const auto pair = [&](const Pattern& p, const Pattern& q) {
    const Structure<I> A = structure<I>(p, 48), B = structure<I>(q, 48);
    const std::string name = A.name + " + " + B.name + ", " + types;
    add_case<T>(random, A, B, name);
    add_case<T>(random, B, A, name + ", turned");
  };
  for (const int64_t n : {0, 1, 2, 3, 5, 30, 300}) {
    pair(banded(n, n, {-1, 0, 1}), banded(n, n, {0}));
    pair(banded(n, n, {-1, 0, 1}), banded(n, n, {-1, 0, 1}));
    pair(banded(n, n, {-1, 1}), banded(n, n, {0, 2}));
    pair(banded(n, n, {0, 1}), banded(n, n, {}));
    pair(banded(n, n, {-1, 0, 3}), banded(n, n, {n - 1}));
    if (n > 5) pair(scattered(random, n, n, 0.3), scattered(random, n, n, 0.1));
  }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(add) {
  using namespace learnsolve::test;
  Random random(5);
  all_cases<float, int32_t>(random, "float, int32");
  all_cases<float, int64_t>(random, "float, int64");
  all_cases<double, int32_t>(random, "double, int32");
  all_cases<double, int64_t>(random, "double, int64");
}
