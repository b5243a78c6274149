// The product of a sparse matrix with a dense one and its derivatives, as one pass over rows. With x the
// operand that entries gather from and u the one that belongs to rows,
//
//     Sum   y_i = sum_p a_p x_{j(p)}      over the entries p of row i
//     Dot   d_p = <u_i, x_{j(p)}>
//
// spmm is Sum, sddmm is Dot. For several columns both gradients of spmm are Sum and Dot over the transposed
// structure: every row of x is loaded once and serves both. No atomics; the order of every sum depends on the
// structure and the sizes, and for several columns on the alignment of the operands, alone.
#pragma once

#include "kernels/groups.cuh"
#include "kernels/schedule.cuh"

namespace learnsolve::cuda {

template <class T, class I>
struct RowPass {
  Schedule<I> rows;
  const I* idx;
  const I* perm;  // place of each entry in a and d; or null
  const T* a;
  const T* x;
  const T* u;
  BatchResult<T> y;
  BatchResult<T> d;
  T* w;                    // w_p = u_i a_p of each member, one after another, or null: a use of Dot's indices
  BatchResult<T> further;  // sums of further pieces of rows, or of tiles' first rows, before they go to y
  int64_t a_step, x_step, u_step;
  int64_t k;
  Groups groups;
  bool packs;  // x, u and y can be read by packs

  LS_DEVICE int64_t place(int64_t p) const { return perm ? static_cast<int64_t>(perm[p]) : p; }
  // Where the sums of piece s go.
  LS_DEVICE T* sums(int64_t s, int64_t b, const Members& members) const {
    return s < rows.rows ? y.of(b, members) + s * k : further.of(b, members) + (s - rows.rows) * k;
  }
};

// k columns: piece s by one team, for its tiles c0 <= c < c1 of V columns a lane: Dot needs all of them, Sum
// any. Indices and values are loaded by all lanes together and then shared; of x, kRowsTogether rows are
// under way.
template <int V, bool Sum, bool Dot, class Team, class T, class I>
LS_DEVICE void columns_piece(const Team& team, const RowPass<T, I>& P, int64_t s, int64_t c0, int64_t c1,
                             const Members& members) {
  constexpr int N = Team::size;
  static_assert(N % kRowsTogether == 0);
  const Piece row = P.rows.piece(s);
  for (int64_t tile = c0; tile < c1; tile += N * V) {
    const int64_t c = tile + team.lane * V;
    const bool acts = c < c1;
    Pack<T, V> sum{}, ui{};
    for (int64_t b = members.b0; b < members.b1; ++b) {
      const T* a = P.a + b * P.a_step;
      const T* x = P.x + b * P.x_step + (acts ? c : 0);
      T* d = P.d.of(b, members);
      const bool add = tile > 0 || P.d.goes_on(b, members);
      if (Dot && acts) ui = load_pack<V>(P.u + b * P.u_step + row.i * P.k + c);
      for (int64_t p = row.begin; p < row.end; p += N) {
        const int here = row.end - p < N ? static_cast<int>(row.end - p) : N, mine = acts ? here : 0;
        std::make_unsigned_t<I> column = 0;
        int64_t place = 0;
        T value = 0, dot = 0;
        if (team.lane < here) {
          column = P.idx[p + team.lane];
          place = P.place(p + team.lane);
          if (Sum) value = a[place];
        }
        // Loads have no condition, or the next one would wait: what is not used is a part of row 0.
        LS_UNROLL_NONE
        for (int e = 0; e < here; e += kRowsTogether) {
          Pack<T, V> xj[kRowsTogether];
          T ap[kRowsTogether], parts[kRowsTogether] = {};
          LS_UNROLL
          for (int g = 0; g < kRowsTogether; ++g) {
            const auto j = team.of_lane(column, e + g);
            if (Sum) ap[g] = team.of_lane(value, e + g);
            xj[g] = load_pack<V>(x + j * P.k);
          }
          LS_UNROLL
          for (int g = 0; g < kRowsTogether; ++g) {
            if (e + g >= mine) continue;
            LS_UNROLL
            for (int v = 0; v < V; ++v) {
              if (Sum) sum.v[v] += ap[g] * xj[g].v[v];
              if (Dot) parts[g] += ui.v[v] * xj[g].v[v];
            }
          }
          if (Dot) {
            const T total = team.template sums<kRowsTogether>(parts);
            if (team.lane / kRowsTogether == e / kRowsTogether) dot = total;
          }
        }
        if (Dot && team.lane < here) d[place] = add ? d[place] + dot : dot;
      }
      if (Sum && P.y.ends(b, members)) {
        if (acts) store_pack(P.sums(s, b, members) + c, sum);
        sum = {};
      }
    }
  }
}

}  // namespace learnsolve::cuda
