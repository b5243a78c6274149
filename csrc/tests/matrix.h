// What the native tests share: an assertion, and square matrices.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "analysis/pattern.h"

namespace learnsolve::test {

inline void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

// The entries (i, j) for which there(i, j) holds, by rows and by columns.
template <class I>
struct Matrix {
  int64_t n;
  std::vector<I> ptr{0}, idx, tptr, tidx, perm, diagonal;

  template <class F>
  Matrix(int64_t n_, const F& there) : n(n_), tptr(n_ + 1), diagonal(n_) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j)
        if (there(i, j)) idx.push_back(static_cast<I>(j));
      ptr.push_back(static_cast<I>(idx.size()));
    }
    tidx.resize(idx.size()), perm.resize(idx.size());
    analysis::transpose(ptr.data(), n, idx.data(), n, tptr.data(), tidx.data(), perm.data());
    analysis::diagonal_positions(ptr.data(), n, idx.data(), diagonal.data());
  }
};

// A point of a grid and its neighbors: those that differ by at most one in either direction, and by at most
// `reach` in sum.
inline auto grid(int64_t width, int64_t reach) {
  return [=](int64_t i, int64_t j) {
    const int64_t x = std::abs(i % width - j % width), y = std::abs(i / width - j / width);
    return x <= 1 && y <= 1 && x + y <= reach;
  };
}

}  // namespace learnsolve::test
