// Greedy coloring: neighbors differ, every smaller color is taken by a neighbor, rows are grouped. Other
// colorings: of columns, those of a color share no row; symmetric, neighbors differ (tests/test_ordering.py
// tests the rest).
#include "analysis/coloring.h"

#include "analysis/symmetric_coloring.h"
#include "tests/matrices.h"

namespace learnsolve::test {
namespace {

template <class I>
void check_coloring(const Structure<I>& A, const Structure<I>& T, bool largest_first) {
  const int64_t n = A.rows;
  Array<I> colors(n);
  const int64_t count = analysis::greedy_coloring(A.ptr.data(), n, A.idx.data(), T.ptr.data(), T.idx.data(),
                                                  largest_first, colors.data());
  const std::string what = "greedy_coloring, " + A.name;
  int64_t most = -1;
  for (int64_t i = 0; i < n; ++i) {
    std::vector<bool> taken(count, false);
    analysis::for_each_neighbor(A.ptr.data(), A.idx.data(), T.ptr.data(), T.idx.data(), i, [&](int64_t j) {
      require(colors[j] != colors[i], what + ": neighbors of one color");
      taken[colors[j]] = true;
    });
    for (int64_t c = 0; c < colors[i]; ++c) require(taken[c], what + ": a smaller color was free");
    most = std::max<int64_t>(most, colors[i]);
  }
  require(most + 1 == count, what + ": the number of colors");
  Array<I> first(count + 1), rows(n);
  analysis::group_by_color(colors.data(), n, count, first.data(), rows.data());
  require(first[0] == 0 && first[count] == n, what + ": the groups do not hold all rows");
  for (int64_t c = 0; c < count; ++c)
    for (int64_t p = first[c]; p < first[c + 1]; ++p)
      require(colors[rows[p]] == c && (p == first[c] || rows[p - 1] < rows[p]), what + ": the groups");
}

template <class I>
void check_columns(const Structure<I>& A, const Structure<I>& T, analysis::Order order) {
  Array<I> colors(T.rows);
  const int64_t count = analysis::column_coloring(A.ptr.data(), A.rows, A.idx.data(), T.ptr.data(), T.rows,
                                                  T.idx.data(), order, colors.data());
  require(analysis::is_column_coloring(A.ptr.data(), A.rows, A.idx.data(), colors.data(), count),
          "column_coloring, " + A.name);
  if (A.idx.size() > 0 && A.ptr[A.rows] > A.rows) {  // a row has two entries: not all columns have one color
    Array<I> one(T.rows);
    std::fill(one.data(), one.data() + T.rows, I(0));
    require(!analysis::is_column_coloring(A.ptr.data(), A.rows, A.idx.data(), one.data(), 1),
            "is_column_coloring, " + A.name);
  }
}

template <class I>
void check_symmetric(const Structure<I>& A, const Structure<I>& T, analysis::Order order) {
  Array<I> colors(A.rows);
  std::vector<I> edge(A.idx.size());
  for (int64_t p = 0; p < static_cast<int64_t>(edge.size()); ++p) edge[p] = std::min<I>(p, T.perm[p]);
  for (const bool acyclic : {false, true}) {
    analysis::SymmetricColoring<I> coloring(A.ptr.data(), A.rows, A.idx.data(), order, colors.data());
    const int64_t count =
        acyclic ? coloring.acyclic(edge.data(), static_cast<int64_t>(edge.size())) : coloring.star();
    for (int64_t i = 0; i < A.rows; ++i)
      for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
        require(colors[i] < count && (A.idx[p] == i || colors[A.idx[p]] != colors[i]),
                "symmetric_coloring, " + A.name);
    if (!acyclic) continue;
    const auto s =
        analysis::substitution<I>(A.ptr.data(), A.rows, A.idx.data(), T.perm.data(), colors.data());
    for (int64_t p = 0; p < static_cast<int64_t>(edge.size()); ++p)
      require(s.unknown[p] >= 0 && s.unknown[p] == s.unknown[T.perm[p]], "substitution, " + A.name);
    for (size_t e = 0; e < s.equation.size(); ++e)
      require(s.idx[s.ptr[e + 1] - 1] == static_cast<I>(e), "substitution is no triangle, " + A.name);
  }
}

template <class I>
void all_patterns(Random& random) {
  for (const Pattern& pattern : patterns(random)) {
    const Structure<I> A = structure<I>(pattern, 48), T = transposed(A, 48);
    using analysis::Order;
    for (const Order order : {Order::natural, Order::largest_first, Order::smallest_last}) {
      check_columns(A, T, order);
      if (pattern.name.rfind("grid", 0) == 0) check_symmetric(A, T, order);
    }
    if (pattern.rows != pattern.cols) continue;
    for (const bool largest_first : {false, true}) check_coloring(A, T, largest_first);
  }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(coloring) {
  using namespace learnsolve::test;
  Random random(7);
  all_patterns<int32_t>(random);
  all_patterns<int64_t>(random);
}
