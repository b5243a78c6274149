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

#include "kernels/launch.cuh"

namespace learnsolve::cuda {

// Rows by tiles: some neighboring rows with about kTile entries, which a block loads entry by entry,
// neighbors by neighboring lanes, and whose products wait in shared memory until the rows are added up. So no
// sector of memory is fetched twice, whatever the lengths of the rows.
//
// Tiles never reach over the end of a chunk of rows (launch.cuh): the tiles of a chunk are of equal size, and
// each row is in one tile, but for rows of more than kPiece entries, which may be cut anywhere. A table
// (learnsolve/matrix/device_analysis.py) has the first row and entry of every tile.

constexpr int kTileRoom = kTile + kPiece;

// Entries begin, ..., begin + count - 1, which are those of rows row, ..., row + rows - 1; of the first row
// only the last ones if it is carried on from the tile before, of the last row perhaps only the first ones.
struct Tile {
  int64_t row, begin;
  int rows, count;
  bool carried;
};
struct Range {
  int64_t begin;
  int count;
};

template <class I>
struct Tiles {
  const I* ptr;
  // count + 1 lines, the last of them the end; then the first tile of each chunk, and its end
  const I* table;
  int64_t count;

  // Does tile t go on with row i, which begins in an earlier one?
  LS_BOTH bool carries(int64_t t, int64_t i) const {
    return t >= 0 && t < count && table[2 * t] == i && table[2 * t + 1] > ptr[i];
  }
  LS_DEVICE int64_t row(int t) const { return table[2 * t]; }
  LS_DEVICE Range range(int t) const {
    return {table[2 * t + 1], static_cast<int>(table[2 * t + 3] - table[2 * t + 1])};
  }
  LS_DEVICE Tile tile(int t) const {
    const I* const at = table + 2 * static_cast<int64_t>(t);
    const int64_t row = at[0], begin = at[1], end_row = at[2], end = at[3];
    return {row, begin, static_cast<int>(end_row - row + (end > ptr[end_row])), static_cast<int>(end - begin),
            begin > ptr[row]};
  }
  // The tiles first <= t < end of chunk c.
  LS_DEVICE int first(int64_t c) const { return static_cast<int>(table[2 * (count + 1 + c)]); }
  LS_DEVICE int end(int64_t c) const { return static_cast<int>(table[2 * (count + 1 + c) + 1]); }
  // f(r, begin, end, step) for row r of the tile, counted from its first, and this lane's entries of it, from
  // the tile's first; several lanes to a row, and at least `least`, if the rows are fewer than the threads.
  // All threads of a warp call f together: r may be rows or more.
  template <class F>
  LS_DEVICE void for_rows(const Tile& tile, int least, const F& f) const {
    int lanes = least;
    while (lanes < 32 && tile.rows * lanes < kThreads) lanes *= 2;
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    for (int r0 = 0; r0 < tile.rows; r0 += kThreads / lanes) {
      const int r = r0 + static_cast<int>(threadIdx.x) / lanes;
      int64_t begin = 0, end = 0;
      if (r < tile.rows) begin = ptr[tile.row + r] - tile.begin, end = ptr[tile.row + r + 1] - tile.begin;
      f(r, static_cast<int>(begin < 0 ? 0 : begin) + lane,
        static_cast<int>(end < tile.count ? end : tile.count), lanes);
    }
  }
};

// Of what is read once: it gives way in the caches to what is not.
template <class T>
LS_DEVICE T load_once(const T* p) {
#ifdef __CUDACC__
  return __ldcs(p);
#else
  return *p;
#endif
}

enum Terms {
  kInOrder,  // a_p x_{j(p)}
  kMoved,    // the same, a_p at place perm[p]
  kPlain     // x_{j(p)}
};

// use(q, a, x) for those entries of a range that are this lane's, q counted from its first.
template <Terms What, class T, class I, class Use>
LS_DEVICE void for_tile(const Range& range, const I* idx, std::type_identity_t<const I*> perm, const T* a,
                        const T* x, const Use& use) {
  constexpr int U = kUnderWay;
  const int count = range.count;
  idx += range.begin;
  if (What == kMoved) perm += range.begin;
  if (What == kInOrder) a += range.begin;
  for (int q0 = static_cast<int>(threadIdx.x); q0 < count; q0 += U * kThreads) {
    I j[U];
    T v[U], z[U];
    LS_UNROLL
    for (int u = 0; u < U; ++u) {
      const int q = q0 + u * kThreads;
      if (q >= count) continue;
      j[u] = load_once(idx + q);
      if (What == kInOrder) v[u] = load_once(a + q);
      if (What == kMoved) v[u] = a[load_once(perm + q)];
    }
    LS_UNROLL
    for (int u = 0; u < U; ++u)
      if (q0 + u * kThreads < count) z[u] = x[j[u]];
    LS_UNROLL
    for (int u = 0; u < U; ++u)
      if (q0 + u * kThreads < count) use(q0 + u * kThreads, What == kPlain ? T(0) : v[u], z[u]);
  }
}

// f(i, sum) for the rows of a tile, from the products of its entries.
template <class T, class I, class F>
LS_DEVICE void add_rows(const Tiles<I>& tiles, const Tile& tile, int least, const T* products, const F& f) {
  tiles.for_rows(tile, least, [&](int r, int begin, int end, int lanes) {
    T sum = 0;
    for (int q = begin; q < end; q += lanes) sum += products[q];
    for (int h = lanes / 2; h > 0; h /= 2) sum += __shfl_xor_sync(~0u, sum, h);
    if (r < tile.rows && static_cast<int>(threadIdx.x) % lanes == 0) f(tile.row + r, sum);
  });
}

// How rows are distributed: for one column by tiles, otherwise each to one team, but for long
// ones, which are cut into pieces of kPiece entries. Pieces 0 to rows - 1 are the beginnings of all rows.
// What long rows have beyond stands in a table (learnsolve/matrix/device_analysis.py): the row and the first
// entry of every further piece, in order.

// Entries begin <= p < end of row i.
struct Piece {
  int64_t i, begin, end;
};

template <class I>
struct Schedule {
  const I* ptr;
  const I* table;
  int64_t rows, nnz, further;
  Tiles<I> tiles;

  LS_BOTH int64_t pieces() const { return rows + further; }
  LS_BOTH Piece piece(int64_t s) const {
    const bool first = s < rows;
    const int64_t i = first ? s : static_cast<int64_t>(table[2 * (s - rows)]);
    const int64_t begin = first ? ptr[i] : table[2 * (s - rows) + 1], end = ptr[i + 1];
    return {i, begin, end - begin > kPiece ? begin + kPiece : end};
  }
  // If further piece t is the first of its row: the number of them that the row has; else 0.
  LS_BOTH int64_t opens(int64_t t) const {
    const int64_t i = table[2 * t], begin = table[2 * t + 1];
    return begin == ptr[i] + kPiece ? (ptr[i + 1] - begin + kPiece - 1) / kPiece : 0;
  }
};

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

// f(t) for the tiles of this block: `each` neighbors.
template <class I, class F>
LS_DEVICE void for_tiles(const Tiles<I>& tiles, int each, const F& f) {
  const int count = static_cast<int>(tiles.count);
  for (int u = static_cast<int>(blockIdx.x) * each; u < count; u += static_cast<int>(gridDim.x) * each)
    for (int t = u; t < u + each && t < count; ++t) f(t);
}

// One column: Sum. Registers are for entries: a tile is looked up again when its rows are added.
template <Terms What, class T, class I>
LS_KERNEL(kThreads, kTileBlocks<T>)
tile_sum_kernel(LS_ARGUMENT RowPass<T, I> P, int each) {
  LS_SHARED(products, T[kTileRoom]);
  for_members(P.groups, [&](const Members& members) {
    for_tiles(P.rows.tiles, each, [&](int t) {
      for (int64_t b = members.b0; b < members.b1; ++b) {
        const Range range = P.rows.tiles.range(t);
        const bool add = P.y.goes_on(b, members);
        for_tile<What>(range, P.idx, P.perm, P.a + b * P.a_step, P.x + b * P.x_step, [&](int q, T a, T x) {
          const T term = What == kPlain ? x : a * x;
          products[q] = add ? products[q] + term : term;
        });
        if (!P.y.ends(b, members)) continue;
        __syncthreads();
        const Tile tile = P.rows.tiles.tile(t);
        add_rows(P.rows.tiles, tile, P.rows.further > 0 ? 8 : 1, products, [&](int64_t i, T sum) {
          *(tile.carried && i == tile.row ? P.further.of(b, members) + t : P.y.of(b, members) + i) = sum;
        });
        __syncthreads();
      }
    });
  });
}

// One column: Dot, and w if Scales.
template <bool Scales, class T, class I>
LS_KERNEL(kThreads, kTileBlocks<T>)
tile_dot_kernel(LS_ARGUMENT RowPass<T, I> P, int each) {
  LS_SHARED(row_of, int[kTileRoom]);
  for_members(P.groups, [&](const Members& members) {
    for_tiles(P.rows.tiles, each, [&](int t) {
      P.rows.tiles.for_rows(P.rows.tiles.tile(t), 1, [&](int r, int begin, int end, int lanes) {
        for (int q = begin; q < end; q += lanes) row_of[q] = r;
      });
      __syncthreads();
      const Range range = P.rows.tiles.range(t);
      for (int64_t b = members.b0; b < members.b1; ++b) {
        const T* const u = P.u + b * P.u_step + P.rows.tiles.row(t);
        T* const d = P.d.of(b, members) + range.begin;
        const bool add = P.d.goes_on(b, members);
        T* const w = Scales ? P.w + b * P.rows.nnz + range.begin : nullptr;
        for_tile<Scales ? kInOrder : kPlain>(range, P.idx, P.perm, P.a + b * P.a_step, P.x + b * P.x_step,
                                             [&](int q, T a, T x) {
                                               const T ui = u[row_of[q]], term = ui * x;
                                               d[q] = add ? d[q] + term : term;
                                               if (Scales) w[q] = ui * a;
                                             });
      }
      __syncthreads();
    });
  });
}

// y_i += the sums of row i's parts in the tiles that carry it on, for each of the results: by the team of the
// first of them.
template <class T, class I>
LS_KERNEL(kThreads)
carried_kernel(LS_ARGUMENT RowPass<T, I> P, int64_t results) {
  const Tiles<I>& tiles = P.rows.tiles;
  for_aside(results, [&](int64_t r) {
    for_items<32>(tiles.count, [&](const auto& team, int64_t t) {
      const int64_t i = tiles.table[2 * t];
      if (!tiles.carries(t, i) || tiles.carries(t - 1, i)) return;
      T sum = 0;
      for (int64_t s = t + team.lane; tiles.carries(s, i); s += 32)
        sum += P.further.p[r * P.further.step + s];
      sum = team.sum(sum);
      if (team.first()) P.y.p[r * P.y.step + i] += sum;
    });
  });
}

template <int Lanes, int V, bool Sum, bool Dot, class T, class I>
LS_KERNEL(kThreads, kColumnsBlocks)
columns_kernel(LS_ARGUMENT RowPass<T, I> P) {
  const int64_t width = Dot ? P.k : Lanes * V, tiles = Dot ? 1 : (P.k + width - 1) / width;
  for_members(P.groups, [&](const Members& members) {
    for_items<Lanes>(P.rows.pieces(), [&](const auto& team, int64_t s) {
      for_aside(tiles, [&](int64_t tile) {
        const int64_t c = tile * width, end = c + width < P.k ? c + width : P.k;
        columns_piece<V, Sum, Dot>(team, P, s, c, end, members);
      });
    });
  });
}

// y_i += the sums of the further pieces of row i, in each of its columns and of the results: by the team of
// the first of them.
template <class T, class I>
LS_KERNEL(kThreads)
further_kernel(LS_ARGUMENT RowPass<T, I> P, int64_t results) {
  for_aside(results, [&](int64_t r) {
    for_items<32>(P.rows.further * P.k, [&](const auto& team, int64_t item) {
      const int64_t t = item / P.k, c = item % P.k, count = P.rows.opens(t);
      if (count == 0) return;
      T sum = 0;
      for (int64_t piece = t + team.lane; piece < t + count; piece += 32)
        sum += P.further.p[r * P.further.step + piece * P.k + c];
      sum = team.sum(sum);
      if (team.first()) P.y.p[r * P.y.step + P.rows.table[2 * t] * P.k + c] += sum;
    });
  });
}

template <int Lanes, int V, bool Sum, bool Dot, class T, class I>
void launch_columns(const RowPass<T, I>& P, cudaStream_t stream) {
  if constexpr (Lanes < kMostLanes)
    if (P.k > Lanes * V) return launch_columns<2 * Lanes, V, Sum, Dot>(P, stream);
  const dim3 grid(blocks_for(P.rows.pieces(), kThreads / Lanes), Dot ? 1 : blocks_for(P.k, Lanes * V, 0xffff),
                  blocks_aside(P.groups.count));
  LS_LAUNCH(grid, kThreads, stream, (P), columns_kernel<Lanes, V, Sum, Dot, T, I>);
}

template <bool Sum, class T, class I>
void launch_tiles(const RowPass<T, I>& P, cudaStream_t stream) {
  const int each = P.rows.tiles.count > kManyTiles ? kTilesEach : 1;
  const dim3 grid(blocks_for(P.rows.tiles.count, each), 1, blocks_aside(P.groups.count));
  if constexpr (!Sum) {
    if (P.w)
      LS_LAUNCH(grid, kThreads, stream, (P, each), tile_dot_kernel<true, T, I>);
    else
      LS_LAUNCH(grid, kThreads, stream, (P, each), tile_dot_kernel<false, T, I>);
  } else if (!P.a)
    LS_LAUNCH(grid, kThreads, stream, (P, each), tile_sum_kernel<kPlain, T, I>);
  else if (P.perm)
    LS_LAUNCH(grid, kThreads, stream, (P, each), tile_sum_kernel<kMoved, T, I>);
  else
    LS_LAUNCH(grid, kThreads, stream, (P, each), tile_sum_kernel<kInOrder, T, I>);
}

// The pass, for at least one row, column and member of the batch.
template <bool Sum, bool Dot, class T, class I>
cudaError_t launch_row_pass(const RowPass<T, I>& P, cudaStream_t stream) {
  if (P.k > 1)
    P.packs ? launch_columns<kFewestLanes, 16 / sizeof(T), Sum, Dot>(P, stream)
            : launch_columns<kFewestLanes, 1, Sum, Dot>(P, stream);
  else if constexpr (!Sum || !Dot)
    launch_tiles<Sum>(P, stream);
  const int64_t results = P.y.adds ? P.groups.count : P.groups.batch;
  if (Sum && P.rows.further > 0) {
    const int64_t sums = P.k > 1 ? P.rows.further * P.k : P.rows.tiles.count;
    const dim3 grid(blocks_for(sums, kThreads / 32), blocks_aside(results));
    if (P.k > 1)
      LS_LAUNCH(grid, kThreads, stream, (P, results), further_kernel<T, I>);
    else
      LS_LAUNCH(grid, kThreads, stream, (P, results), carried_kernel<T, I>);
  }
  return cudaGetLastError();
}

}  // namespace learnsolve::cuda
