// Maximum and softmax over segments against plain loops in long double.
#include "kernels/segment.h"

#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;

template <class T, class I>
struct SegmentCase {
  const Structure<I>& S;
  int64_t k;
  Array<T> e, g, rows;
  std::string name;

  SegmentCase(Random& random, const Structure<I>& S_, int64_t k_, const char* types)
      : S(S_),
        k(k_),
        e(uniform<T>(random, S_.nnz() * k_)),
        g(uniform<T>(random, S_.nnz() * k_)),
        rows(uniform<T>(random, S_.rows * k_)),
        name(S_.name + ", k = " + std::to_string(k_) + ", " + types) {
    for (int64_t q = 0; q < e.size(); ++q) e[q] = std::round(4 * e[q]);  // with equal entries
  }
  CsrView<T, I> view(const Array<T>& values) const {
    return {S.ptr.data(), S.idx.data(), S.permuted ? S.perm.data() : nullptr, values.data()};
  }
  // f(A, blocks, b0, b1) over a partition of the blocks.
  template <class F>
  void run(const Array<T>& values, const F& f) const {
    const RowBlocks<I> blocks{S.table.data()};
    for_ranges(partitions(S.n_blocks())[1], [&](int64_t b0, int64_t b1) { f(view(values), blocks, b0, b1); });
  }
  // f(i, c, the numbers q k + c of the entries q of segment i, in order)
  template <class F>
  void each(const F& f) const {
    for (int64_t i = 0; i < S.rows; ++i)
      for (int64_t c = 0; c < k; ++c) {
        std::vector<int64_t> at;
        for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p) at.push_back(S.value_at(p) * k + c);
        f(i, c, at);
      }
  }

  void maximum() const {
    Array<T> top = unwritten<T>(S.rows * k), out = unwritten<T>(e.size()), wanted(e.size());
    Array<I> at(S.rows * k);
    run(e, [&](auto A, auto blocks, int64_t b0, int64_t b1) {
      isa::segment_max<T, I>(A, blocks, b0, b1, e.size(), k, top.data(), at.data());
    });
    run(e, [&](auto A, auto blocks, int64_t b0, int64_t b1) {
      isa::segment_place<T, I>(A, blocks, b0, b1, k, at.data(), rows.data(), out.data());
    });
    each([&](int64_t i, int64_t c, const std::vector<int64_t>& of) {
      int64_t best = -1;
      for (const int64_t o : of)
        if (best < 0 || e[o] > e[best]) best = o;
      require(top[i * k + c] == (best < 0 ? T(0) : e[best]), "segment_max, " + name);
      require(at[i * k + c] == (best < 0 ? -1 : best / k), "segment_max, place, " + name);
      if (best >= 0) wanted[best] = rows[i * k + c];
    });
    require_same_bits(out, wanted, "segment_place, " + name);
  }

  // exp errs by 2 u and by the rounding of its argument, at most 16 u; sums by u for each term.
  void softmax() const {
    Array<T> y = unwritten<T>(e.size()), out = unwritten<T>(e.size());
    run(e, [&](auto A, auto blocks, int64_t b0, int64_t b1) {
      isa::segment_softmax<T, I>(A, blocks, b0, b1, e.size(), k, y.data());
    });
    run(y, [&](auto A, auto blocks, int64_t b0, int64_t b1) {
      isa::segment_softmax_backward<T, I>(A, blocks, b0, b1, y.size(), k, g.data(), out.data());
    });
    each([&](int64_t, int64_t, const std::vector<int64_t>& of) {
      long double total = 0, sum = 0, magnitude = 0;
      for (const int64_t o : of) total += std::exp(static_cast<long double>(e[o]));
      for (const int64_t o : of) {
        const long double exact = std::exp(static_cast<long double>(e[o])) / total;
        sum += exact * g[o], magnitude += exact * std::fabs(g[o]);
      }
      const long double u = std::numeric_limits<T>::epsilon() / 2.0L,
                        bound = u * (static_cast<long double>(of.size()) + 24);
      for (const int64_t o : of) {
        const long double exact = std::exp(static_cast<long double>(e[o])) / total;
        require(std::fabs(y[o] - exact) <= bound * exact, "segment_softmax, " + name);
        require(std::fabs(out[o] - exact * (g[o] - sum)) <=
                    3 * bound * exact * (std::fabs(static_cast<long double>(g[o])) + magnitude),
                "segment_softmax_backward, " + name);
      }
    });
  }
};

template <class T, class I>
void all_cases(Random& random, const char* types) {
  for_each_case<I>(random, [&](const Structure<I>& A, const Structure<I>& At, int64_t k) {
    // Rows and columns differ in perm alone: either serves half of the cases.
    const SegmentCase<T, I> c(random, (A.nnz() + k) % 2 ? A : At, k, types);
    c.maximum();
    c.softmax();
  });
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(segment) {
  using namespace learnsolve::test;
  Random random(8);
  all_cases<float, int32_t>(random, "float, int32");
  all_cases<double, int64_t>(random, "double, int64");
}
