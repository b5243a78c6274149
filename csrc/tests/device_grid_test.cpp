// Persistent CUDA kernels on the host: their bits must not depend on the number of blocks.
#include "kernels/richardson.cuh"
#include "kernels/richardson_adjoint.cuh"
#include "tests/device_blocks.h"
#include "tests/richardson_system.h"
#include "tests/schedules.h"

namespace learnsolve::test {
namespace {

using namespace learnsolve::cuda;

constexpr int64_t kSweeps = 7;

// Two systems with one pattern, and all that sweeps and their adjoint read and write.
template <class T, class I>
struct Batch {
  static constexpr int64_t batch = 2;
  const Structure<I>&A, &At;
  const int64_t n, k, nk;
  const Chunks rows;
  Aligned<I> ptr, idx, tptr, tidx, tperm;
  Aligned<T> a, scale, momentum, b, x0, before, c, any, learns;
  Aligned<T> x, slots, scratch, partials, lambda[2], g, gb, gs, sums;

  Batch(Random& random, const Structure<I>& A_, const Structure<I>& At_, int64_t k_, int64_t stride)
      : A(A_),
        At(At_),
        n(A_.rows),
        k(k_),
        nk(n * k),
        rows(n),
        ptr(aligned(A_.ptr)),
        idx(aligned(A_.idx)),
        tptr(aligned(At_.ptr)),
        tidx(aligned(At_.idx)),
        tperm(aligned(At_.perm)),
        a(random_values<T>(random, batch * A_.nnz())),
        scale(random_values<T>(random, n)),
        momentum(random_values<T>(random, kSweeps)),
        b(random_values<T>(random, batch * nk)),
        x0(random_values<T>(random, batch * nk)),
        before(random_values<T>(random, batch * nk)),
        c(random_values<T>(random, batch * kSweeps * k)),
        any(batch * kSweeps),
        learns(batch * k),
        x(batch * nk),
        slots(stride == 1 ? batch * kSweeps * nk : 0),
        scratch(3 * batch * nk),
        partials(kSweeps * batch * rows.count * k),
        lambda{random_values<T>(random, batch * nk), random_values<T>(random, batch * nk)},
        g(kSweeps * batch * nk),
        gb(batch * nk),
        gs(n),
        sums(kSweeps * batch * rows.count) {
    for (int64_t o = 0; o < any.size(); ++o) any[o] = 1;
    for (int64_t o = 0; o < learns.size(); ++o) learns[o] = 1;
    for (int64_t o = 0; o < gb.size(); ++o) gb[o] = 0;
    for (int64_t o = 0; o < gs.size(); ++o) gs[o] = 0;
    for (int64_t o = 0; o < scale.size(); ++o) scale[o] /= 8;
  }
  RowPass<T, I> matrix(bool transpose) const {
    RowPass<T, I> P{};
    P.rows = {transpose ? tptr.data() : ptr.data(), nullptr, n, A.nnz(), 0, 0, 1};
    P.idx = transpose ? tidx.data() : idx.data(), P.perm = transpose ? tperm.data() : nullptr;
    P.a = a.data(), P.a_step = A.nnz(), P.k = k, P.batch = batch;
    return P;
  }
  Coefficients<T> coefficients(bool heavy) const {
    return {scale.data(), heavy ? momentum.data() : nullptr, 0, 0, 0, 1};
  }
  Sweeps<T, I> sweeps(bool heavy, int64_t stride) {
    Sweeps<T, I> P{matrix(false), nullptr, rows, coefficients(heavy), {}, b.data(), partials.data(), 0};
    P.x = {x0.data(),
           heavy ? before.data() : nullptr,
           x.data(),
           nullptr,
           slots.data(),
           scratch.data(),
           nk,
           nk,
           kSweeps * nk,
           batch * nk,
           kSweeps,
           stride,
           stride == 1 ? kSweeps : 0,
           heavy};
    return P;
  }
  SweepsAdjoint<T, I> adjoint(bool heavy) {
    SweepsAdjoint<T, I> P{};
    P.A = matrix(false), P.At = matrix(true), P.rows = rows, P.coefficients = coefficients(heavy);
    P.sweeps = kSweeps, P.iterates = slots.data(), P.iterates_step = kSweeps * nk;
    P.before = heavy ? before.data() : nullptr, P.b = b.data(), P.learns = learns.data();
    P.c = c.data(), P.norms = any.data(), P.lambda[0] = lambda[0].data(), P.lambda[1] = lambda[1].data();
    P.gb = gb.data(), P.gs = gs.data(), P.sums = heavy ? sums.data() : nullptr;
    P.g = g.data(), P.g_step = batch * nk, P.has_later = heavy, P.need_x0 = true;
    return P;
  }
};

template <class Shape, class T, class I>
void grid_case(const Batch<T, I>& start, bool heavy, const std::string& name) {
  Batch<T, I> one = start;
  on_blocks(1, [&] { sweeps_kernel<Shape, T, I>(one.sweeps(heavy, 1), 0, kSweeps); });
  for (int64_t i = 0; i < Batch<T, I>::batch; ++i)  // what the operator copies
    std::copy_n(one.x0.data() + i * one.nk, one.nk, one.slots.data() + i * kSweeps * one.nk);
  Batch<T, I> forward = one;
  on_blocks(1, [&] { adjoint_kernel<Shape, T, I>(one.adjoint(heavy), 0, kSweeps, true, true); });
  Batch<T, I> launched = forward;  // a launch for each phase
  for (int64_t it = kSweeps - 1; it >= 0; --it)
    for (const bool over_a : {true, false})
      adjoint_kernel<Shape, T, I>(launched.adjoint(heavy), it, it + 1, over_a, !over_a);
  require(same_bits(launched.lambda[0], one.lambda[0]) && same_bits(launched.gs, one.gs) &&
              same_bits(launched.g, one.g),
          name + ": launches give other bits than one persistent kernel");
  for (const int64_t blocks : {2, 5}) {
    Batch<T, I> several = start, unkept = start;
    on_blocks(blocks, [&] { sweeps_kernel<Shape, T, I>(several.sweeps(heavy, 1), 0, kSweeps); });
    require(same_bits(several.x, one.x) && same_bits(several.partials, one.partials),
            name + ": sweeps depend on the number of blocks");
    on_blocks(blocks, [&] { sweeps_kernel<Shape, T, I>(unkept.sweeps(heavy, 0), 0, kSweeps); });
    require(same_bits(unkept.x, one.x), name + ": sweeps that keep nothing give other bits");
    Batch<T, I> back = forward;
    on_blocks(blocks, [&] { adjoint_kernel<Shape, T, I>(back.adjoint(heavy), 0, kSweeps, true, true); });
    for (const int64_t side : {0, 1})
      require(same_bits(back.lambda[side], one.lambda[side]), name + ": lambda depends on the blocks");
    require(same_bits(back.gb, one.gb) && same_bits(back.gs, one.gs) && same_bits(back.g, one.g) &&
                (!heavy || same_bits(back.sums, one.sums)),
            name + ": the adjoint depends on the number of blocks");
  }
}

// The total of every chunk's sum, in every block, after one barrier.
void totals_case(Random& random) {
  const Chunks rows(1000);
  const Array<double> x = uniform<double>(random, rows.rows);
  std::vector<double> whole;
  for (const int64_t blocks : {1, 3, 4}) {
    std::vector<double> partials(rows.count), totals(blocks);
    on_blocks(blocks, [&] {
      double shared[cuda::kThreads];
      const Block<cuda::kThreads> block;
      for_blocks(rows.count, [&](int64_t c) {
        block.each([&](int lane) { shared[lane] = 0; });
        for_teams<4>(rows.begin(c), rows.end(c), [&](const auto& team, int slot, int64_t i) {
          team.first([&] { shared[slot] += x[i]; });
        });
        add_slots(block, shared, cuda::kThreads / 4, 1);
        partials[c] = shared[0];
      });
      grid_sync();
      add_chunks(block, partials.data(), rows.count, 1, 0, 1, shared);
      totals[host_grid.block] = shared[0];
    });
    for (const double total : totals) whole.push_back(total);
  }
  for (const double total : whole) require(total == whole[0], "a total depends on the blocks");
}

template <class T, class I>
void all_cases(Random& random, const std::string& types) {
  const Structure<I> A = structure<I>(banded(700, 700, {0, 1, 5, 690}), 48), At = transposed(A, 48);
  for (const bool heavy : {false, true}) {
    const std::string name = types + (heavy ? ", momentum" : "");
    grid_case<VectorShape<2>>(Batch<T, I>(random, A, At, 1, 1), heavy, name + ", vectors");
    grid_case<ColumnsShape<8, 1>>(Batch<T, I>(random, A, At, 11, 1), heavy, name + ", columns");
  }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(device_grid) {
  using namespace learnsolve::test;
  Random random(11);
  totals_case(random);
  all_cases<float, int64_t>(random, "float, int64");
  all_cases<double, int32_t>(random, "double, int32");
}
