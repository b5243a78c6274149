// Patterns of incomplete factors: levels of fill against those of a dense elimination; without limits, levels
// and thresholds give the same pattern; with limits, rows and columns are as long as they may be.
#include "analysis/level_fill.h"
#include "analysis/threshold.h"
#include "tests/matrices.h"

namespace learnsolve::test {
namespace {

struct Square {
  std::string name;
  int64_t n;
  Array<int64_t> ptr, idx;
  Array<double> values;  // the diagonal dominates
};

// With a diagonal, and symmetric if `both`.
Square square(Random& random, const Pattern& pattern, bool both) {
  const int64_t n = pattern.rows;
  std::vector<std::vector<char>> there(n, std::vector<char>(n, 0));
  for (int64_t i = 0; i < n; ++i) {
    there[i][i] = 1;
    for (const int64_t j : pattern.columns[i]) there[i][j] = 1, there[j][i] |= both;
  }
  std::vector<int64_t> ptr{0}, idx;
  std::vector<double> values;
  std::uniform_real_distribution<double> draw(-1, 1);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j)
      if (there[i][j]) idx.push_back(j), values.push_back(i == j ? 3.0 * n : draw(random));
    ptr.push_back(static_cast<int64_t>(idx.size()));
  }
  return {pattern.name + (both ? ", symmetric" : ""), n, ptr, idx, values};
}

bool same(const std::vector<int64_t>& a, const std::vector<int64_t>& b) { return a == b; }

std::vector<int64_t> columns(const analysis::Choice& c) {
  return {c.idx.data(), c.idx.data() + c.ptr.back()};
}

template <class I>
void levels(const Square& A, int64_t most) {
  std::vector<I> ptr, idx;
  for (int64_t i = 0; i <= A.n; ++i) ptr.push_back(static_cast<I>(A.ptr[i]));
  for (int64_t p = 0; p < A.idx.size(); ++p) idx.push_back(static_cast<I>(A.idx[p]));
  const Array<I> p(ptr), c(idx);
  const auto found = analysis::level_fill(p.data(), A.n, c.data(), most);
  const int64_t never = 2 * A.n + 2;
  std::vector<std::vector<int64_t>> level(A.n, std::vector<int64_t>(A.n, never));
  for (int64_t i = 0; i < A.n; ++i)
    for (int64_t q = A.ptr[i]; q < A.ptr[i + 1]; ++q) level[i][A.idx[q]] = 0;
  for (int64_t k = 0; k < A.n; ++k)
    for (int64_t i = k + 1; i < A.n; ++i)
      for (int64_t j = k + 1; j < A.n; ++j)
        level[i][j] = std::min(level[i][j], level[i][k] + level[k][j] + 1);
  std::vector<int64_t> wanted_ptr{0}, wanted;
  for (int64_t i = 0; i < A.n; ++i) {
    for (int64_t j = 0; j < A.n; ++j)
      if (level[i][j] <= most) wanted.push_back(j);
    wanted_ptr.push_back(static_cast<int64_t>(wanted.size()));
  }
  require(same(found.ptr, wanted_ptr) && same(found.idx, wanted),
          "level_fill " + std::to_string(most) + ", " + A.name);
}

// Of row i, the entries left of the diagonal and right of it.
std::pair<int64_t, int64_t> parts(const int64_t* ptr, const int64_t* idx, int64_t i) {
  int64_t left = 0, right = 0;
  for (int64_t p = ptr[i]; p < ptr[i + 1]; ++p) left += idx[p]<i, right += idx[p]> i;
  return {left, right};
}

void thresholds(const Square& A, bool symmetric) {
  const auto full = analysis::level_fill(A.ptr.data(), A.n, A.idx.data(), A.n);
  const auto lu = [&](int64_t fill, double tolerance) {
    return analysis::threshold_lu(A.ptr.data(), A.n, A.idx.data(), A.values.data(), fill, tolerance);
  };
  const analysis::Choice all = lu(A.n, 0);
  require(all.row == -1 && same(all.ptr, full.ptr) && same(columns(all), full.idx),
          "threshold_lu, " + A.name);
  for (const int64_t fill : {0, 1, 3}) {
    const analysis::Choice some = lu(fill, 0);
    require(some.row == -1, "threshold_lu breaks down, " + A.name);
    for (int64_t i = 0; i < A.n; ++i) {
      const auto [left, right] = parts(some.ptr.data(), some.idx.data(), i);
      const auto [own_left, own_right] = parts(A.ptr.data(), A.idx.data(), i);
      require(left <= own_left + fill && right <= own_right + fill, "a row is too long, " + A.name);
    }
  }
  const analysis::Choice none = lu(A.n, 2);
  require(none.ptr.back() == A.n, "a threshold above every entry, " + A.name);
  if (!symmetric) return;
  // Row j is column j; the values above the diagonal are not read.
  const auto cholesky = [&](int64_t fill, double tolerance) {
    return analysis::threshold_cholesky(A.ptr.data(), A.n, A.idx.data(), A.values.data(), fill, tolerance);
  };
  const analysis::Choice exact = cholesky(A.n, 0);
  std::vector<int64_t> ptr{0}, idx;
  for (int64_t i = 0; i < A.n; ++i) {
    for (int64_t p = full.ptr[i]; p < full.ptr[i + 1]; ++p)
      if (full.idx[p] <= i) idx.push_back(full.idx[p]);
    ptr.push_back(static_cast<int64_t>(idx.size()));
  }
  require(exact.row == -1 && same(exact.ptr, ptr) && same(columns(exact), idx),
          "threshold_cholesky, " + A.name);
  for (const int64_t fill : {0, 1, 3}) {
    const analysis::Choice some = cholesky(fill, 0);
    require(some.row == -1, "threshold_cholesky breaks down, " + A.name);
    std::vector<int64_t> length(A.n, -1);  // of columns, without the diagonal
    for (const int64_t j : columns(some)) ++length[j];
    for (int64_t j = 0; j < A.n; ++j)
      require(length[j] <= parts(A.ptr.data(), A.idx.data(), j).second + fill,
              "a column is too long, " + A.name);
  }
}

void breakdown(Square A, int64_t row, double bad, bool of_lu) {
  for (int64_t p = A.ptr[row]; p < A.ptr[row + 1]; ++p)
    if (A.idx[p] == row) A.values[p] = bad;
  for (const bool cholesky : {false, true}) {
    const auto choose = cholesky ? analysis::threshold_cholesky : analysis::threshold_lu;
    const analysis::Choice c = choose(A.ptr.data(), A.n, A.idx.data(), A.values.data(), 2, 0.0);
    const bool expected = cholesky || of_lu;
    require(c.row == (expected ? row : -1), "the row of a breakdown, " + A.name);
  }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(fill) {
  using namespace learnsolve::test;
  Random random(11);
  for (const Pattern& pattern : patterns(random)) {
    if (pattern.rows != pattern.cols) continue;
    for (const bool both : {false, true}) {
      const Square A = square(random, pattern, both);
      for (const int64_t most : {int64_t{0}, int64_t{1}, int64_t{2}, A.n}) {
        levels<int32_t>(A, most);
        levels<int64_t>(A, most);
      }
      thresholds(A, both);
      if (A.n < 2) continue;
      breakdown(A, 0, 0, true);
      breakdown(A, 0, -1, false);
      breakdown(A, A.n - 1, std::numeric_limits<double>::infinity(), true);
      breakdown(A, A.n - 1, std::numeric_limits<double>::quiet_NaN(), true);
    }
  }
}
