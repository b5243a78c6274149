// Products by tiles: about equally many entries each, which neighboring lanes load, multiply and leave in
// shared memory, where the rows are added up. And by masks: rows whose entries lie on few diagonals.
#pragma once

#include "kernels/launch.cuh"
#include "kernels/products.cuh"
#include "probe.h"

namespace probe {

// The library's tiles of rows that are pointed to (learnsolve/matrix/device_analysis.py).
struct LibraryTiles {
  int64_t count;
  Buffer<int> table;
  explicit LibraryTiles(const std::vector<int>& ptr) : LibraryTiles(ptr, Chunks(ptr.size() - 1)) {}
  learnsolve::cuda::Tiles<int> of(const Buffer<int>& ptr) const { return {ptr.p, table.p, count}; }

 private:
  LibraryTiles(const std::vector<int>& ptr, const Chunks& chunks)
      : count(chunks.count + ptr.back() / kTile), table(lines(ptr, chunks, count)) {}
  static std::vector<int> lines(const std::vector<int>& ptr, const Chunks& chunks, int64_t count) {
    std::vector<int> tiles, of_chunks;
    const auto tile = [&](int64_t row, int64_t begin) {
      tiles.insert(tiles.end(), {static_cast<int>(row), static_cast<int>(begin)});
    };
    for (int64_t c = 0; c < chunks.count; ++c) {
      const int64_t begin = ptr[chunks.begin(c)], entries = ptr[chunks.end(c)] - begin,
                    parts = std::max<int64_t>((entries + kTile - 1) / kTile, 1);
      of_chunks.push_back(static_cast<int>(tiles.size() / 2));
      tile(chunks.begin(c), begin);
      for (int64_t part = 1; part < parts; ++part) {
        const int64_t p = begin + part * entries / parts,
                      row = std::lower_bound(ptr.begin(), ptr.end(), p) - ptr.begin();
        const bool cut = ptr[row] > p && ptr[row] - ptr[row - 1] > kPiece;
        cut ? tile(row - 1, p) : tile(row, ptr[row]);
      }
      of_chunks.push_back(static_cast<int>(tiles.size() / 2));
    }
    while (static_cast<int64_t>(tiles.size()) < 2 * count + 2) tile(chunks.rows, ptr.back());
    tiles.insert(tiles.end(), of_chunks.begin(), of_chunks.end());
    return tiles;
  }
};

template <class T>
struct Tiles {
  const int *first, *ptr, *idx;  // the first row of each tile; pointers; columns
  const int* perm;               // places of the entries in a; or null
  const int* target;             // where row s of the pointers goes, if they are pieces of rows; or null
  const T *a, *x, *g;
  T *y, *d, *w;
  int64_t count;
  int each;  // tiles in a row to a block
};

// The first row of each tile of `size` entries, and the number of rows.
inline std::vector<int> tiles_of(const std::vector<int>& rows, int size) {
  std::vector<int> first;
  for (int64_t p = 0; p < rows.back(); p += size)
    first.push_back(static_cast<int>(std::lower_bound(rows.begin(), rows.end(), p) - rows.begin()));
  first.push_back(static_cast<int>(rows.size()) - 1);
  return first;
}

// Of what is read once, if Once.
template <bool Once, class T>
LS_DEVICE T load(const T* p) {
  return Once ? load_once(p) : *p;
}

constexpr int kLongest = kPiece;  // of a row or a piece of one: a tile has room for the rest of its last

// Every row of a tile by a team, from its products.
template <int Lanes, class T>
LS_DEVICE void add_rows(const Tiles<T>& P, int r0, int r1, int base, const T* products) {
  const Team<Lanes> team;
  const int team_of = static_cast<int>(threadIdx.x) / Lanes;
  for (int r = r0 + team_of; r < r1; r += kThreads / Lanes) {
    const int begin = P.ptr[r] - base, end = P.ptr[r + 1] - base;
    T sum = 0;
    for (int q = begin + team.lane; q < end; q += Lanes) sum += products[q];
    sum = team.sum(sum);
    if (team.first()) P.y[P.target ? P.target[r] : r] = sum;
  }
}

template <class T, class F>
LS_DEVICE void for_tiles(const Tiles<T>& P, const F& f) {
  for (int64_t t = int64_t{blockIdx.x} * P.each, end = t + P.each; t < end && t < P.count; ++t)
    f(P.first[t], P.first[t + 1], P.ptr[P.first[t]], P.ptr[P.first[t + 1]]);
}

// Blocks of a processor, whose registers hold U numbers of each of two vectors and U columns without spills.
template <int U, class T>
constexpr int kBlocks = U * sizeof(T) <= 32   ? 6
                        : U * sizeof(T) <= 64 ? 4
                                              : 2;

// U entries of a lane are under way at a time.
template <int Size, int U, int Lanes, bool Once, int What, class T>
LS_KERNEL(kThreads, kBlocks<U, T>)
tile_kernel(LS_ARGUMENT Tiles<T> P) {
  LS_SHARED(room, T[Size + kLongest]);
  for_tiles(P, [&](int r0, int r1, int p0, int p1) {
    const int count = p1 - p0;
    for (int q0 = static_cast<int>(threadIdx.x); q0 < count; q0 += U * kThreads) {
      int c[U];
      T v[U], z[U];
      LS_UNROLL
      for (int u = 0; u < U; ++u) {
        const int q = q0 + u * kThreads;
        if (q >= count) continue;
        if (What == kInOrder) v[u] = load<Once>(P.a + p0 + q);
        if (What == kMoved) v[u] = P.a[load<Once>(P.perm + p0 + q)];
        c[u] = load<Once>((What == kPlain ? P.perm : P.idx) + p0 + q);
      }
      LS_UNROLL
      for (int u = 0; u < U; ++u)
        if (q0 + u * kThreads < count) z[u] = P.x[c[u]];
      LS_UNROLL
      for (int u = 0; u < U; ++u)
        if (q0 + u * kThreads < count) room[q0 + u * kThreads] = What == kPlain ? z[u] : v[u] * z[u];
    }
    __syncthreads();
    add_rows<Lanes>(P, r0, r1, p0, room);
    __syncthreads();
  });
}

// The same with loads of 16 bytes: four entries of a lane are neighbors.
template <int Size, int Lanes, class T>
LS_KERNEL(kThreads, 5)
packed_tile_kernel(LS_ARGUMENT Tiles<T> P) {
  struct alignas(16) Room {
    T v[Size + kLongest + 8];
  };
  LS_SHARED(room, Room);
  constexpr int V = 16 / sizeof(T);
  for_tiles(P, [&](int r0, int r1, int p0, int p1) {
    const int base = p0 / 4 * 4;
    for (int q0 = base + 4 * static_cast<int>(threadIdx.x); q0 < p1; q0 += 8 * kThreads) {
      Pack<int, 4> c[2];
      Pack<T, V> v[2][4 / V];
      LS_UNROLL
      for (int u = 0; u < 2; ++u) {
        const int q = q0 + u * 4 * kThreads;
        if (q >= p1) continue;
        c[u] = load_pack<4>(P.idx + q);
        LS_UNROLL
        for (int h = 0; h < 4 / V; ++h) v[u][h] = load_pack<V>(P.a + q + h * V);
      }
      LS_UNROLL
      for (int u = 0; u < 2; ++u) {
        const int q = q0 + u * 4 * kThreads;
        if (q >= p1) continue;
        LS_UNROLL
        for (int e = 0; e < 4; ++e) v[u][e / V].v[e % V] *= q + e < p1 && q + e >= p0 ? P.x[c[u].v[e]] : T(0);
        LS_UNROLL
        for (int h = 0; h < 4 / V; ++h) store_pack<V>(room.v + (q - base) + h * V, v[u][h]);
      }
    }
    __syncthreads();
    add_rows<Lanes>(P, r0, r1, base, room.v);
    __syncthreads();
  });
}

// y_r += its further pieces, which stand behind the n rows, by a warp for each row that has been cut.
template <class T>
LS_KERNEL(kThreads)
cut_rows_kernel(const int* cuts, int64_t count, T* y) {
  for_items<32>(count, [&](const auto& team, int64_t t) {
    const int begin = cuts[3 * t + 1], end = cuts[3 * t + 2];
    T sum = 0;
    for (int s = begin + team.lane; s < end; s += 32) sum += y[s];
    sum = team.sum(sum);
    if (team.first()) y[cuts[3 * t]] += sum;
  });
}

// d_p = g_i x_j in the order of the values and, if W, w_p = g_i a_p for the sums over columns.
template <int Size, int U, bool W, class T>
LS_KERNEL(kThreads, kBlocks<U, T>)
tile_gradients_kernel(LS_ARGUMENT Tiles<T> P) {
  LS_SHARED(row_of, unsigned short[Size + kLongest]);
  for_tiles(P, [&](int r0, int r1, int p0, int p1) {
    const int count = p1 - p0;
    for (int r = r0 + static_cast<int>(threadIdx.x); r < r1; r += kThreads)
      for (int q = P.ptr[r] - p0; q < P.ptr[r + 1] - p0; ++q) row_of[q] = static_cast<unsigned short>(r - r0);
    __syncthreads();
    for (int q0 = static_cast<int>(threadIdx.x); q0 < count; q0 += U * kThreads) {
      int c[U];
      T v[U], z[U];
      LS_UNROLL
      for (int u = 0; u < U; ++u) {
        const int q = q0 + u * kThreads;
        if (q >= count) continue;
        c[u] = load<true>(P.idx + p0 + q);
        if (W) v[u] = load<true>(P.a + p0 + q);
      }
      LS_UNROLL
      for (int u = 0; u < U; ++u)
        if (q0 + u * kThreads < count) z[u] = P.x[c[u]];
      LS_UNROLL
      for (int u = 0; u < U; ++u) {
        const int q = q0 + u * kThreads;
        if (q >= count) continue;
        const T g = P.g[r0 + row_of[q]];
        P.d[p0 + q] = g * z[u];
        if (W) P.w[p0 + q] = g * v[u];
      }
    }
    __syncthreads();
  });
}

template <class T>
struct Masks {
  const int* ptr;
  const unsigned* mask;  // bit e: the row has an entry on diagonal e of its tile
  const int* diagonals;  // D of each tile
  const T *a, *x, *g;
  T *y, *d, *w;
  int64_t rows;
};
template <int D>
constexpr int kMaskRows = D > 16 ? 128 : 256;  // of a tile, and threads of a block

template <int D, class T>
LS_KERNEL(kMaskRows<D>, D > 16 ? 4 : 5)
mask_kernel(LS_ARGUMENT Masks<T> P) {
  constexpr int R = kMaskRows<D>;
  LS_SHARED(room, T[R * D]);
  for_blocks((P.rows + R - 1) / R, [&](int64_t t) {
    const int64_t r0 = t * R, r1 = P.rows < r0 + R ? P.rows : r0 + R, r = r0 + threadIdx.x;
    const int p0 = P.ptr[r0], count = P.ptr[r1] - p0;
    const unsigned mask = r < r1 ? P.mask[r] : 0;
    int at = r < r1 ? P.ptr[r] - p0 : 0;
    const int* const diagonals = P.diagonals + t * D;
    T x[D], v[D];
    LS_UNROLL
    for (int e = 0; e < D; ++e) x[e] = mask >> e & 1 ? P.x[r + diagonals[e]] : T(0);
    LS_UNROLL
    for (int u = 0; u < D; ++u) {
      const int q = static_cast<int>(threadIdx.x) + u * R;
      if (q < count) v[u] = load<true>(P.a + p0 + q);
    }
    LS_UNROLL
    for (int u = 0; u < D; ++u) {
      const int q = static_cast<int>(threadIdx.x) + u * R;
      if (q < count) room[q] = v[u];
    }
    __syncthreads();
    T sum = 0;
    LS_UNROLL
    for (int e = 0; e < D; ++e)
      if (mask >> e & 1) sum += room[at++] * x[e];
    if (r < r1) P.y[r] = sum;
    __syncthreads();
  });
}

// Both gradients by masks: d in the order of the values and w by diagonals, D vectors of all rows; then
// y_j = the sum of shifted vectors.
template <int D, class T>
LS_KERNEL(kMaskRows<D>, D > 16 ? 4 : 5)
mask_gradients_kernel(LS_ARGUMENT Masks<T> P) {
  constexpr int R = kMaskRows<D>;
  LS_SHARED(room, T[R * D]);
  for_blocks((P.rows + R - 1) / R, [&](int64_t t) {
    const int64_t r0 = t * R, r1 = P.rows < r0 + R ? P.rows : r0 + R, r = r0 + threadIdx.x;
    const int p0 = P.ptr[r0], count = P.ptr[r1] - p0;
    const unsigned mask = r < r1 ? P.mask[r] : 0;
    int at = r < r1 ? P.ptr[r] - p0 : 0;
    const T g = r < r1 ? P.g[r] : T(0);
    const int* const diagonals = P.diagonals + t * D;
    for (int q = static_cast<int>(threadIdx.x); q < count; q += R) room[q] = load<true>(P.a + p0 + q);
    T x[D];
    LS_UNROLL
    for (int e = 0; e < D; ++e) x[e] = mask >> e & 1 ? P.x[r + diagonals[e]] : T(0);
    __syncthreads();
    LS_UNROLL
    for (int e = 0; e < D; ++e) {
      T w = 0;
      if (mask >> e & 1) w = g * room[at], room[at++] = g * x[e];
      if (r < r1) P.w[e * P.rows + r] = w;
    }
    __syncthreads();
    for (int q = static_cast<int>(threadIdx.x); q < count; q += R) P.d[p0 + q] = room[q];
    __syncthreads();
  });
}
template <int D, class T>
LS_KERNEL(kThreads)
shifted_sums_kernel(LS_ARGUMENT Masks<T> P) {
  for_items<1>(P.rows, [&](const auto&, int64_t j) {
    T sum = 0;
    LS_UNROLL
    for (int e = 0; e < D; ++e) {
      const int64_t i = j - P.diagonals[e];
      if (i >= 0 && i < P.rows) sum += P.w[e * P.rows + i];
    }
    P.y[j] = sum;
  });
}

// The diagonals of a grid, for each tile.
inline std::vector<int> diagonals_of(const Shape& S) {
  const int size = S.points > 16 ? kMaskRows<27> : kMaskRows<9>;
  std::vector<int> all;
  for (int64_t t = 0; t < (S.n + size - 1) / size; ++t)
    for (int e = 0; e < S.points; ++e) all.push_back(S.diagonal(e));
  return all;
}

// f<D>() for grids whose rows have D places, and nothing for other matrices.
template <class F>
void for_places(const Shape& S, const F& f) {
  if (S.points == 3) f.template operator()<3>();
  if (S.points == 5) f.template operator()<5>();
  if (S.points == 7) f.template operator()<7>();
  if (S.points == 9) f.template operator()<9>();
  if (S.points == 27) f.template operator()<27>();
}

// f<Lanes>() for rows of this mean length.
template <class F>
void for_lanes(int mean, const F& f) {
  if (mean < 9)
    f.template operator()<1>();
  else if (mean < 24)
    f.template operator()<4>();
  else
    f.template operator()<8>();
}

template <int Size, int U, int Lanes, bool Once, int What, class T>
void launch_tiles(const Tiles<T>& P) {
  LS_LAUNCH(blocks_for(P.count, P.each), kThreads, stream(), (P), tile_kernel<Size, U, Lanes, Once, What, T>);
}

}  // namespace probe
