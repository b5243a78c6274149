// Shapes of launches. Every kernel's loops go on beyond its grid: no size is too large.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/row_pass.cuh"

namespace learnsolve {

constexpr int kBlockThreads = 256;

inline unsigned blocks_for(int64_t items, int64_t each = 1, int64_t most = 0x7fffffff) {
  return static_cast<unsigned>(std::clamp<int64_t>((items + each - 1) / each, 1, most));
}
// Along the second and third axis of a grid.
inline unsigned blocks_aside(int64_t items) { return blocks_for(items, 1, 0xffff); }

// f(members) for those of the batch that the block is to work on.
template <class F>
__device__ __forceinline__ void for_members(bool adds_up, int64_t batch, const F& f) {
  if (adds_up) return f(cuda::Members{0, batch});
  for (int64_t b = blockIdx.z; b < batch; b += gridDim.z) f(cuda::Members{b, b + 1});
}

// f(team, item) for items that fall to this thread's team of Lanes.
template <int Lanes, class F>
__device__ __forceinline__ void for_items(int64_t items, const F& f) {
  constexpr int teams = kBlockThreads / Lanes;
  const cuda::WarpTeam<Lanes> team;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * teams + threadIdx.x / Lanes; i < items;
       i += static_cast<int64_t>(gridDim.x) * teams)
    f(team, i);
}

}  // namespace learnsolve
