// Kernels of row_pass.cuh and vector_stretch.cuh, and which of them a pass takes. All loops go on beyond the
// grid: no size is too large for a launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/vector_stretch.cuh"

namespace learnsolve::cuda {

constexpr int kThreads = 256;         // of a block
constexpr int kStretchThreads = 128;  // of one that follows the merge path
constexpr int kStretchItems = 7;      // of each of those; learnsolve/_device_analysis.py knows the product
constexpr int kStretch = kStretchThreads * kStretchItems;
constexpr int kParts = 4;  // of a stretch, for several columns

inline unsigned grid_size(int64_t wanted, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, most));
}
constexpr int64_t kMostX = 0x7fffffff, kMostYZ = 0xffff;

// f(members) for those of the batch that the block is to work on.
template <bool Sum, bool Dot, class T, class I, class F>
__device__ __forceinline__ void for_members(const RowPass<T, I>& P, const F& f) {
  if (P.adds_up(Sum, Dot)) return f(Members{0, P.batch});
  for (int64_t b = blockIdx.z; b < P.batch; b += gridDim.z) f(Members{b, b + 1});
}

template <int Lanes, bool Sum, bool Dot, class T, class I>
__global__ void __launch_bounds__(kThreads, 4) vector_rows_kernel(const __grid_constant__ RowPass<T, I> P) {
  constexpr int teams = kThreads / Lanes;
  const WarpTeam<Lanes> team;
  for_members<Sum, Dot>(P, [&](Members members) {
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * teams + threadIdx.x / Lanes; i < P.rows.rows;
         i += static_cast<int64_t>(gridDim.x) * teams)
      vector_row<Sum, Dot>(team, P, i, members);
  });
}

template <class T, class I>
__global__ void __launch_bounds__(kStretchThreads, 8)
    vector_stretches_kernel(const __grid_constant__ RowPass<T, I> P) {
  __shared__ StretchScratch<T, kStretchThreads, kStretchItems> scratch;
  const BlockTeam<kStretchThreads> team;
  for_members<true, false>(P, [&](Members members) {
    for (int64_t t = blockIdx.x; t < P.rows.stretches; t += gridDim.x)
      vector_stretch<kStretchItems>(team, P, t, members, scratch);
  });
}

template <class T, class I>
__global__ void __launch_bounds__(kThreads, 4)
    vector_entries_kernel(const __grid_constant__ RowPass<T, I> P) {
  for_members<false, true>(P, [&](Members members) {
    for (int64_t t = blockIdx.x; t < P.rows.stretches; t += gridDim.x)
      vector_entries<kThreads>(P, t, static_cast<int>(threadIdx.x), members);
  });
}

template <int Lanes, int V, bool Sum, bool Dot, class T, class I>
__global__ void __launch_bounds__(kThreads, 3) columns_kernel(const __grid_constant__ RowPass<T, I> P) {
  constexpr int teams = kThreads / Lanes;
  constexpr int64_t tile = Lanes * V;
  const WarpTeam<Lanes> team;
  const int64_t pieces = P.rows.pieces();
  for_members<Sum, Dot>(P, [&](Members members) {
    for (int64_t s = static_cast<int64_t>(blockIdx.x) * teams + threadIdx.x / Lanes; s < pieces;
         s += static_cast<int64_t>(gridDim.x) * teams) {
      if (Dot)
        columns_piece<V, Sum, Dot>(team, P, s, 0, P.k, members);
      else
        for (int64_t c = blockIdx.y * tile; c < P.k; c += gridDim.y * tile)
          columns_piece<V, Sum, Dot>(team, P, s, c, c + tile < P.k ? c + tile : P.k, members);
    }
  });
}

// Lanes of a team: those of a warp for one column, one for each of several columns.
template <int Lanes, class T, class I>
__global__ void __launch_bounds__(kThreads, 4) carries_kernel(const __grid_constant__ RowPass<T, I> P) {
  const WarpTeam<Lanes> team;
  const int64_t pieces = P.rows.pieces(), batch = P.y_step ? P.batch : 1;
  for (int64_t b = blockIdx.z; b < batch; b += gridDim.z)
    for (int64_t s = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; s < pieces;
         s += static_cast<int64_t>(gridDim.x) * blockDim.y)
      for (int64_t c = threadIdx.x / Lanes; c < P.k; c += blockDim.x / Lanes) add_carries(team, P, s, c, b);
}

template <bool Sum, bool Dot, class T, class I>
struct RowPassLaunch {
  const RowPass<T, I>& P;
  cudaStream_t stream;

  unsigned depth() const { return grid_size(P.adds_up(Sum, Dot) ? 1 : P.batch, kMostYZ); }

  template <int Lanes>
  void vector() const {
    const int64_t blocks = (P.rows.rows + kThreads / Lanes - 1) / (kThreads / Lanes);
    const dim3 grid(grid_size(blocks, kMostX), 1, depth());
    vector_rows_kernel<Lanes, Sum, Dot><<<grid, kThreads, 0, stream>>>(P);
  }

  template <int Lanes, int V>
  void columns() const {
    const int64_t blocks = (P.rows.pieces() + kThreads / Lanes - 1) / (kThreads / Lanes);
    const int64_t tiles = Dot ? 1 : (P.k + Lanes * V - 1) / (Lanes * V);
    const dim3 grid(grid_size(blocks, kMostX), grid_size(tiles, kMostYZ), depth());
    columns_kernel<Lanes, V, Sum, Dot><<<grid, kThreads, 0, stream>>>(P);
  }
  template <int V>
  void columns() const {
    if (P.k <= 4 * V)
      columns<4, V>();
    else if (P.k <= 8 * V)
      columns<8, V>();
    else
      columns<16, V>();
  }

  // About as many lanes as half an average row has entries: short rows keep few lanes waiting.
  void vector() const {
    const int64_t mean = P.rows.nnz / P.rows.rows;
    if (mean < 6)
      vector<2>();
    else if (mean < 12)
      vector<4>();
    else if (mean < 32)
      vector<8>();
    else
      vector<32>();
  }

  void carries() const {
    const dim3 grid(grid_size((P.rows.pieces() + 7) / 8, kMostX), 1, grid_size(P.batch, kMostYZ));
    if (P.k == 1)
      carries_kernel<32><<<grid, dim3(32, 8), 0, stream>>>(P);
    else
      carries_kernel<1><<<grid, dim3(32, 8), 0, stream>>>(P);
  }
};

// The pass, for at least one row, column and member of the batch.
template <bool Sum, bool Dot, class T, class I>
cudaError_t launch_row_pass(const RowPass<T, I>& P, cudaStream_t stream) {
  const RowPassLaunch<Sum, Dot, T, I> launch{P, stream};
  if (P.k > 1) {
    if (P.packs)
      launch.template columns<16 / sizeof(T)>();
    else
      launch.template columns<1>();
  } else if (!P.rows.table) {
    launch.vector();
  } else {
    const unsigned stretches = grid_size(P.rows.stretches, kMostX);
    if constexpr (Sum) {
      const unsigned depth = grid_size(P.adds_up(true, false) ? 1 : P.batch, kMostYZ);
      vector_stretches_kernel<<<dim3(stretches, 1, depth), kStretchThreads, 0, stream>>>(P);
    }
    if constexpr (Dot) {
      const unsigned depth = grid_size(P.adds_up(false, true) ? 1 : P.batch, kMostYZ);
      vector_entries_kernel<<<dim3(stretches, 1, depth), kThreads, 0, stream>>>(P);
    }
  }
  if constexpr (Sum)
    if (P.rows.table) launch.carries();
  return cudaGetLastError();
}

}  // namespace learnsolve::cuda
