// The bodies of the CUDA kernels for products (kernels/row_pass.cuh, vector_stretch.cuh), run on the host as
// a device would: every schedule, every width of a team, lanes forwards and backwards.
#include "kernels/vector_stretch.cuh"
#include "tests/cases.h"
#include "tests/schedules.h"

namespace learnsolve::test {
namespace {

using namespace learnsolve::cuda;

// What one pass reads and writes, for a batch of two in which each operand is shared or not.
template <class T, class I>
struct Problem {
  const Structure<I>& S;
  int64_t k, batch;
  bool a_own, x_own, u_own, y_own, d_own;
  Aligned<T> a, x, u;
  Aligned<I> ptr, idx, perm, table;
  bool scheduled;

  Problem(Random& random, const Structure<I>& S_, int64_t k_, bool scheduled_, int shared)
      : S(S_), k(k_), batch(shared < 0 ? 1 : 2), scheduled(scheduled_) {
    a_own = batch == 2 && shared != 0, x_own = batch == 2 && shared != 1, u_own = batch == 2 && shared != 2;
    y_own = batch == 2 && shared != 3, d_own = batch == 2 && shared != 4;
    a = random_values<T>(random, (a_own ? 2 : 1) * S.nnz());
    x = random_values<T>(random, (x_own ? 2 : 1) * S.cols * k);
    u = random_values<T>(random, (u_own ? 2 : 1) * S.rows * k);
    ptr = aligned(S.ptr), idx = aligned(S.idx), perm = aligned(S.perm);
    if (scheduled) table = schedule_table(S.ptr.data(), S.rows, kWidth);
  }
  int64_t pieces(int parts) const { return scheduled ? (table.size() / 2 - 1) * parts : S.rows; }

  RowPass<T, I> pass(Aligned<T>& y, Aligned<T>& d, Aligned<T>& carry, int parts) {
    y = Aligned<T>((y_own ? 2 : 1) * S.rows * k), d = Aligned<T>((d_own ? 2 : 1) * S.nnz());
    carry = Aligned<T>((y_own ? 2 : 1) * pieces(parts) * k);
    const bool packs = k > 1 && k % (16 / static_cast<int64_t>(sizeof(T))) == 0;
    return {{ptr.data(), scheduled ? table.data() : nullptr, S.rows, S.nnz(), table.size() / 2 - 1, kWidth,
             parts},
            idx.data(),
            S.permuted ? perm.data() : nullptr,
            a.data(),
            x.data(),
            u.data(),
            y.data(),
            d.data(),
            carry.data(),
            a_own ? S.nnz() : 0,
            x_own ? S.cols * k : 0,
            u_own ? S.rows * k : 0,
            y_own ? S.rows * k : 0,
            d_own ? S.nnz() : 0,
            k,
            batch,
            packs,
            takes_packs(a.data(), a_own ? S.nnz() : 0)};
  }

  std::vector<Sum> expected_y() const {
    std::vector<Sum> y((y_own ? 2 : 1) * S.rows * k);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < S.rows; ++i)
        for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p)
          for (int64_t c = 0; c < k; ++c)
            y[(y_own ? b : 0) * S.rows * k + i * k + c].add(
                a[(a_own ? b * S.nnz() : 0) + S.value_at(p)],
                x[(x_own ? b * S.cols * k : 0) + S.idx[p] * k + c]);
    return y;
  }
  std::vector<Sum> expected_d() const {
    std::vector<Sum> d((d_own ? 2 : 1) * S.nnz());
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < S.rows; ++i)
        for (int64_t p = S.ptr[i]; p < S.ptr[i + 1]; ++p)
          for (int64_t c = 0; c < k; ++c)
            d[(d_own ? b * S.nnz() : 0) + S.value_at(p)].add(
                u[(u_own ? b * S.rows * k : 0) + i * k + c],
                x[(x_own ? b * S.cols * k : 0) + S.idx[p] * k + c]);
    return d;
  }
};

template <bool Sum_, bool Dot, class T, class I, class F>
void for_members(const RowPass<T, I>& P, const F& f) {
  if (P.adds_up(Sum_, Dot)) return f(Members{0, P.batch});
  for (int64_t b = P.batch - 1; b >= 0; --b) f(Members{b, b + 1});  // in any order
}

template <class T, class I>
void carries(const RowPass<T, I>& P, bool backwards) {
  if (!P.rows.table) return;
  for (int64_t b = 0; b < (P.y_step ? P.batch : 1); ++b)
    for (int64_t s = 0; s < P.rows.pieces(); ++s)
      for (int64_t c = 0; c < P.k; ++c)
        P.k == 1 ? add_carries(HostTeam<32>{backwards}, P, s, c, b)
                 : add_carries(HostTeam<1>{backwards}, P, s, c, b);
}

template <bool Sum_, bool Dot, int Lanes, class T, class I>
void run_vector(const RowPass<T, I>& P, bool backwards) {
  if (!P.rows.table) {
    for_members<Sum_, Dot>(P, [&](Members members) {
      for (int64_t i = 0; i < P.rows.rows; ++i)
        vector_row<Sum_, Dot>(HostTeam<Lanes>{backwards}, P, i, members);
    });
    return;
  }
  if constexpr (Sum_)
    for_members<true, false>(P, [&](Members members) {
      StretchScratch<T, kStretchLanes, kWidth / kStretchLanes> scratch;
      for (int64_t t = 0; t < P.rows.stretches; ++t)
        vector_stretch<kWidth / kStretchLanes>(HostTeam<kStretchLanes>{backwards}, P, t, members, scratch);
    });
  if constexpr (Dot)
    for_members<false, true>(P, [&](Members members) {
      for (int64_t t = 0; t < P.rows.stretches; ++t)
        for (int lane = 0; lane < Lanes; ++lane) vector_entries<Lanes>(P, t, lane, members);
    });
}

template <bool Sum_, bool Dot, int Lanes, int V, class T, class I>
void run_columns(const RowPass<T, I>& P, bool backwards) {
  const HostTeam<Lanes> team{backwards};
  for_members<Sum_, Dot>(P, [&](Members members) {
    for (int64_t s = 0; s < P.rows.pieces(); ++s)
      for (int64_t c = 0; c < (Dot ? 1 : P.k); c += Lanes * V)
        columns_piece<V, Sum_, Dot>(team, P, s, c, Dot ? P.k : std::min<int64_t>(P.k, c + Lanes * V),
                                    members);
  });
}

template <bool Sum_, bool Dot, int Lanes, class T, class I>
void pass_case(Problem<T, I>& problem, const std::string& name) {
  constexpr int V = 16 / sizeof(T);
  const int parts = problem.k == 1 ? 1 : 4;
  Aligned<T> whole_y, whole_d;
  for (const bool backwards : {false, true}) {
    Aligned<T> y, d, carry;
    const RowPass<T, I> P = problem.pass(y, d, carry, parts);
    if (P.k == 1)
      run_vector<Sum_, Dot, Lanes>(P, backwards);
    else if (P.packs)
      run_columns<Sum_, Dot, Lanes, V>(P, backwards);
    else
      run_columns<Sum_, Dot, Lanes, 1>(P, backwards);
    if (Sum_) carries(P, backwards);
    if (backwards) {
      if (Sum_) require(same_bits(y, whole_y), name + ": y depends on the order of lanes");
      if (Dot) require(same_bits(d, whole_d), name + ": d depends on the order of lanes");
    } else {
      if (Sum_) require_close(unaligned(y), problem.expected_y(), name + ", y");
      if (Dot) require_close(unaligned(d), problem.expected_d(), name + ", d");
      whole_y = y, whole_d = d;
    }
  }
}

template <class T, class I>
void cases(Random& random) {
  for (const Pattern& pattern : device_patterns(random)) {
    const Structure<I> A = structure<I>(pattern, 48), At = transposed(A, 48);
    for (const Structure<I>* S : {&A, &At})
      for (const bool scheduled : {false, true})
        for (const int64_t k : {1, 2, 4, 7, 24, 68})
          for (int shared = -1; shared < 5; shared += k == 1 || k == 4 ? 1 : 6) {
            Problem<T, I> problem(random, *S, k, scheduled && S->rows + S->nnz() > 0, shared);
            const std::string name = S->name + ", k = " + std::to_string(k) + ", shared " +
                                     std::to_string(shared) + (scheduled ? ", merge path" : ", rows");
            if (k == 1) {
              pass_case<true, false, 2>(problem, "spmm, " + name);
              pass_case<true, false, 32>(problem, "spmm, " + name);
              pass_case<false, true, 8>(problem, "sddmm, " + name);
              pass_case<true, true, 4>(problem, "spmm_backward, " + name);
              pass_case<true, true, 32>(problem, "spmm_backward, " + name);
            } else {
              pass_case<true, false, 4>(problem, "spmm, " + name);
              pass_case<false, true, 8>(problem, "sddmm, " + name);
              pass_case<true, true, 16>(problem, "spmm_backward, " + name);
            }
          }
  }
}

}  // namespace
}  // namespace learnsolve::test

LS_TEST(row_passes) {
  using namespace learnsolve::test;
  Random random(11);
  test_schedules(random);
  cases<float, int32_t>(random);
  cases<double, int64_t>(random);
}
