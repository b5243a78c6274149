// Launches, and how their threads share out the work. Every loop goes on beyond the grid: no size is too
// large for a launch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/team.cuh"
#include "kernels/tuning.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

#define LS_KERNEL(...) __global__ void __launch_bounds__(__VA_ARGS__)
#define LS_ARGUMENT const __grid_constant__
// LS_SHARED(name, type): a variable that the threads of a block share.
#define LS_SHARED(name, ...) __shared__ std::type_identity_t<__VA_ARGS__> name
// LS_LAUNCH(grid, threads, stream, (arguments), kernel<...>)
#define LS_LAUNCH(grid, threads, stream, arguments, ...) __VA_ARGS__<<<grid, threads, 0, stream>>> arguments
#else
#define LS_KERNEL(...) void
#define LS_ARGUMENT const
#define LS_SHARED(name, ...)                                                                  \
  static const char key_of_##name = 0;                                                        \
  auto& name = *static_cast<std::type_identity_t<__VA_ARGS__>*>(learnsolve::emulator::shared( \
      &key_of_##name, sizeof(__VA_ARGS__), alignof(__VA_ARGS__), std::source_location::current()))
#define LS_LAUNCH(grid, threads, stream, arguments, ...) \
  ((void)(stream), learnsolve::emulator::launch(#__VA_ARGS__, grid, threads, [&] { __VA_ARGS__ arguments; }))
#endif

namespace learnsolve::cuda {

// The number of blocks for `items` items, `each` of them to a block.
inline unsigned blocks_for(int64_t items, int64_t each = 1, int64_t most = 0x7fffffff) {
  return static_cast<unsigned>(std::clamp<int64_t>((items + each - 1) / each, 1, most));
}
// Along the second and third axis of a grid.
inline unsigned blocks_aside(int64_t items) { return blocks_for(items, 1, 0xffff); }

// Those b0 <= b < b1 of a batch, which are one of its groups (kernels/groups.cuh).
struct Members {
  int64_t b0, b1, group = 0;
};

// Values for each member of a batch, or (step 0) of all.
template <class T>
struct BatchOf {
  T* values;
  int64_t step;
  LS_DEVICE T* of(int64_t b) const { return values + b * step; }
};

// f(team, i) for the items of this thread's team, along the first axis of the grid.
template <int Lanes, class F>
LS_DEVICE void for_items(int64_t items, const F& f) {
  const Team<Lanes> team;
  const int64_t teams = blockDim.x / Lanes;
  for (int64_t i = blockIdx.x * teams + threadIdx.x / Lanes; i < items; i += gridDim.x * teams) f(team, i);
}
// f(i) for those of the block, along the first axis of the grid and along the second.
template <class F>
LS_DEVICE void for_blocks(int64_t items, const F& f) {
  for (int64_t i = blockIdx.x; i < items; i += gridDim.x) f(i);
}
template <class F>
LS_DEVICE void for_aside(int64_t items, const F& f) {
  for (int64_t i = blockIdx.y; i < items; i += gridDim.y) f(i);
}
// f(i, j, k) for this thread's points of a grid of `layers` times `lines` times `width`.
template <class F>
LS_DEVICE void for_points(int64_t layers, int64_t lines, int64_t width, const F& f) {
  for (int64_t i = blockIdx.z; i < layers; i += gridDim.z)
    for (int64_t j = int64_t{blockIdx.y} * blockDim.y + threadIdx.y; j < lines; j += gridDim.y * blockDim.y)
      for (int64_t k = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; k < width; k += gridDim.x * blockDim.x)
        f(i, j, k);
}

}  // namespace learnsolve::cuda
