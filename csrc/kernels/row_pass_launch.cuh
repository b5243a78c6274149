// Kernels of row_pass.cuh, and which of them a pass uses.
#pragma once

#include "kernels/row_pass.cuh"

namespace learnsolve::cuda {

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
