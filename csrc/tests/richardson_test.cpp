// Sweeps x' = x + s o (b - A x) + m (x - old) and their adjoint against plain sums.
#include "kernels/richardson.h"

#include "tests/cases.h"
#include "tests/richardson_system.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;

template <class T, class I>
void sweep_case(const System<T, I>& system, bool momentum, const std::string& name) {
  const Structure<I>& S = system.S;
  const int64_t k = system.k;
  std::vector<Sum> next(S.rows * k), squares(S.n_blocks() * k);
  for (int64_t block = 0; block < S.n_blocks(); ++block)
    for (int64_t i = S.table[2 * block]; i < S.table[2 * block + 2]; ++i)
      for (int64_t j = 0; j < k; ++j) {
        next[i * k + j] = next_of(system, i, j, momentum);
        squares[block * k + j] = squares[block * k + j] + square(system.residual[i * k + j]);
      }
  Array<T> next_whole, squares_whole;
  for (const Partition& partition : partitions(S.n_blocks())) {
    Array<T> got = unwritten<T>(S.rows * k), got_squares = unwritten<T>(S.n_blocks() * k);
    for_ranges(partition, [&](int64_t b0, int64_t b1) {
      isa::richardson_sweep<T, I>(
          system.view(), {S.table.data()}, b0, b1,
          {system.x.data(), system.b.data(), system.s.data(), momentum ? system.old.data() : nullptr,
           system.momentum, got.data(), got_squares.data()},
          k);
    });
    if (partition.name == "whole") {
      require_close(got, next, "richardson_sweep, " + name);
      require_close(got_squares, squares, "richardson_sweep squares, " + name);
      next_whole = got, squares_whole = got_squares;
    }
    require_same_bits(got, next_whole, "richardson_sweep, " + name);
    require_same_bits(got_squares, squares_whole, "richardson_sweep squares, " + name);
  }
}

template <class T, class I>
void adjoint_case(Random& random, const System<T, I>& system, bool norms, bool want_b, bool want_s,
                  bool momentum, bool want_m, const std::string& name) {
  const Structure<I>& S = system.S;
  const int64_t k = system.k;
  const Array<T> b_start = uniform<T>(random, S.rows * k), s_start = uniform<T>(random, S.rows);
  std::vector<Sum> g(S.rows * k), bbar(S.rows * k), sbar(S.rows), later(S.rows * k), sums(S.n_blocks() * k);
  for (int64_t block = 0; block < S.n_blocks(); ++block)
    for (int64_t o = S.table[2 * block] * k; o < S.table[2 * block + 2] * k; ++o)
      sums[block * k + o % k] = sums[block * k + o % k] + scaled(moved(system, o), system.lambda[o]);
  for (int64_t i = 0; i < S.rows; ++i) {
    sbar[i].add(s_start[i]);
    for (int64_t j = 0; j < k; ++j) {
      const int64_t o = i * k + j;
      const Sum rho = rho_of(system, i, j, norms);
      g[o] = scaled(rho, -1);
      bbar[o].add(b_start[o]);
      bbar[o] = bbar[o] + rho;
      sbar[i] = sbar[i] + scaled(system.residual[o], system.lambda[o]);
      later[o] = later_of(system, o);
    }
  }
  Array<T> whole[5];
  for (const Partition& partition : partitions(S.n_blocks())) {
    Array<T> got[5] = {unwritten<T>(S.rows * k), b_start, s_start, system.later,
                       unwritten<T>(S.n_blocks() * k)};
    for_ranges(partition, [&](int64_t b0, int64_t b1) {
      if (norms || want_s)
        isa::spmm<T, I>(system.view(), {S.table.data()}, b0, b1, system.x.data(), k, got[0].data(), false);
      isa::richardson_adjoint<T, I>(
          {S.table.data()}, b0, b1,
          {system.x.data(), system.b.data(), system.s.data(), system.lambda.data(),
           norms ? system.c.data() : nullptr, got[0].data(), want_b ? got[1].data() : nullptr,
           want_s ? got[2].data() : nullptr, system.momentum, system.factor,
           momentum ? got[3].data() : nullptr, want_m ? system.old.data() : nullptr, got[4].data()},
          k);
    });
    if (partition.name == "whole") {
      require_close(got[0], g, "richardson_adjoint g, " + name);
      if (want_b) require_close(got[1], bbar, "richardson_adjoint bbar, " + name);
      if (want_s) require_close(got[2], sbar, "richardson_adjoint sbar, " + name);
      if (momentum) require_close(got[3], later, "richardson_adjoint later, " + name);
      if (want_m) require_close(got[4], sums, "richardson_adjoint sums, " + name);
      for (int o = 0; o < 5; ++o) whole[o] = got[o];
    }
    for (int o = 0; o < (want_m ? 5 : 4); ++o)
      require_same_bits(got[o], whole[o], "richardson_adjoint, " + name);
  }
}

template <class T, class I>
void all_cases(Random& random, const char* types) {
  for_each_case<I>(random, [&](const Structure<I>& A, const Structure<I>&, int64_t k) {
    if (A.rows != A.cols) return;
    const std::string name = A.name + ", " + types + ", k = " + std::to_string(k);
    const System<T, I> system(random, A, k);
    for (const bool momentum : {false, true}) sweep_case(system, momentum, name);
    for (const bool norms : {false, true})
      for (const bool want_b : {false, true})
        for (const bool want_s : {false, true}) {
          adjoint_case(random, system, norms, want_b, want_s, false, false, name);
          adjoint_case(random, system, norms, want_b, want_s, true, true, name);
        }
    adjoint_case(random, system, false, true, false, true, false, name);
  });
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(richardson) {
  using namespace learnsolve::test;
  Random random(3);
  all_cases<float, int32_t>(random, "float, int32");
  all_cases<float, int64_t>(random, "float, int64");
  all_cases<double, int32_t>(random, "double, int32");
  all_cases<double, int64_t>(random, "double, int64");
}
