// The bodies of the CUDA kernels for sparse products and sums, run on the host as a device would,
// lanes forwards and backwards.
#include "analysis/union.h"
#include "kernels/add.cuh"
#include "kernels/spgemm.cuh"
#include "tests/cases.h"
#include "tests/schedules.h"

namespace learnsolve::test {
namespace {

using namespace learnsolve::cuda;

// C = A B, its pattern every second entry of the product's if `masked`, with the plan that
// learnsolve/matrix/device.py makes.
template <class I>
struct Multiplication {
  Structure<I> A, B, T;
  std::vector<std::pair<int64_t, int64_t>> factors;  // of each product
  std::vector<int32_t> positions, starts, pairs;
  std::vector<int64_t> first, pair_starts;
  std::vector<I> c_ptr{0}, c_idx;
  int64_t nnz = 0;

  Multiplication(const Pattern& a, const Pattern& b, bool masked)
      : A(structure<I>(a, 48)), B(structure<I>(b, 48)), T(transposed(A, 48)) {
    std::vector<std::vector<int64_t>> of_entry;
    for (int64_t i = 0; i < A.rows; ++i) {
      std::vector<int64_t> place(B.cols, -1);
      for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p)
        for (int64_t q = B.ptr[A.idx[p]]; q < B.ptr[A.idx[p] + 1]; ++q) place[B.idx[q]] = 0;
      for (int64_t j = 0; j < B.cols; ++j)
        if (place[j] == 0) place[j] = masked && (i + j) % 2 ? -1 : nnz++;
      for (int64_t j = 0; j < B.cols; ++j)
        if (place[j] >= 0) c_idx.push_back(static_cast<I>(j));
      c_ptr.push_back(static_cast<I>(nnz));
      of_entry.resize(nnz);
      for (int64_t p = A.ptr[i]; p < A.ptr[i + 1]; ++p) {
        first.push_back(static_cast<int64_t>(factors.size()));
        for (int64_t q = B.ptr[A.idx[p]]; q < B.ptr[A.idx[p] + 1]; ++q) {
          const int64_t t = place[B.idx[q]];
          if (t >= 0) of_entry[t].push_back(static_cast<int64_t>(factors.size()));
          positions.push_back(static_cast<int32_t>(t));
          factors.emplace_back(p, q);
        }
      }
    }
    first.push_back(static_cast<int64_t>(factors.size()));
    pair_starts.push_back(0);
    for (const auto& list : of_entry) {
      for (const int64_t f : list)
        pairs.push_back(static_cast<int32_t>(factors[f].first)),
            pairs.push_back(static_cast<int32_t>(factors[f].second));
      pair_starts.push_back(static_cast<int64_t>(pairs.size()) / 2);
    }
    for (int64_t e = 0; e < A.nnz(); ++e) starts.push_back(static_cast<int32_t>(first[T.perm[e]]));
  }
};

// `shared`: which of a, b, c (or g) the batch of two shares, -1 none.
template <int Lanes, class T, class I>
void product_case(Random& random, const Multiplication<I>& M, int shared, const std::string& name) {
  const int64_t na = M.A.nnz(), nb = M.B.nnz(), nc = M.nnz, batch = 2;
  const int64_t sa = shared == 0 ? 0 : na, sb = shared == 1 ? 0 : nb, sc = shared == 2 ? 0 : nc;
  const Array<T> a = uniform<T>(random, 2 * na), b = uniform<T>(random, 2 * nb),
                 g = uniform<T>(random, 2 * nc);
  std::vector<Sum> c_sums((sc ? 2 : 1) * nc), ga_sums((sa ? 2 : 1) * na), gb_sums((sb ? 2 : 1) * nb);
  for (int64_t m = 0; m < batch; ++m)
    for (size_t f = 0; f < M.factors.size(); ++f) {
      const auto [p, q] = M.factors[f];
      const int64_t t = M.positions[f];
      if (t < 0) continue;
      c_sums[m * sc + t].add(a[m * sa + p], b[m * sb + q]);
      ga_sums[m * sa + p].add(g[m * sc + t], b[m * sb + q]);
      gb_sums[m * sb + q].add(g[m * sc + t], a[m * sa + p]);
    }
  Array<T> whole[5];
  for (const bool backwards : {false, true}) {
    const HostTeam<Lanes> team{backwards};
    Array<T> c = unwritten<T>(c_sums.size()), left = unwritten<T>(ga_sums.size()),
             ga = unwritten<T>(ga_sums.size()), gb = unwritten<T>(gb_sums.size()), right = gb;
    const PairSums<T> product{
        M.pairs.data(), M.pair_starts.data(), {a.data(), sa}, {b.data(), sb}, {c.data(), sc}, nc, batch};
    for_members(sc == 0, batch, [&](Members members) {
      for (int64_t t = 0; t < nc; ++t) pair_sum(team, product, t, members);
    });
    const LeftSums<T, I, PlannedPlaces<int64_t>> by_entry{M.A.idx.data(),
                                                          M.B.ptr.data(),
                                                          {M.positions.data(), M.first.data()},
                                                          {g.data(), sc},
                                                          {b.data(), sb},
                                                          {left.data(), sa},
                                                          na,
                                                          batch};
    for_members(sa == 0, batch, [&](Members members) {
      for (int64_t p = 0; p < na; ++p) left_sum(team, by_entry, p, members);
    });
    const auto columns = [&](const auto& places, T* left_out, T* right_out) {
      return ColumnSums<T, I, std::decay_t<decltype(places)>>{M.T.ptr.data(),
                                                              M.T.perm.data(),
                                                              M.B.ptr.data(),
                                                              places,
                                                              {a.data(), sa},
                                                              {b.data(), sb},
                                                              {g.data(), sc},
                                                              {left_out, sa},
                                                              {right_out, sb},
                                                              M.B.rows,
                                                              batch,
                                                              left_out && !sa,
                                                              !sb};
    };
    const auto all_columns = [&](const auto& places, Array<T>& left_out, Array<T>& right_out,
                                 Array<T>& right_alone) {
      const auto both = columns(places, left_out.data(), right_out.data()),
                 one = columns(places, nullptr, right_alone.data());
      for_members(both.adds_left || both.adds_right, batch, [&](Members members) {
        for (int64_t k = 0; k < M.B.rows; ++k) column_sums<true>(team, both, k, members);
      });
      for_members(one.adds_right, batch, [&](Members members) {
        for (int64_t k = 0; k < M.B.rows; ++k) column_sums<false>(team, one, k, members);
      });
    };
    all_columns(PlannedPlaces<int32_t>{M.positions.data(), M.starts.data()}, ga, gb, right);
    // Without a plan: the gradients are the same sums in the same order.
    Array<T> c_found = unwritten<T>(c.size()), left_found = unwritten<T>(left.size()),
             ga_found = unwritten<T>(ga.size()), gb_found = unwritten<T>(gb.size()), right_found = gb_found;
    const RowSums<T, I> by_row{M.A.ptr.data(),       M.A.idx.data(), M.B.ptr.data(), M.B.idx.data(),
                               M.c_ptr.data(),       M.c_idx.data(), {a.data(), sa}, {b.data(), sb},
                               {c_found.data(), sc}, M.A.rows,       batch};
    for_members(sc == 0, batch, [&](Members members) {
      for (int64_t i = 0; i < M.A.rows; ++i) row_sums(team, by_row, i, members);
    });
    const SearchedPlaces<I> of_entries{nullptr,        M.A.ptr.data(), M.A.rows,
                                       M.B.idx.data(), M.c_ptr.data(), M.c_idx.data()};
    const LeftSums<T, I, SearchedPlaces<I>> found_by_entry{
        M.A.idx.data(), M.B.ptr.data(),          of_entries, {g.data(), sc},
        {b.data(), sb}, {left_found.data(), sa}, na,         batch};
    for_members(sa == 0, batch, [&](Members members) {
      for (int64_t p = 0; p < na; ++p) left_sum(team, found_by_entry, p, members);
    });
    const SearchedPlaces<I> of_columns{M.T.idx.data(), nullptr,        0,
                                       M.B.idx.data(), M.c_ptr.data(), M.c_idx.data()};
    all_columns(of_columns, ga_found, gb_found, right_found);
    require_close(c_found, c_sums, "product by search, " + name);
    require_same_bits(left_found, left, "left by search, " + name);
    require_same_bits(ga_found, ga, "left of both by search, " + name);
    require_same_bits(gb_found, gb, "right of both by search, " + name);
    require_same_bits(right_found, right, "right by search, " + name);
    require_close(c, c_sums, "product, " + name);
    require_close(left, ga_sums, "left, " + name);
    require_close(ga, ga_sums, "left of both, " + name);
    require_close(gb, gb_sums, "right of both, " + name);
    require_same_bits(right, gb, "right, " + name);
    const Array<T> results[5]{c, left, ga, gb, c_found};
    for (int n = 0; n < 5; ++n) {
      if (backwards) require_same_bits(results[n], whole[n], "another order of lanes, " + name);
      whole[n] = results[n];
    }
  }
}

template <class T, class I>
void products(Random& random) {
  const std::vector<std::pair<Pattern, Pattern>> factors{
      {banded(20, 20, {-1, 0, 1}), banded(20, 20, {-1, 0, 1})},
      {scattered(random, 17, 30, 0.2), scattered(random, 30, 23, 0.3)},
      {with_lengths(random, {0, 40, 1, 0, 3}, "rows"), scattered(random, 40, 19, 0.1)},
      {scattered(random, 12, 5, 0.5), with_lengths(random, {0, 70, 2, 0, 1}, "long row of B")},
      {{"zero", 3, 4, {{}, {}, {}}}, banded(4, 4, {0})}};
  for (const auto& [a, b] : factors)
    for (const bool masked : {false, true}) {
      const Multiplication<I> M(a, b, masked);
      for (int shared = -1; shared < 3; ++shared) {
        const std::string name = a.name + " times " + b.name + (masked ? ", masked" : "");
        product_case<2, T, I>(random, M, shared, name);
        product_case<32, T, I>(random, M, shared, name);
      }
    }
}

template <class T, class I>
void union_case(Random& random, const Pattern& a_pattern, const Pattern& b_pattern) {
  const Structure<I> A = structure<I>(a_pattern, 48), B = structure<I>(b_pattern, 48);
  const auto u = analysis::merge_patterns(A.ptr.data(), A.idx.data(), B.ptr.data(), B.idx.data(), A.rows);
  const Array<uint8_t> codes(u.codes);
  const Array<I> starts(u.starts);
  const int64_t nnz = static_cast<int64_t>(u.idx.size());
  const UnionChunks<I> plan{codes.data(), starts.data(), nnz, union_chunks(nnz)};
  const Array<T> a = uniform<T>(random, 2 * A.nnz()), b = uniform<T>(random, 2 * B.nnz());
  const Array<T> g = uniform<T>(random, 2 * nnz);
  for (const bool backwards : {false, true}) {
    const HostTeam<kUnionLanes> team{backwards};
    Array<T> c = unwritten<T>(2 * nnz), ga = unwritten<T>(a.size()), gb = unwritten<T>(b.size());
    const UnionSum<T, I> sum{plan, a.data(), b.data(), c.data(), A.nnz(), B.nnz(), 2, T(2), T(-3)};
    const UnionSplit<T, I> split{plan, g.data(), ga.data(), gb.data(), A.nnz(), B.nnz(), 2, T(2), T(-3)};
    const UnionSplit<T, I> neither{plan, g.data(), nullptr, nullptr, A.nnz(), B.nnz(), 2, T(2), T(-3)};
    UnionScratch scratch;
    for (int64_t s = 0; s < 2; ++s)
      for (int64_t n = 0; n < plan.chunks; ++n)
        sum.chunk(team, n, s, scratch), split.chunk(team, n, s, scratch), neither.chunk(team, n, s, scratch);
    std::vector<Sum> cs(2 * nnz), as(a.size()), bs(b.size());
    for (int64_t s = 0; s < 2; ++s) {
      int64_t pa = 0, pb = 0;
      for (int64_t i = 0; i < A.rows; ++i)
        for (int64_t t = u.ptr[i]; t < u.ptr[i + 1]; ++t) {
          if (pa < A.ptr[i + 1] && A.idx[pa] == u.idx[t])
            cs[s * nnz + t].add(2, a[s * A.nnz() + pa]), as[s * A.nnz() + pa++].add(2, g[s * nnz + t]);
          if (pb < B.ptr[i + 1] && B.idx[pb] == u.idx[t])
            cs[s * nnz + t].add(-3, b[s * B.nnz() + pb]), bs[s * B.nnz() + pb++].add(-3, g[s * nnz + t]);
        }
    }
    require_close(c, cs, "sum of " + A.name + " and " + B.name);
    require_close(ga, as, "its gradient for A");
    require_close(gb, bs, "its gradient for B");
  }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(device_algebra) {
  using namespace learnsolve::test;
  Random random(12);
  products<float, int32_t>(random);
  products<double, int64_t>(random);
  const Pattern empty{"zero 4x6", 4, 6, {{}, {}, {}, {}}};
  union_case<float, int32_t>(random, empty, empty);
  union_case<float, int64_t>(random, banded(23, 30, {0, 2, 5, 6}), banded(23, 30, {0, 3, 5}));
  union_case<double, int32_t>(random, scattered(random, 200, 150, 0.4), scattered(random, 200, 150, 0.5));
}
