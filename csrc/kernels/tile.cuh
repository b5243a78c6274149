// Rows by tiles: some neighboring rows with about kTile entries, which a block loads entry by entry,
// neighbors by neighboring lanes, and whose products wait in shared memory until the rows are added up. So no
// sector of memory is fetched twice, whatever the lengths of the rows.
//
// Tiles never reach over the end of a chunk of rows (grid.cuh): the tiles of a chunk are of equal size, and
// each row is in one tile, but for rows of more than kPiece entries, which may be cut anywhere. A table
// (learnsolve/matrix/device_analysis.py) has the first row and entry of every tile.
#pragma once

#include "kernels/launch.cuh"

namespace learnsolve::cuda {

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

}  // namespace learnsolve::cuda
