// The passes of conjugate gradients and of their adjoint against plain sums.
#include "kernels/pcg.h"

#include "kernels/complex_columns.h"
#include "kernels/pcg_adjoint.h"
#include "kernels/sddmm_pairs.h"
#include "tests/cases.h"

namespace learnsolve::test {
namespace {

namespace isa = learnsolve::LEARNSOLVE_ISA;

Sum plus(const Sum& a, const Sum& b) {
  return {a.value + b.value, a.magnitude + b.magnitude, a.roundings + b.roundings + 1};
}
Sum times(const Sum& a, const Sum& b) {
  return {a.value * b.value, a.magnitude * b.magnitude, a.roundings + b.roundings + 1};
}
template <class T>
Sum exact(T value) {
  return {static_cast<long double>(value), std::fabs(static_cast<long double>(value)), 0};
}

// Vectors with k columns for a square matrix, and one coefficient a column.
template <class T, class I>
struct Operands {
  const Structure<I>& S;
  int64_t k, n;
  Array<T> values, p, u, w, r, next, x, d, a, b, c;
  Operands(Random& random, const Structure<I>& S_, int64_t k_)
      : S(S_),
        k(k_),
        n(S.rows * k),
        values(uniform<T>(random, S.nnz())),
        p(uniform<T>(random, n)),
        u(uniform<T>(random, n)),
        w(uniform<T>(random, n)),
        r(uniform<T>(random, n)),
        next(uniform<T>(random, n)),
        x(uniform<T>(random, n)),
        d(uniform<T>(random, S.rows)),
        a(uniform<T>(random, k)),
        b(uniform<T>(random, k)),
        c(uniform<T>(random, k)) {}
  CsrView<T, I> view() const {
    return {S.ptr.data(), S.idx.data(), S.permuted ? S.perm.data() : nullptr, values.data()};
  }
  // A v
  std::vector<Sum> product(const Array<T>& v) const {
    std::vector<Sum> out(n);
    for (int64_t i = 0; i < S.rows; ++i)
      for (int64_t j = 0; j < k; ++j)
        for (int64_t q = S.ptr[i]; q < S.ptr[i + 1]; ++q)
          out[i * k + j].add(values[S.value_at(q)], v[S.idx[q] * k + j]);
    return out;
  }
  // f(row, column, element) summed over the rows of each block
  template <class F>
  std::vector<Sum> block_sums(const F& f) const {
    std::vector<Sum> sums(S.n_blocks() * k);
    for (int64_t block = 0; block < S.n_blocks(); ++block)
      for (int64_t i = S.table[2 * block]; i < S.table[2 * block + 2]; ++i)
        for (int64_t j = 0; j < k; ++j) sums[block * k + j] = plus(sums[block * k + j], f(i, j, i * k + j));
    return sums;
  }
};

// call(b0, b1, outputs) for every partition; outputs begin as `start`. The first is compared with `expected`.
template <class T, class F>
void check(int64_t n_blocks, const std::vector<Array<T>>& start,
           const std::vector<std::vector<Sum>>& expected, const std::string& name, const F& call) {
  std::vector<Array<T>> whole;
  for (const Partition& partition : partitions(n_blocks)) {
    std::vector<Array<T>> got = start;
    for_ranges(partition, [&](int64_t b0, int64_t b1) { call(b0, b1, got); });
    if (partition.name == "whole") {
      for (size_t o = 0; o < expected.size(); ++o)
        require_close(got[o], expected[o], name + ", output " + std::to_string(o));
      whole = got;
    }
    for (size_t o = 0; o < got.size(); ++o) require_same_bits(got[o], whole[o], name);
  }
}

template <class T, class I>
void forward_passes(const Operands<T, I>& o, const std::string& name) {
  const int64_t sums = o.S.n_blocks() * o.k, blocks = o.S.n_blocks();
  const RowBlocks<I> table{o.S.table.data()};
  const std::vector<Sum> q = o.product(o.p);
  check<T>(blocks, {unwritten<T>(o.n), unwritten<T>(sums)},
           {q, o.block_sums([&](int64_t, int64_t, int64_t e) { return times(exact(o.u[e]), q[e]); })},
           "spmm_dot, " + name, [&](int64_t b0, int64_t b1, std::vector<Array<T>>& out) {
             isa::spmm_dot<T, I>(o.view(), table, b0, b1, o.p.data(), o.u.data(), o.k, out[0].data(),
                                 out[1].data());
           });
  std::vector<Sum> residual(o.n), x(o.n), next(o.n), both(o.n);
  for (int64_t i = 0; i < o.S.rows; ++i)
    for (int64_t j = 0; j < o.k; ++j) {
      const int64_t e = i * o.k + j;
      residual[e] = plus(exact(o.r[e]), times(exact(-o.a[j]), exact(o.u[e])));
      x[e] = plus(exact(o.x[e]), times(exact(o.a[j]), exact(o.p[e])));
      next[e] = plus(times(exact(o.d[i]), exact(o.r[e])), times(exact(o.b[j]), exact(o.p[e])));
      if (j == 1) next[e] = Sum{};
      both[e] = plus(times(exact(o.a[j]), exact(o.u[e])), times(exact(o.b[j]), exact(o.w[e])));
    }
  const auto square = [&](int64_t, int64_t, int64_t e) { return times(residual[e], residual[e]); };
  const auto weighted = [&](int64_t i, int64_t j, int64_t e) {
    return times(exact(o.d[i]), square(i, j, e));
  };
  check<T>(blocks, {unwritten<T>(o.n), unwritten<T>(sums), unwritten<T>(sums)},
           {residual, o.block_sums(square), o.block_sums(weighted)}, "pcg_residual, " + name,
           [&](int64_t b0, int64_t b1, std::vector<Array<T>>& out) {
             isa::pcg_residual<T, I>(table, b0, b1,
                                     {o.a.data(), o.r.data(), o.u.data(), o.d.data(), out[0].data(),
                                      out[1].data(), out[2].data()},
                                     o.k);
           });
  Array<T> keep(o.k);
  for (int64_t j = 0; j < o.k; ++j) keep[j] = j != 1;
  check<T>(blocks, {o.x, unwritten<T>(o.n)}, {x, next}, "pcg_update, " + name,
           [&](int64_t b0, int64_t b1, std::vector<Array<T>>& out) {
             isa::pcg_update<T, I>(table, b0, b1,
                                   {o.a.data(), o.b.data(), keep.data(), o.r.data(), o.d.data(), o.p.data(),
                                    out[0].data(), out[1].data()},
                                   o.k);
           });
  check<T>(blocks, {unwritten<T>(o.n)}, {both}, "pcg_combine, " + name,
           [&](int64_t b0, int64_t b1, std::vector<Array<T>>& out) {
             isa::pcg_combine<T, I>(table, b0, b1,
                                    {o.a.data(), o.u.data(), o.b.data(), o.w.data(), out[0].data()}, o.k);
           });
  check<T>(blocks, {unwritten<T>(sums)},
           {o.block_sums([&](int64_t, int64_t, int64_t e) { return times(exact(o.u[e]), exact(o.w[e])); })},
           "pcg_dot, " + name, [&](int64_t b0, int64_t b1, std::vector<Array<T>>& out) {
             isa::pcg_dot<T, I>(table, b0, b1, {o.u.data(), o.w.data(), out[0].data()}, o.k);
           });
}

// Sums and combinations of columns, of arrays that end where their last number does; none of no rows or
// columns.
template <class T>
void column_sums(Random& random) {
  for (const int64_t k : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33})
    for (const int64_t n : {0, 1, 2, 5, 31, 64, 129}) {
      const Array<T> u = uniform<T>(random, n * k), v = uniform<T>(random, n * k), a = uniform<T>(random, k);
      Array<T> dots = unwritten<T>(k), y = unwritten<T>(n * k);
      std::vector<Sum> wanted(k), combined(n * k);
      for (int64_t i = 0; i < n * k; ++i) {
        wanted[i % k].add(u[i], v[i]);
        combined[i].add(a[i % k], u[i]), combined[i].add(a[i % k], v[i]);
      }
      isa::column_dots(u.data(), v.data(), n, k, dots.data());
      isa::column_combination(a.data(), u.data(), n, k, y.data(), false);
      isa::column_combination(a.data(), v.data(), n, k, y.data(), true);
      const std::string size = std::to_string(n) + " x " + std::to_string(k);
      require_close(dots, wanted, "column_dots, " + size);
      require_close(y, combined, "column_combination, " + size);
      if (k % 2) continue;  // as complex numbers
      dots = unwritten<T>(k), y = unwritten<T>(n * k);
      wanted.assign(k, {}), combined.assign(n * k, {});
      for (int64_t i = 0; i < n * k; i += 2) {
        add_product(&wanted[i % k], &u[i], &v[i]);
        add_product(&combined[i], &a[i % k], &u[i]), add_product(&combined[i], &a[i % k], &v[i]);
      }
      isa::complex_column_dots(u.data(), v.data(), n, k / 2, dots.data());
      isa::complex_column_combination(a.data(), u.data(), n, k / 2, y.data(), false);
      isa::complex_column_combination(a.data(), v.data(), n, k / 2, y.data(), true);
      require_close(dots, wanted, "complex_column_dots, " + size);
      require_close(y, combined, "complex_column_combination, " + size);
    }
}

template <class T, class I>
void adjoint_passes(const Operands<T, I>& o, bool with_x, int kind, const std::string& name) {
  const int64_t sums = o.S.n_blocks() * o.k, blocks = o.S.n_blocks();
  const RowBlocks<I> table{o.S.table.data()};
  const T* xbar = with_x ? o.x.data() : nullptr;
  std::vector<Sum> rbar(o.n), dbar(o.S.rows), pbar(o.n), q(o.n);
  const std::vector<Sum> product = o.product(o.u);
  for (int64_t i = 0; i < o.S.rows; ++i) {
    dbar[i] = exact(o.d[i]);
    for (int64_t j = 0; j < o.k; ++j) {
      const int64_t e = i * o.k + j;
      const Sum next = exact(o.next[e]), bend = times(exact(o.a[j]), next), zbar = plus(exact(o.p[e]), bend);
      Sum through = kind == 2 ? exact(o.w[e]) : plus(zbar, bend);
      if (kind == 1) through = times(exact(o.d[i]), through), dbar[i] = plus(dbar[i], times(zbar, next));
      rbar[e] = plus(plus(exact(o.u[e]), through), times(exact(o.b[j]), next));
      const Sum difference = plus(exact(o.r[e]), exact(-o.next[e]));
      q[e] = times(difference, exact(o.c[j]));
      pbar[e] = plus(plus(times(exact(o.a[j]), exact(o.p[e])), q[e]), product[e]);
      if (with_x) pbar[e] = plus(pbar[e], times(exact(o.b[j]), exact(o.x[e])));
    }
  }
  const auto alphabar = [&](int64_t, int64_t, int64_t e) {
    const Sum through_x = with_x ? times(exact(o.x[e]), exact(o.p[e])) : Sum{};
    Sum minus = times(rbar[e], q[e]);
    minus.value = -minus.value;
    return plus(through_x, minus);
  };
  std::vector<std::vector<Sum>> expected{rbar, o.block_sums(alphabar)};
  if (kind == 1) expected.push_back(dbar);
  check<T>(blocks, {o.u, unwritten<T>(sums), o.d}, expected, "pcg_adjoint_residual, " + name,
           [&](int64_t b0, int64_t b1, std::vector<Array<T>>& out) {
             isa::pcg_adjoint_residual<T, I>(
                 table, b0, b1,
                 {o.a.data(), o.b.data(), o.c.data(), o.p.data(), kind == 2 ? o.w.data() : nullptr,
                  kind == 1 ? o.d.data() : nullptr, o.next.data(), o.r.data(), xbar, o.p.data(),
                  out[0].data(), out[2].data(), out[1].data()},
                 o.k);
           });
  const auto before = [&](int64_t, int64_t, int64_t e) { return times(pbar[e], exact(o.w[e])); };
  check<T>(blocks, {o.p, unwritten<T>(sums)}, {pbar, o.block_sums(before)}, "pcg_adjoint_direction, " + name,
           [&](int64_t b0, int64_t b1, std::vector<Array<T>>& out) {
             isa::pcg_adjoint_direction<T, I>(
                 o.view(), table, b0, b1,
                 {o.a.data(), o.b.data(), o.c.data(), o.u.data(), xbar, o.r.data(), o.next.data(), o.w.data(),
                  out[0].data(), out[1].data()},
                 o.k, nullptr, nullptr);
           });
}

template <class T, class I>
void pairs(const Operands<T, I>& o, const std::string& name) {
  const T* u[] = {o.p.data(), o.u.data(), o.w.data(), o.r.data(), o.next.data(), o.x.data()};
  const T* v[] = {o.u.data(), o.w.data(), o.r.data(), o.next.data(), o.x.data(), o.p.data()};
  std::vector<Sum> expected(o.S.nnz());
  for (int64_t i = 0; i < o.S.rows; ++i)
    for (int64_t q = o.S.ptr[i]; q < o.S.ptr[i + 1]; ++q) {
      expected[q].add(o.values[q]);
      for (int e = 0; e < 6; ++e)
        for (int64_t j = 0; j < o.k; ++j) expected[q].add(u[e][i * o.k + j], v[e][o.S.idx[q] * o.k + j]);
    }
  const RowBlocks<I> table{o.S.table.data()};
  check<T>(
      o.S.n_blocks(), {o.values, o.values}, {expected, expected}, "sddmm_pairs, " + name,
      [&](int64_t b0, int64_t b1, std::vector<Array<T>>& out) {
        isa::sddmm_pairs<T, I>(o.S.ptr.data(), o.S.idx.data(), table, b0, b1, u, v, 6, o.k, out[0].data());
        // In other groups: the same bits (compared below).
        isa::sddmm_pairs<T, I>(o.S.ptr.data(), o.S.idx.data(), table, b0, b1, u, v, 1, o.k, out[1].data());
        isa::sddmm_pairs<T, I>(o.S.ptr.data(), o.S.idx.data(), table, b0, b1, u + 1, v + 1, 5, o.k,
                               out[1].data());
        if (b0 == 0 && b1 == o.S.n_blocks())
          require_same_bits(out[0], out[1], "sddmm_pairs in groups, " + name);
      });
}

template <class T, class I>
void all_cases(Random& random, const char* types) {
  for_each_case<I>(random, [&](const Structure<I>& A, const Structure<I>&, int64_t k) {
    if (A.rows != A.cols) return;
    const std::string name = A.name + ", " + types + ", k = " + std::to_string(k);
    const Operands<T, I> operands(random, A, k);
    forward_passes(operands, name);
    for (const bool with_x : {false, true})
      for (const int kind : {0, 1, 2}) adjoint_passes(operands, with_x, kind, name);
    if (!A.permuted) pairs(operands, name);
  });
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(pcg) {
  using namespace learnsolve::test;
  Random random(7);
  column_sums<float>(random), column_sums<double>(random);
  all_cases<float, int32_t>(random, "float, int32");
  all_cases<float, int64_t>(random, "float, int64");
  all_cases<double, int32_t>(random, "double, int32");
  all_cases<double, int64_t>(random, "double, int64");
}
