// Launches, and how their threads share out the work. Every loop goes on beyond the grid: no size is too
// large for a launch. Compiled for the host, a kernel is a function that does all the work itself: so the
// operators of csrc/ops/*.cu run, and are tested, where there is no device.
#pragma once

#include <algorithm>

#include "kernels/team.cuh"

#ifdef __CUDACC__
#include <cuda_runtime.h>

#define LS_KERNEL(...) __global__ void __launch_bounds__(__VA_ARGS__)
#define LS_ARGUMENT const __grid_constant__
#define LS_SHARED __shared__
// LS_LAUNCH(grid, threads, stream, (arguments), kernel<...>)
#define LS_LAUNCH(grid, threads, stream, arguments, ...) __VA_ARGS__<<<grid, threads, 0, stream>>> arguments
#else
#define LS_KERNEL(...) void
#define LS_ARGUMENT const
#define LS_SHARED
#define LS_LAUNCH(grid, threads, stream, arguments, ...) \
  ((void)(grid), (void)(threads), (void)(stream), __VA_ARGS__ arguments)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
using cudaStream_t = void*;
using cudaError_t = int;
inline cudaError_t cudaGetLastError() { return 0; }
#endif

namespace learnsolve::cuda {

constexpr int kThreads = 256;  // of a block, by default

// The number of blocks for `items` items, `each` of them to a block.
inline unsigned blocks_for(int64_t items, int64_t each = 1, int64_t most = 0x7fffffff) {
  return static_cast<unsigned>(std::clamp<int64_t>((items + each - 1) / each, 1, most));
}
// Along the second and third axis of a grid.
inline unsigned blocks_aside(int64_t items) { return blocks_for(items, 1, 0xffff); }

// Those b0 <= b < b1 of a batch.
struct Members {
  int64_t b0, b1;
};

// Values for each member of a batch, or (step 0) of all.
template <class T>
struct BatchOf {
  T* values;
  int64_t step;
  LS_DEVICE T* of(int64_t b) const { return values + b * step; }
};

// The items assigned to this worker: the first, and the step from one to the next.
struct Turns {
  int64_t first, step;
};
// Those of this thread's team, along one axis of the grid.
template <int Lanes>
LS_BOTH Turns turns(int64_t block, int64_t blocks, int64_t thread, int64_t threads = kThreads) {
  const int64_t teams = threads / Lanes;
  return {block * teams + thread / Lanes, blocks * teams};
}

#ifdef __CUDACC__

template <int N>
using Block = BlockTeam<N>;

// f(team, i) for the items assigned to this thread's team.
template <int Lanes, class F>
LS_DEVICE void for_items(int64_t items, const F& f) {
  const WarpTeam<Lanes> team;
  const Turns mine = turns<Lanes>(blockIdx.x, gridDim.x, threadIdx.x);
  for (int64_t i = mine.first; i < items; i += mine.step) f(team, i);
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
// f(lane) for this thread of N.
template <int N, class F>
LS_DEVICE void for_thread(const F& f) {
  f(static_cast<int>(threadIdx.x));
}
// f(members): one by one along the third axis, or all together if they add up.
template <class F>
LS_DEVICE void for_members(bool adds_up, int64_t batch, const F& f) {
  if (adds_up) return f(Members{0, batch});
  for (int64_t b = blockIdx.z; b < batch; b += gridDim.z) f(Members{b, b + 1});
}
// f(i, j, k) for this thread's points of a grid of `layers` times `lines` times `width`.
template <class F>
LS_DEVICE void for_points(int64_t layers, int64_t lines, int64_t width, const F& f) {
  const Turns y = turns<1>(blockIdx.y, gridDim.y, threadIdx.y, blockDim.y),
              x = turns<1>(blockIdx.x, gridDim.x, threadIdx.x, blockDim.x);
  for (int64_t i = blockIdx.z; i < layers; i += gridDim.z)
    for (int64_t j = y.first; j < lines; j += y.step)
      for (int64_t k = x.first; k < width; k += x.step) f(i, j, k);
}

#else

// One thread does the work of all blocks, unless a test makes it one of several
// (csrc/tests/device_grid_test.cpp).
struct HostGrid {
  int64_t block = 0, blocks = 1;
  void (*barrier)() = nullptr;
};
inline thread_local HostGrid host_grid;

template <int N>
using Block = HostTeam<N>;

template <int Lanes, class F>
void for_items(int64_t items, const F& f) {
  for (int64_t i = 0; i < items; ++i) f(HostTeam<Lanes>{}, i);
}
template <class F>
void for_blocks(int64_t items, const F& f) {
  for (int64_t i = host_grid.block; i < items; i += host_grid.blocks) f(i);
}
template <class F>
void for_aside(int64_t items, const F& f) {
  for (int64_t i = 0; i < items; ++i) f(i);
}
template <int N, class F>
void for_thread(const F& f) {
  for (int lane = 0; lane < N; ++lane) f(lane);
}
template <class F>
void for_members(bool adds_up, int64_t batch, const F& f) {
  if (adds_up) return f(Members{0, batch});
  for (int64_t b = 0; b < batch; ++b) f(Members{b, b + 1});
}
template <class F>
void for_points(int64_t layers, int64_t lines, int64_t width, const F& f) {
  for (int64_t i = 0; i < layers; ++i)
    for (int64_t j = 0; j < lines; ++j)
      for (int64_t k = 0; k < width; ++k) f(i, j, k);
}

#endif

}  // namespace learnsolve::cuda
