// The sparse product and its gradients against plain sums, with a plan and without, and the plan itself.
#include "kernels/spgemm.h"

#include <set>

#include "analysis/product_blocks.h"
#include "analysis/spgemm.h"
#include "kernels/spgemm_fused.h"
#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;

// A product of two patterns, on its full pattern or on a part of it, by the analysis.
template <class I>
struct Plan {
  Structure<I> A, At, B;
  Array<I> c_ptr, c_idx;
  Array<int32_t> positions, starts;
  std::vector<int64_t> rows, columns;
  bool masked;

  ProductView<I> view(bool transposed, bool planned) const {
    const Structure<I>& S = transposed ? At : A;
    return {S.ptr.data(),
            S.idx.data(),
            transposed ? S.perm.data() : nullptr,
            B.ptr.data(),
            B.idx.data(),
            c_ptr.data(),
            c_idx.data(),
            planned ? positions.data() : nullptr,
            planned ? starts.data() : nullptr,
            masked};
  }
};

template <class I>
Plan<I> plan(const Pattern& left, const Pattern& right, bool masked, int64_t block_weight) {
  const Structure<I> A = structure<I>(left, 48), B = structure<I>(right, 48);
  const Structure<I> At = transposed(A, 48);
  int64_t products = analysis::count_products(A.idx.data(), A.nnz(), B.ptr.data());
  std::vector<I> ptr{0}, idx;
  for (int64_t i = 0; i < A.rows; ++i) {
    std::set<I> columns;
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
      for (int64_t q = B.ptr[A.idx[p]]; q < B.ptr[A.idx[p] + 1]; ++q) columns.insert(B.idx[q]);
    for (const I j : columns)
      if (!masked || (j + 2 * i) % 3 != 0) idx.push_back(j);
    ptr.push_back(static_cast<I>(idx.size()));
  }
  Plan<I> P{A,  At, B,     Array<I>(ptr), Array<I>(idx), Array<int32_t>(products), Array<int32_t>(A.nnz()),
            {}, {}, masked};
  std::vector<uint8_t> repeated(A.rows + 1);
  if (!masked) {
    Array<I> c_ptr(A.rows + 1);
    analysis::Growing<I> c_idx;
    require(analysis::product_pattern(A.ptr.data(), A.rows, A.idx.data(), B.ptr.data(), B.rows, B.idx.data(),
                                      B.cols, c_ptr.data(), c_idx, int64_t{1} << 30, 2),
            "product_pattern refuses " + A.name);
    for (int64_t i = 0; i <= A.rows; ++i) require(c_ptr[i] == ptr[i], "product_pattern: rows, " + A.name);
    for (size_t t = 0; t < idx.size(); ++t)
      require(c_idx.data()[t] == idx[t], "product_pattern: columns, " + A.name);
  }
  analysis::positions_of_products(A.ptr.data(), A.rows, A.idx.data(), B.ptr.data(), B.rows, B.idx.data(),
                                  B.cols, P.c_ptr.data(), P.c_idx.data(), P.positions.data(), repeated.data(),
                                  2);
  int64_t f = 0;
  for (int64_t i = 0; i < A.rows; ++i)
    for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
      for (int64_t q = B.ptr[A.idx[p]]; q < B.ptr[A.idx[p] + 1]; ++q, ++f) {
        const int64_t t = P.positions[f];
        const bool kept = !masked || (B.idx[q] + 2 * i) % 3 != 0;
        require(kept ? ptr[i] <= t && t < ptr[i + 1] && idx[t] == B.idx[q] : t == -1, "positions, " + A.name);
      }
  analysis::product_starts(A.idx.data(), A.nnz(), B.ptr.data(), At.perm.data(), P.starts.data());
  P.rows = analysis::row_product_blocks(A.ptr.data(), A.rows, A.idx.data(), B.ptr.data(), P.c_ptr.data(),
                                        repeated.data(), block_weight);
  P.columns = analysis::column_product_blocks(At.ptr.data(), At.rows, At.perm.data(), B.ptr.data(),
                                              P.positions.data(), P.starts.data(), block_weight);
  return P;
}

// The fused pass finds C, with the bits of the other one.
template <class T, class I>
void fused_case(const Plan<I>& P, const Array<T>& a, const Array<T>& b, const std::string& name) {
  const ProductView<I> view = P.view(false, false);
  Array<I> place(std::vector<I>(P.B.cols, I(-1))), c_ptr(P.A.rows + 1), c_idx(P.positions.size());
  Array<T> c = unwritten<T>(P.positions.size()), wanted = unwritten<T>(P.c_idx.size());
  Array<I> marker(std::vector<I>(P.B.cols, I(-1)));
  isa::spgemm_rows<T, I>(view, 0, P.A.rows, 0, false, a.data(), b.data(), wanted.data(), marker.data(),
                         false);
  c_ptr[0] = 0;
  for (int64_t i = 0, end = 0; i < P.A.rows; ++i) {
    i = isa::spgemm_fused<T, I>(view, i, P.A.rows, end, a.data(), b.data(), place.data(), c_ptr.data(),
                                c_idx.data(), c.data());
    if (i < P.A.rows) end = c_ptr[i + 1];  // its columns are as they came
  }
  for (int64_t i = 0; i < P.A.rows; ++i) {
    require(c_ptr[i + 1] == P.c_ptr[i + 1], "spgemm_fused: rows, " + name);
    std::vector<std::pair<I, T>> row, same;
    for (int64_t t = c_ptr[i]; t < c_ptr[i + 1]; ++t)
      row.push_back({c_idx[t], c[t]}), same.push_back({P.c_idx[t], wanted[t]});
    if (c_ptr[i + 1] - c_ptr[i] > 16) std::sort(row.begin(), row.end());
    require(row == same, "spgemm_fused: entries, " + name);
  }
}

template <class T, class I>
void product_case(Random& random, const Plan<I>& P, const std::string& name) {
  const int64_t c_nnz = P.c_idx.size();
  const Array<T> a = uniform<T>(random, P.A.nnz()), b = uniform<T>(random, P.B.nnz()),
                 g = uniform<T>(random, c_nnz);
  std::vector<Sum> c_sum(c_nnz), a_sum(P.A.nnz()), b_sum(P.B.nnz());
  int64_t f = 0;
  for (int64_t p = 0; p < P.A.nnz(); ++p)
    for (int64_t q = P.B.ptr[P.A.idx[p]]; q < P.B.ptr[P.A.idx[p] + 1]; ++q, ++f) {
      const int64_t t = P.positions[f];
      if (t < 0) continue;
      c_sum[t].add(a[p], b[q]), a_sum[p].add(g[t], b[q]), b_sum[q].add(a[p], g[t]);
    }
  if (!P.masked) fused_case<T, I>(P, a, b, name);
  for (const bool planned : {true, false}) {
    const ProductView<I> by_rows = P.view(false, planned), by_columns = P.view(true, planned);
    for (const Partition& partition : partitions(P.rows.size() / 3 - 1)) {
      Array<T> c = unwritten<T>(c_nnz), ga = unwritten<T>(P.A.nnz());
      for_ranges(partition, [&](int64_t b0, int64_t b1) {
        Array<I> marker(std::vector<I>(P.B.cols, I(-1)));
        for (int64_t k = 3 * b0; k < 3 * b1; k += 3) {
          isa::spgemm_rows<T, I>(by_rows, P.rows[k], P.rows[k + 3], P.rows[k + 1], P.rows[k + 2] != 0,
                                 a.data(), b.data(), c.data(), marker.data(), false);
          isa::spgemm_left<T, I>(by_rows, P.rows[k], P.rows[k + 3], P.rows[k + 1], g.data(), b.data(),
                                 ga.data(), marker.data(), false);
        }
      });
      require_close(c, c_sum, "spgemm_rows, " + name);
      require_close(ga, a_sum, "spgemm_left, " + name);
    }
    for (const Partition& partition : partitions(P.columns.size() / 3 - 1))
      for (const bool both : {true, false}) {
        Array<T> ga = unwritten<T>(P.A.nnz()), gb = unwritten<T>(P.B.nnz());
        for_ranges(partition, [&](int64_t b0, int64_t b1) {
          for (int64_t k = 3 * b0; k < 3 * b1; k += 3)
            isa::spgemm_columns<T, I>(by_columns, P.columns[k], P.columns[k + 3], P.columns[k + 2] != 0,
                                      a.data(), b.data(), g.data(), both ? ga.data() : nullptr, gb.data(),
                                      false, false);
        });
        if (both && P.A.nnz() > 0) require_close(ga, a_sum, "spgemm_columns ga, " + name);
        require_close(gb, b_sum, "spgemm_columns gb, " + name);
      }
  }
}

template <class I>
void all_products(Random& random) {
  std::vector<std::pair<Pattern, Pattern>> pairs;
  for (const int64_t n : {1, 40}) pairs.push_back({grid(n, 1, 1, 1), grid(n, 1, 1, 1)});
  pairs.push_back({grid(25, 4, 1, 1), grid(25, 4, 1, 1)});
  pairs.push_back({scattered(random, 20, 30, 0.2), scattered(random, 30, 60, 0.5)});
  pairs.push_back({scattered(random, 9, 7, 0.0), scattered(random, 7, 5, 0.5)});
  bool uniform = false;
  for (const auto& [left, right] : pairs)
    for (const bool masked : {false, true})
      for (const int64_t weight : {1, 100, 100000}) {
        const Plan<I> P = plan<I>(left, right, masked, weight);
        for (size_t k = 2; k < P.columns.size(); k += 3) uniform |= P.columns[k] != 0;
        const std::string name = left.name + (masked ? ", masked" : "") + ", " + std::to_string(weight);
        product_case<float>(random, P, name);
        product_case<double>(random, P, name);
      }
  require(uniform, "no product has a uniform block");
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(spgemm) {
  using namespace learnsolve::test;
  Random random(6);
  all_products<int32_t>(random);
  all_products<int64_t>(random);
}
