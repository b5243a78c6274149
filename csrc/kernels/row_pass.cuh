// The product of a sparse matrix with a dense one and its derivatives, as one pass over rows. With x the
// operand that entries gather from and u the one that belongs to rows,
//
//     Sum   y_i = sum_p a_p x_{j(p)}      over the entries p of row i
//     Dot   d_p = <u_i, x_{j(p)}>
//
// spmm is Sum, sddmm is Dot, and both gradients of spmm are Sum and Dot over the transposed structure: every
// row of x is loaded once and serves both. No atomics; the order of every sum depends on the structure, the
// sizes and the alignment of the operands alone.
#pragma once

#include "kernels/launch.cuh"
#include "kernels/merge_path.cuh"

namespace learnsolve::cuda {

// A batch has outputs of its own for every member where their step is not 0, else they are added up.
template <class T, class I>
struct RowPass {
  Schedule<I> rows;
  const I* idx;
  const I* perm;  // place of each entry in a and d; or null
  const T* a;
  const T* x;
  const T* u;
  T* y;
  T* d;
  T* carry;  // (batch or 1, pieces, k): what pieces leave of their open rows, if there is a table
  int64_t a_step, x_step, u_step, y_step, d_step;
  int64_t k, batch;
  bool packs;    // x, u and y can be read by packs (k > 1)
  bool entries;  // idx, perm and a can (k = 1)

  LS_DEVICE int64_t place(int64_t p) const { return perm ? static_cast<int64_t>(perm[p]) : p; }
  // Members of the batch that must be worked through by one team, one after another.
  LS_BOTH bool adds_up(bool sum, bool dot) const {
    return batch > 1 && ((sum && y_step == 0) || (dot && d_step == 0));
  }
};

// f(place in the values, column) for the entries of begin <= p < end assigned to `lane`, one of N.
template <int N, bool Packs, class T, class I, class F>
LS_DEVICE void lane_entries(const RowPass<T, I>& P, int64_t begin, int64_t end, int lane, const F& f) {
  if constexpr (Packs) {
    if (P.entries) {
      for (int64_t p = (begin & ~int64_t{3}) + 4 * lane; p < end; p += 4 * N) {
        if (p >= begin && p + 4 <= end) {
          const Pack<I, 4> j = load_pack<4>(P.idx + p);
          Pack<I, 4> q{};
          if (P.perm) q = load_pack<4>(P.perm + p);
          LS_UNROLL
          for (int e = 0; e < 4; ++e) f(P.perm ? static_cast<int64_t>(q.v[e]) : p + e, j.v[e]);
        } else {
          for (int e = 0; e < 4; ++e)
            if (p + e >= begin && p + e < end) f(P.place(p + e), P.idx[p + e]);
        }
      }
      return;
    }
  }
  for (int64_t p = begin + lane; p < end; p += N) f(P.place(p), P.idx[p]);
}

// One column: row i by one team, whose lanes stride over its entries.
template <bool Sum, bool Dot, class Team, class T, class I>
LS_DEVICE void vector_row(const Team& team, const RowPass<T, I>& P, int64_t i, Members members) {
  const int64_t begin = P.rows.ptr[i], end = P.rows.ptr[i + 1];
  typename Team::template Own<T> sum;
  for (int64_t b = members.b0; b < members.b1; ++b) {
    const T* a = P.a + b * P.a_step;
    const T* x = P.x + b * P.x_step;
    const T ui = Dot ? P.u[b * P.u_step + i] : T(0);
    T* d = P.d + b * P.d_step;
    const bool add = P.d_step == 0 && b > members.b0;
    team.each([&](int lane) {
      lane_entries<Team::size, (Team::size == 32)>(P, begin, end, lane, [&](int64_t q, int64_t j) {
        const T xj = x[j];
        if (Sum) sum[lane] += a[q] * xj;
        if (Dot) d[q] = add ? d[q] + ui * xj : ui * xj;
      });
    });
    if (Sum && (P.y_step != 0 || b + 1 == members.b1)) {
      const T total = team.sum(sum);
      team.first([&] { P.y[b * P.y_step + i] = total; });
      team.each([&](int lane) { sum[lane] = T(0); });
    }
  }
}

// One column, Dot, by entries: those of stretch t of the table assigned to `lane`, one of N.
template <int N, class T, class I>
LS_DEVICE void vector_entries(const RowPass<T, I>& P, int64_t t, int lane, Members members) {
  const PathPoint first = P.rows.line(t), last = P.rows.line(t + 1);
  for (int64_t p = first.entry + lane; p < last.entry; p += N) {
    const int64_t i = row_of_entry(P.rows.ptr, first.row, last.row, p), j = P.idx[p], q = P.place(p);
    for (int64_t b = members.b0; b < members.b1; ++b) {
      T* d = P.d + b * P.d_step + q;
      const T value = P.u[b * P.u_step + i] * P.x[b * P.x_step + j];
      *d = P.d_step == 0 && b > members.b0 ? *d + value : value;
    }
  }
}

// A part of row i, its entries begin <= p < end, for k columns: those of the team's tiles c0 <= c < c1, of V
// columns a lane. Indices and values are loaded by all lanes together and then shared. The result goes to
// out(b), or is added up over the members and goes to out of the last.
template <int V, bool Sum, bool Dot, class Team, class T, class I, class Out>
LS_DEVICE void columns_row(const Team& team, const RowPass<T, I>& P, int64_t i, int64_t begin, int64_t end,
                           int64_t c0, int64_t c1, Members members, const Out& out) {
  constexpr int N = Team::size;
  for (int64_t tile = c0; tile < c1; tile += N * V) {
    typename Team::template Own<Pack<T, V>> sum, ui;
    typename Team::template Own<int64_t> column, place;
    typename Team::template Own<T> value, part, dots;
    for (int64_t b = members.b0; b < members.b1; ++b) {
      const T* a = P.a + b * P.a_step;
      const T* x = P.x + b * P.x_step + tile;
      T* d = P.d + b * P.d_step;
      const bool add = tile > 0 || (P.d_step == 0 && b > members.b0);
      if (Dot)
        team.each([&](int lane) {
          if (tile + lane * V < c1) ui[lane] = load_pack<V>(P.u + b * P.u_step + i * P.k + tile + lane * V);
        });
      for (int64_t p = begin; p < end; p += N) {
        team.each([&](int lane) {
          if (p + lane >= end) return;
          column[lane] = P.idx[p + lane];
          place[lane] = P.place(p + lane);
          if (Sum) value[lane] = a[place[lane]];
        });
        const int here = end - p < N ? static_cast<int>(end - p) : N;
        for (int e = 0; e < here; ++e) {
          const int64_t j = team.of_lane(column, e);
          const T ap = Sum ? team.of_lane(value, e) : T(0);
          team.each([&](int lane) {
            if (Dot) part[lane] = T(0);
            if (tile + lane * V >= c1) return;
            const Pack<T, V> xj = load_pack<V>(x + j * P.k + lane * V);
            LS_UNROLL
            for (int v = 0; v < V; ++v) {
              if (Sum) sum[lane].v[v] += ap * xj.v[v];
              if (Dot) part[lane] += ui[lane].v[v] * xj.v[v];
            }
          });
          if (Dot) {
            const T dot = team.sum(part);
            team.each([&](int lane) {
              if (lane == e) dots[lane] = dot;
            });
          }
        }
        if (Dot)
          team.each([&](int lane) {
            if (lane >= here) return;
            T* at = d + place[lane];
            *at = add ? *at + dots[lane] : dots[lane];
          });
      }
      if (Sum && (P.y_step != 0 || b + 1 == members.b1))
        team.each([&](int lane) {
          if (tile + lane * V < c1) store_pack(out(b) + tile + lane * V, sum[lane]);
          sum[lane] = Pack<T, V>{};
        });
    }
  }
}

// k columns: piece s of the schedule by one team. Dot needs all tiles, Sum any.
template <int V, bool Sum, bool Dot, class Team, class T, class I>
LS_DEVICE void columns_piece(const Team& team, const RowPass<T, I>& P, int64_t s, int64_t c0, int64_t c1,
                             Members members) {
  const PathPiece piece = P.rows.piece(s);
  int64_t begin = piece.first.entry;
  for (int64_t i = piece.first.row; i < piece.last.row; ++i) {
    const int64_t end = P.rows.ptr[i + 1];
    columns_row<V, Sum, Dot>(team, P, i, begin, end, c0, c1, members,
                             [&](int64_t b) { return P.y + b * P.y_step + i * P.k; });
    begin = end;
  }
  if (!P.rows.table || piece.last.row == P.rows.rows) return;
  columns_row<V, Sum, Dot>(team, P, piece.last.row, begin, piece.last.entry, c0, c1, members, [&](int64_t b) {
    return P.carry + ((P.y_step ? b * P.rows.pieces() : 0) + s) * P.k;
  });
}

// Adds to a row the partial sums of the pieces before the one that ends it: column c by one team, if s is the
// first of them.
template <class Team, class T, class I>
LS_DEVICE void add_carries(const Team& team, const RowPass<T, I>& P, int64_t s, int64_t c, int64_t b) {
  if (!P.rows.opens(s)) return;
  const int64_t last = P.rows.last_of(s), row = P.rows.point(s + 1).row;
  const T* carry = P.carry + b * P.rows.pieces() * P.k + c;
  typename Team::template Own<T> sum;
  team.each([&](int lane) {
    for (int64_t t = s + lane; t <= last; t += Team::size) sum[lane] += carry[t * P.k];
  });
  const T total = team.sum(sum);
  team.first([&] { P.y[b * P.y_step + row * P.k + c] += total; });
}

}  // namespace learnsolve::cuda
