// The patterns that kernels are tested on.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "analysis/pattern.h"
#include "tests/check.h"

namespace learnsolve::test {

struct Pattern {
  std::string name;
  int64_t rows, cols;
  std::vector<std::vector<int64_t>> columns;  // of each row, sorted
};

// Row i has the columns i + offset that exist.
inline Pattern banded(int64_t rows, int64_t cols, std::vector<int64_t> offsets) {
  std::sort(offsets.begin(), offsets.end());
  Pattern p{"band of " + std::to_string(offsets.size()), rows, cols, {}};
  for (int64_t i = 0; i < rows; ++i) {
    p.columns.emplace_back();
    for (const int64_t offset : offsets)
      if (i + offset >= 0 && i + offset < cols) p.columns.back().push_back(i + offset);
  }
  return p;
}

// Grid points are coupled to those that differ by at most one in every direction and by at most `reach`
// in sum: reach 1 gives 3, 5 or 7 points in 1, 2 or 3 dimensions, reach 2 gives 9 in 2.
inline Pattern grid(int64_t nx, int64_t ny, int64_t nz, int64_t reach) {
  const std::string size = std::to_string(nx) + "x" + std::to_string(ny) + "x" + std::to_string(nz);
  const int64_t n = nx * ny * nz;
  Pattern p{"grid " + size + ", reach " + std::to_string(reach), n, n, {}};
  for (int64_t z = 0; z < nz; ++z)
    for (int64_t y = 0; y < ny; ++y)
      for (int64_t x = 0; x < nx; ++x) {
        p.columns.emplace_back();
        for (int64_t c = std::max<int64_t>(z - 1, 0); c <= std::min(z + 1, nz - 1); ++c)
          for (int64_t b = std::max<int64_t>(y - 1, 0); b <= std::min(y + 1, ny - 1); ++b)
            for (int64_t a = std::max<int64_t>(x - 1, 0); a <= std::min(x + 1, nx - 1); ++a)
              if (std::abs(a - x) + std::abs(b - y) + std::abs(c - z) <= reach)
                p.columns.back().push_back((c * ny + b) * nx + a);
      }
  return p;
}

// Every third row and every fifth column is empty; row 1 is full but for those columns.
inline Pattern scattered(Random& random, int64_t rows, int64_t cols, double density) {
  Pattern p{"random " + std::to_string(rows) + "x" + std::to_string(cols), rows, cols, {}};
  std::bernoulli_distribution present(density);
  for (int64_t i = 0; i < rows; ++i) {
    p.columns.emplace_back();
    for (int64_t j = 0; j < cols; ++j)
      if (i % 3 != 2 && j % 5 != 4 && (i == 1 || present(random))) p.columns.back().push_back(j);
  }
  return p;
}

inline std::vector<Pattern> patterns(Random& random) {
  return {
      {"empty 0x0", 0, 0, {}},
      {"empty 0x5", 0, 5, {}},
      {"empty 5x0", 5, 0, {{}, {}, {}, {}, {}}},
      {"zero 4x6", 4, 6, {{}, {}, {}, {}}},
      {"one entry", 1, 1, {{0}}},
      scattered(random, 30, 30, 0.2),
      scattered(random, 61, 17, 0.3),
      scattered(random, 17, 61, 0.3),
      banded(20, 23, {0}),
      banded(40, 41, {0, 1}),
      banded(23, 30, {0, 2, 5, 6}),
      banded(30, 40, {0, 1, 2, 4, 7, 9}),
      banded(29, 60, {0, 1, 2, 3, 5, 8, 13, 14, 20, 21, 30, 31}),
      banded(37, 37, {-1, 0, 1}),
      grid(19, 5, 1, 1),
      grid(18, 4, 1, 2),
      grid(12, 3, 4, 1),
  };
}

// Products with one vector treat rows in groups of a vector's width and long rows in fours: every number of
// rows around those widths, and every remainder of four.
inline std::vector<Pattern> vector_patterns() {
  std::vector<Pattern> all;
  for (int64_t n = 1; n <= 20; ++n) all.push_back(grid(n, 1, 1, 1));
  for (int64_t length = 31; length <= 36; ++length) {
    std::vector<int64_t> offsets;
    for (int64_t l = 0; l < length; ++l) offsets.push_back(l + l / 3);
    all.push_back(banded(9, 57, offsets));
  }
  return all;
}

// A pattern as kernels take it, or the transposed one on the same values.
template <class I>
struct Structure {
  std::string name;
  int64_t rows, cols;
  Array<I> ptr, idx, perm, table;
  bool permuted;

  int64_t nnz() const { return idx.size(); }
  int64_t n_blocks() const { return table.size() / 2 - 1; }
  int64_t value_at(int64_t p) const { return permuted ? perm[p] : p; }
};

template <class I>
Structure<I> structure(const Pattern& pattern, int64_t block_weight) {
  std::vector<I> ptr{0}, idx;
  for (const auto& row : pattern.columns) {
    idx.insert(idx.end(), row.begin(), row.end());
    ptr.push_back(static_cast<I>(idx.size()));
  }
  const Array<I> p(ptr), i(idx);
  const auto table = analysis::row_blocks<I>(p.data(), pattern.rows, i.data(), nullptr, block_weight);
  return {pattern.name, pattern.rows, pattern.cols, p, i, Array<I>(), table, false};
}

template <class I>
Structure<I> transposed(const Structure<I>& S, int64_t block_weight) {
  Array<I> ptr(S.cols + 1), idx(S.nnz()), perm(S.nnz());
  analysis::transpose(S.ptr.data(), S.rows, S.idx.data(), S.cols, ptr.data(), idx.data(), perm.data());
  const auto table = analysis::row_blocks<I>(ptr.data(), S.cols, idx.data(), perm.data(), block_weight);
  return {S.name + " transposed", S.cols, S.rows, ptr, idx, perm, table, true};
}

}  // namespace learnsolve::test
