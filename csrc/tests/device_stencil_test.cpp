// The bodies of the CUDA kernels for stencils, run on the host as a device would.
#include "kernels/stencil.cuh"
#include "tests/cases.h"
#include "tests/schedules.h"

namespace learnsolve::test {
namespace {

using namespace learnsolve::cuda;

template <class T>
void stencil_case(Random& random, std::vector<int64_t> grid, std::vector<bool> periodic, int64_t count) {
  std::uniform_int_distribution<int64_t> draw(-3, 3);
  std::vector<int64_t> offsets;
  for (int64_t k = 0; k < count; ++k)
    for (int a = 0; a < 3; ++a)
      offsets.push_back(std::clamp<int64_t>(draw(random), 1 - grid[a], grid[a] - 1));
  StencilView view{};
  for (int a = 0; a < 3; ++a) view.grid[a] = grid[a], view.periodic[a] = periodic[a];
  view.offsets = offsets.data(), view.count = count;
  const int64_t n = view.points(), batch = 2;
  const auto neighbor = [&](int64_t i, int64_t k) {
    const int64_t at[3] = {i / grid[2] / grid[1], i / grid[2] % grid[1], i % grid[2]};
    int64_t j = 0;
    for (int a = 0; a < 3; ++a) {
      int64_t t = at[a] + offsets[3 * k + a];
      if (periodic[a]) t = (t % grid[a] + grid[a]) % grid[a];
      if (t < 0 || t >= grid[a]) return int64_t{-1};
      j = j * grid[a] + t;
    }
    return j;
  };
  const Array<T> x = uniform<T>(random, batch * n), u = uniform<T>(random, batch * n);
  for (const bool adds_up : {false, true}) {
    const int64_t results = adds_up ? 1 : batch;
    for (const Coefficients kind :
         {Coefficients::constant, Coefficients::variable, Coefficients::of_neighbor}) {
      const int64_t each = kind == Coefficients::constant ? 1 : n;
      const Array<T> c = uniform<T>(random, batch * count * each);
      std::vector<Sum> expected(results * n);
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t i = 0; i < n; ++i)
          for (int64_t k = 0; k < count; ++k)
            if (const int64_t j = neighbor(i, k); j >= 0)
              expected[(adds_up ? 0 : b * n) + i].add(
                  c[(b * count + k) * each + (kind == Coefficients::constant   ? 0
                                              : kind == Coefficients::variable ? i
                                                                               : j)],
                  x[b * n + j]);
      Array<T> y = unwritten<T>(results * n);
      for (int64_t from = 0; from < count; from += kStencilOffsets) {
        const StencilPass<T> P{StencilOffsets::of(view, from),
                               kind,
                               c.data() + from * each,
                               x.data(),
                               y.data(),
                               count * each,
                               n,
                               adds_up ? 0 : n,
                               batch,
                               from > 0};
        for_members(P.adds_up(), batch, [&](Members members) {
          for (int64_t i = 0; i < n; ++i) stencil_point(P, GridPoint::number(P.S, i), members);
        });
      }
      require_close(y, expected, "stencil, " + std::to_string(count) + " offsets");
    }
    std::vector<Sum> expected(results * count * n), sums(results * count);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t k = 0; k < count; ++k)
        for (int64_t i = 0; i < n; ++i)
          if (const int64_t j = neighbor(i, k); j >= 0) {
            const int64_t result = (adds_up ? 0 : b) * count + k;
            expected[result * n + i].add(u[b * n + i], x[b * n + j]);
            sums[result].add(u[b * n + i], x[b * n + j]);
          }
    const int64_t parts = (n + kStencilPart - 1) / kStencilPart;
    Array<T> q = unwritten<T>(results * count * n), partial = unwritten<T>(batch * parts * count),
             total = unwritten<T>(results * count);
    static SumsScratch<T> scratch;
    for (int64_t from = 0; from < count; from += kStencilOffsets) {
      const StencilProductsPass<T> P{
          StencilOffsets::of(view, from), u.data(), x.data(), q.data() + from * n, n, n,
          adds_up ? 0 : count * n,        batch};
      for_members(P.adds_up(), batch, [&](Members members) {
        for (int64_t i = 0; i < n; ++i) stencil_products_point(P, GridPoint::number(P.S, i), members);
      });
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t m = 0; m < parts; ++m)
          stencil_part_sums(HostTeam<kStencilThreads>{from > 0}, P, m, b,
                            partial.data() + (b * parts + m) * count + from, scratch);
    }
    const int64_t terms = batch / results * parts;
    for (int64_t r = 0; r < results; ++r)
      for (int64_t k = 0; k < count; ++k)
        stencil_total(HostTeam<32>{}, partial.data() + r * terms * count, terms, static_cast<int>(count),
                      static_cast<int>(k), total.data() + r * count);
    require_close(q, expected, "stencil products");
    require_close(total, sums, "sums of stencil products");
  }
}

template <class T>
void stencils(Random& random) {
  for (const std::vector<int64_t>& grid :
       {std::vector<int64_t>{1, 1, 200}, {1, 9, 31}, {6, 5, 13}, {4, 4, 4}, {1, 100, 100}})
    for (const bool around : {false, true})
      for (const int64_t count : {1, 5, 70})
        if (count < 70 || grid[1] < 100) stencil_case<T>(random, grid, {false, around, around}, count);
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(device_stencils) {
  using namespace learnsolve::test;
  Random random(12);
  stencils<float>(random);
  stencils<double>(random);
}
