// Stencils, their products and correlations against the definition, point by point; blocks in any partition.
#include "kernels/stencil.h"

#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;

// A view and the arrays that it points to, made as csrc/ops/stencil.cpp makes it, for offsets within the
// grid.
struct Grid {
  StencilView view{};
  Array<int64_t> offsets, bounds;

  Grid(std::vector<int64_t> size, std::vector<bool> periodic, const std::vector<int64_t>& o, int64_t block)
      : offsets(o) {
    std::vector<int64_t> borders{0, size[2]};
    for (size_t k = 0; k < o.size(); k += 3)
      for (const int64_t border : {-o[k + 2], size[2] - o[k + 2]})
        if (border > 0 && border < size[2]) borders.push_back(border);
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    bounds = Array<int64_t>(borders);
    for (int a = 0; a < 3; ++a) view.grid[a] = size[a], view.periodic[a] = periodic[a];
    view.offsets = offsets.data(), view.count = static_cast<int64_t>(o.size()) / 3;
    view.bounds = bounds.data(), view.pieces = bounds.size() - 1;
    view.segment = std::min(size[2], block);
    view.segments = (size[2] + view.segment - 1) / view.segment;
    view.lines = view.segments > 1 ? 1 : block / view.segment;
  }

  // Of point i by offset k, or -1.
  int64_t neighbor(int64_t i, int64_t k) const {
    const int64_t at[3] = {i / view.grid[2] / view.grid[1], i / view.grid[2] % view.grid[1],
                           i % view.grid[2]};
    int64_t j = 0;
    for (int a = 0; a < 3; ++a) {
      int64_t t = at[a] + offsets[3 * k + a];
      if (view.periodic[a]) t = (t % view.grid[a] + view.grid[a]) % view.grid[a];
      if (t < 0 || t >= view.grid[a]) return -1;
      j = j * view.grid[a] + t;
    }
    return j;
  }
};

template <class T>
void grid_case(Random& random, const Grid& grid, const std::string& name) {
  const StencilView& S = grid.view;
  const int64_t n = S.points(), K = S.count;
  const Array<T> x = uniform<T>(random, n), u = uniform<T>(random, n);
  for (const bool add : {false, true}) {
    for (const Coefficients kind :
         {Coefficients::constant, Coefficients::variable, Coefficients::of_neighbor}) {
      const Array<T> c = uniform<T>(random, kind == Coefficients::constant ? K : K * n);
      const Array<T> start = add ? uniform<T>(random, n) : unwritten<T>(n);
      std::vector<Sum> expected(n);
      for (int64_t i = 0; i < n; ++i) {
        if (add) expected[i].add(start[i]);
        for (int64_t k = 0; k < K; ++k)
          if (const int64_t j = grid.neighbor(i, k); j >= 0)
            expected[i].add(c[kind == Coefficients::constant   ? k
                              : kind == Coefficients::variable ? k * n + i
                                                               : k * n + j],
                            x[j]);
      }
      Array<T> whole;
      for (const Partition& partition : partitions(S.blocks())) {
        Array<T> y = start;
        for_ranges(partition, [&](int64_t b0, int64_t b1) {
          isa::stencil<T>(S, kind, b0, b1, c.data(), x.data(), y.data(), add);
        });
        if (partition.name == "whole") require_close(y, expected, "stencil, " + name), whole = y;
        require_same_bits(y, whole, "stencil, " + name);
      }
    }
    const Array<T> start = add ? uniform<T>(random, K * n) : unwritten<T>(K * n);
    std::vector<Sum> expected(K * n), sums(K);
    for (int64_t k = 0; k < K; ++k)
      for (int64_t i = 0; i < n; ++i) {
        if (add) expected[k * n + i].add(start[k * n + i]);
        if (const int64_t j = grid.neighbor(i, k); j >= 0)
          expected[k * n + i].add(u[i], x[j]), sums[k].add(u[i], x[j]);
      }
    Array<T> whole, whole_sums;
    for (const Partition& partition : partitions(S.blocks())) {
      Array<T> q = start, partial = unwritten<T>(S.blocks() * K), total(K);
      for_ranges(partition, [&](int64_t b0, int64_t b1) {
        isa::stencil_products<T>(S, b0, b1, u.data(), x.data(), q.data(), add);
        isa::stencil_correlation<T>(S, b0, b1, u.data(), x.data(), partial.data());
      });
      for (int64_t b = 0; b < S.blocks(); ++b)
        for (int64_t k = 0; k < K; ++k) total[k] += partial[b * K + k];
      if (partition.name == "whole") {
        require_close(q, expected, "stencil_products, " + name), whole = q;
        require_close(total, sums, "stencil_correlation, " + name), whole_sums = total;
      }
      require_same_bits(q, whole, "stencil_products, " + name);
      require_same_bits(total, whole_sums, "stencil_correlation, " + name);
    }
  }
}

template <class T>
void grids(Random& random) {
  std::uniform_int_distribution<int64_t> draw(-3, 3);
  const std::vector<std::vector<int64_t>> sizes{{1, 1, 200}, {1, 9, 71}, {6, 5, 13}, {4, 4, 4}, {30, 8, 5}};
  for (const auto& size : sizes)
    for (const bool around : {false, true})
      for (const int64_t count : {1, 5, 27, 70}) {  // in one chunk and in several
        std::vector<int64_t> offsets;
        for (int64_t k = 0; k < count; ++k)
          for (int a = 0; a < 3; ++a) offsets.push_back(size[a] == 1 ? 0 : draw(random));
        const Grid grid(size, {false, around, around}, offsets, 48);
        if (kThreads && (grid.view.blocks() < 4 || count == 70)) continue;
        grid_case<T>(random, grid, std::to_string(count) + " offsets, lines of " + std::to_string(size[2]));
      }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(stencils) {
  using namespace learnsolve::test;
  Random random(6);
  grids<float>(random);
  grids<double>(random);
}
