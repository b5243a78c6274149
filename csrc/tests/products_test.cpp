// spmm, sddmm, their complex forms, spmm_backward and scatter_backward against plain sums, and the comparer
// against corrupted results.
#include <array>

#include "kernels/complex_products.h"
#include "kernels/sddmm.h"
#include "kernels/spmm.h"
#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;

template <class T, class I>
CsrView<T, I> view(const Structure<I>& S, const Array<T>& values) {
  return {S.ptr.data(), S.idx.data(), S.permuted ? S.perm.data() : nullptr, values.data()};
}

// What an output holds before a kernel runs.
template <class T>
Array<T> before(Random& random, int64_t n, bool accumulate) {
  return accumulate ? uniform<T>(random, n) : unwritten<T>(n);
}

template <class T>
std::vector<Sum> sums(const Array<T>& start, bool accumulate) {
  std::vector<Sum> s(start.size());
  for (int64_t i = 0; accumulate && i < start.size(); ++i) s[i].add(start[i]);
  return s;
}

template <class T, class I>
std::vector<Sum> plain_product(const Structure<I>& S, const Array<T>& values, const Array<T>& x, int64_t k,
                               const Array<T>& start, bool accumulate) {
  std::vector<Sum> y = sums(start, accumulate);
  for (int64_t i = 0; i < S.rows; ++i)
    for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p)
      for (int64_t c = 0; c < k; ++c) y[i * k + c].add(values[S.value_at(p)], x[S.idx[p] * k + c]);
  return y;
}

template <class T, class I>
void spmm_case(Random& random, const Structure<I>& S, int64_t k, const std::string& name) {
  const Array<T> values = uniform<T>(random, S.nnz()), x = uniform<T>(random, S.cols * k);
  for (const bool accumulate : {false, true}) {
    const Array<T> start = before<T>(random, S.rows * k, accumulate);
    Array<T> whole;
    for (const Partition& partition : partitions(S.n_blocks())) {
      Array<T> y = start;
      for_ranges(partition, [&](int64_t b0, int64_t b1) {
        isa::spmm<T, I>(view(S, values), {S.table.data()}, b0, b1, x.data(), k, y.data(), accumulate);
      });
      if (partition.name != "whole") {
        require_same_bits(y, whole, "spmm, " + name);
        continue;
      }
      require_close(y, plain_product(S, values, x, k, start, accumulate), "spmm, " + name);
      whole = y;
    }
  }
}

template <class T, class I>
void sddmm_case(Random& random, const Structure<I>& S, int64_t k, const std::string& name) {
  const Array<T> u = uniform<T>(random, S.rows * k), v = uniform<T>(random, S.cols * k);
  for (const bool accumulate : {false, true}) {
    const Array<T> start = before<T>(random, S.nnz(), accumulate);
    std::vector<Sum> expected = sums(start, accumulate);
    for (int64_t i = 0; i < S.rows; ++i)
      for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p)
        for (int64_t c = 0; c < k; ++c) expected[p].add(u[i * k + c], v[S.idx[p] * k + c]);
    Array<T> whole;
    for (const Partition& partition : partitions(S.n_blocks())) {
      Array<T> out = start;
      for_ranges(partition, [&](int64_t b0, int64_t b1) {
        isa::sddmm<T, I>(S.ptr.data(), S.idx.data(), {S.table.data()}, b0, b1, u.data(), v.data(), k,
                         out.data(), accumulate);
      });
      if (partition.name == "whole") {
        require_close(out, expected, "sddmm, " + name);
        whole = out;
      }
      require_same_bits(out, whole, "sddmm, " + name);
    }
  }
}

// Callers never request the backward of zero columns, which leaves ga unwritten.
template <class T, class I>
void backward_case(Random& random, const Structure<I>& S, int64_t k, const std::string& name) {
  const Array<T> values = uniform<T>(random, S.nnz());
  const Array<T> g = uniform<T>(random, S.cols * k), x = uniform<T>(random, S.rows * k);
  for (const bool add_gx : {false, true})
    for (const bool add_ga : {false, true}) {
      const Array<T> gx_start = before<T>(random, S.rows * k, add_gx);
      const Array<T> ga_start = before<T>(random, S.nnz(), add_ga);
      std::vector<Sum> ga_expected = sums(ga_start, add_ga);
      for (int64_t j = 0; j < S.rows; ++j)
        for (int64_t p = S.ptr[j]; p < S.ptr[j + 1]; ++p)
          for (int64_t c = 0; c < k; ++c) ga_expected[S.value_at(p)].add(g[S.idx[p] * k + c], x[j * k + c]);
      Array<T> gx_whole, ga_whole;
      for (const Partition& partition : partitions(S.n_blocks())) {
        Array<T> gx = gx_start, ga = ga_start;
        for_ranges(partition, [&](int64_t b0, int64_t b1) {
          isa::spmm_backward<T, I>(view(S, values), {S.table.data()}, b0, b1, g.data(), x.data(), k,
                                   gx.data(), ga.data(), add_gx, add_ga);
        });
        if (partition.name == "whole") {
          require_close(gx, plain_product(S, values, g, k, gx_start, add_gx), "spmm_backward gx, " + name);
          require_close(ga, ga_expected, "spmm_backward ga, " + name);
          gx_whole = gx, ga_whole = ga;
        }
        require_same_bits(gx, gx_whole, "spmm_backward gx, " + name);
        require_same_bits(ga, ga_whole, "spmm_backward ga, " + name);
      }
    }
}

// One column, in the order of the rows: every range adds into a gx of its own, as the caller has it.
template <class T, class I>
void scatter_case(Random& random, const Structure<I>& A, const std::string& name) {
  const Array<T> values = uniform<T>(random, A.nnz());
  const Array<T> g = uniform<T>(random, A.rows), x = uniform<T>(random, A.cols);
  for (const bool need_gx : {false, true})
    for (const bool need_ga : {false, true}) {
      const Array<T> start = uniform<T>(random, A.cols);
      std::vector<Sum> gx_expected = sums(start, true), ga_expected(A.nnz());
      for (int64_t i = 0; i < A.rows; ++i)
        for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) {
          gx_expected[A.idx[p]].add(values[p], g[i]);
          ga_expected[p].add(g[i], x[A.idx[p]]);
        }
      for (const Partition& partition : partitions(A.n_blocks())) {
        const auto& bounds = partition.bounds;
        std::vector<Array<T>> parts(bounds.size() - 1, Array<T>(A.cols));
        parts[0] = start;
        Array<T> ga = unwritten<T>(A.nnz());
        for_ranges(partition, [&](int64_t b0, int64_t b1) {
          size_t r = 0;  // which range this is; an empty one adds nothing, wherever
          while (r + 2 < bounds.size() && bounds[r + 1] <= b0) ++r;
          isa::scatter_backward<T, I>(view(A, values), A.table[2 * b0], A.table[2 * b1], g.data(), x.data(),
                                      need_gx ? parts[r].data() : nullptr, need_ga ? ga.data() : nullptr);
        });
        Array<T> gx(A.cols);
        for (const Array<T>& part : parts)
          for (int64_t j = 0; j < A.cols; ++j) gx[j] += part[j];
        const std::string what = "scatter_backward, " + name + ", " + partition.name;
        if (need_gx) require_close(gx, gx_expected, what + ", gx");
        if (need_ga) require_close(ga, ga_expected, what + ", ga");
      }
    }
}

template <class T, class I>
void complex_case(Random& random, const Structure<I>& S, int64_t k, const std::string& name) {
  const Array<T> values = uniform<T>(random, 2 * S.nnz()), x = uniform<T>(random, 2 * S.cols * k),
                 u = uniform<T>(random, 2 * S.rows * k);
  const auto conjugate = [](const T* a, bool whether) { return std::array{a[0], whether ? -a[1] : a[1]}; };
  for (const int of : {0, 1, 2}) {
    const bool accumulate = of > 0;
    const Array<T> y_start = before<T>(random, 2 * S.rows * k, accumulate);
    const Array<T> out_start = before<T>(random, 2 * S.nnz(), accumulate);
    std::vector<Sum> y_expected = sums(y_start, accumulate), out_expected = sums(out_start, accumulate);
    for (int64_t i = 0; i < S.rows; ++i)
      for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p)
        for (int64_t c = 0; c < k; ++c) {
          const int64_t at = 2 * (i * k + c), from = 2 * (S.idx[p] * k + c);
          add_product(&y_expected[at], conjugate(&values[2 * S.value_at(p)], of > 0).data(), &x[from]);
          add_product(&out_expected[2 * p], conjugate(&u[at], of == 1).data(),
                      conjugate(&x[from], of == 2).data());
        }
    Array<T> y_whole, out_whole;
    for (const Partition& partition : partitions(S.n_blocks())) {
      Array<T> y = y_start, out = out_start;
      for_ranges(partition, [&](int64_t b0, int64_t b1) {
        isa::complex_spmm<T, I>(view(S, values), {S.table.data()}, b0, b1, x.data(), k, y.data(), accumulate,
                                of > 0);
        isa::complex_sddmm<T, I>(S.ptr.data(), S.idx.data(), {S.table.data()}, b0, b1, u.data(), x.data(), k,
                                 out.data(), accumulate, of);
      });
      if (partition.name == "whole") {
        require_close(y, y_expected, "complex_spmm, " + name);
        require_close(out, out_expected, "complex_sddmm, " + name);
        y_whole = y, out_whole = out;
      }
      require_same_bits(y, y_whole, "complex_spmm, " + name);
      require_same_bits(out, out_whole, "complex_sddmm, " + name);
    }
  }
}

template <class T, class I>
void all_cases(Random& random, const char* types) {
  for_each_case<I>(random, [&](const Structure<I>& A, const Structure<I>& At, int64_t k) {
    for (const Structure<I>* S : {&A, &At}) {
      const std::string name = S->name + ", " + types + ", k = " + std::to_string(k);
      spmm_case<T>(random, *S, k, name);
      sddmm_case<T>(random, *S, k, name);
      complex_case<T>(random, *S, k, name);
      if (k > 0) backward_case<T>(random, *S, k, name);
    }
    if (k == 1) scatter_case<T>(random, A, A.name + ", " + types);
  });
}

// Rows of random lengths, then rows whose lengths take turns, then one empty row among random ones.
template <class T, class I>
void streams_case(Random& random, const std::string& types) {
  std::geometric_distribution<int64_t> lengths(0.15);
  constexpr int64_t piece = isa::kStreamedRows, rows = 3 * piece + 200, cols = 300;
  Pattern pattern{"random lengths", rows, cols, {}};
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t turns = i % 3 == 0 ? 2 : 7, drawn = 1 + std::min<int64_t>(lengths(random), 40);
    const int64_t length = i == 2 * piece + 500 ? 0 : i / piece == 1 ? turns : drawn;
    pattern.columns.emplace_back();
    for (int64_t l = 0; l < length; ++l) pattern.columns.back().push_back((i % 7) + l * 7);
  }
  const Structure<I> S = structure<I>(pattern, 1 << 20);
  const Array<T> values = uniform<T>(random, S.nnz()), x = uniform<T>(random, cols);
  const CsrView<T, I> A = view(S, values);
  for (const int64_t first : {int64_t{0}, piece, 2 * piece, 3 * piece}) {
    const bool expected = first == 0 || first == 3 * piece;
    require(isa::prefers_streams(A, first, std::min(piece, rows - first)) == expected,
            "streams are chosen wrongly, " + types + ", row " + std::to_string(first));
  }
  Array<T> one = unwritten<T>(rows), several = unwritten<T>(rows);
  isa::Store<T, false> out_one{one.data(), 1}, out_several{several.data(), 1};
  isa::irregular_rows<false>(A, 0, rows, false, x.data(), out_one);
  isa::irregular_rows<false>(A, 0, rows, true, x.data(), out_several);
  require_same_bits(several, one, "streams, " + types);
  require_close(one, plain_product(S, values, x, 1, one, false), "rows one by one, " + types);
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(streams) {
  using namespace learnsolve::test;
  Random random(3);
  streams_case<float, int32_t>(random, "float, int32");
  streams_case<float, int64_t>(random, "float, int64");
  streams_case<double, int32_t>(random, "double, int32");
  streams_case<double, int64_t>(random, "double, int64");
}

LS_TEST(products) {
  using namespace learnsolve::test;
  Random random(1);
  all_cases<float, int32_t>(random, "float, int32");
  all_cases<float, int64_t>(random, "float, int64");
  all_cases<double, int32_t>(random, "double, int32");
  all_cases<double, int64_t>(random, "double, int64");
}

// A comparison that lets a wrong result through would make every other test worthless.
LS_TEST(comparison) {
  using namespace learnsolve::test;
  Random random(2);
  const Structure<int32_t> S = structure<int32_t>(scattered(random, 30, 30, 0.2), 48);
  const Array<float> values = uniform<float>(random, S.nnz()), x = uniform<float>(random, S.cols);
  const std::vector<Sum> expected = plain_product(S, values, x, 1, Array<float>(S.rows), false);
  Array<float> right(S.rows);
  for (int64_t i = 0; i < S.rows; ++i) right[i] = static_cast<float>(expected[i].value);
  require(first_wrong(right, expected) == -1, "the comparison refuses the right result");
  for (int64_t i = 0; i < S.rows; ++i) {
    for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), right[i] + 1e-4f, -right[i] - 1e-4f}) {
      Array<float> corrupted = right;
      corrupted[i] = wrong;
      require(first_wrong(corrupted, expected) == i, "the comparison misses a corrupted entry");
    }
    // One term forgotten.
    for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p) {
      Array<float> corrupted = right;
      corrupted[i] -= values[p] * x[S.idx[p]];
      require(std::fabs(values[p] * x[S.idx[p]]) < 1e-5f || first_wrong(corrupted, expected) == i,
              "the comparison misses a forgotten term");
    }
  }
}
