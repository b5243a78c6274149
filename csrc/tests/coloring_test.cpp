// Greedy coloring: neighbors differ, every smaller color is taken by a neighbor, rows are grouped.
#include "analysis/coloring.h"

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
void all_patterns(Random& random) {
  for (const Pattern& pattern : patterns(random)) {
    if (pattern.rows != pattern.cols) continue;
    const Structure<I> A = structure<I>(pattern, 48), T = transposed(A, 48);
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
