// Launches, and how their threads share out the work. Every loop goes on beyond the grid: no size is too
// large for a launch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/tuning.h"
#include "kernels/views.h"

#ifndef __CUDACC__
#include "emulator/cuda.h"
// Where a team waits: for messages of the emulator.
#define LS_WHERE , const std::source_location& where = std::source_location::current()
#define LS_HERE , where
#else
#define LS_WHERE
#define LS_HERE
#endif

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

// Some numbers that are loaded and stored together, by one instruction where they make 16 bytes.
template <class T, int N>
struct alignas(N == 1 ? alignof(T) : 16) Pack {
  T v[N];
};

// On the host by memcpy, which GCC makes one access too: for the emulator's meter.
template <int N, class T>
LS_DEVICE Pack<T, N> load_pack(const T* p) {
#ifdef __CUDACC__
  return *reinterpret_cast<const Pack<T, N>*>(p);
#else
  Pack<T, N> value;
  std::memcpy(&value, p, sizeof(value));
  return value;
#endif
}
// In PTX, because nvcc may take any other store of several numbers apart, one of a float4 too.
template <int N, class T>
LS_DEVICE void store_pack(T* p, const Pack<T, N>& value) {
#ifdef __CUDACC__
  if constexpr (N == 1) {
    *p = value.v[0];
  } else {
    const auto halves = __builtin_bit_cast(ulonglong2, value);
    asm volatile("st.global.v2.b64 [%0], {%1, %2};"
                 :
                 : "l"(__cvta_generic_to_global(p)), "l"(halves.x), "l"(halves.y)
                 : "memory");
  }
#else
  std::memcpy(p, &value, sizeof(value));
#endif
}

// Can packs be read from here on, and at multiples of `step` numbers from here?
template <class T>
bool takes_packs(const T* p, int64_t step = 0) {
  return (reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(step) * sizeof(T)) % 16 == 0;
}

// N neighboring lanes of one warp, all of which take part in every sum: N is 1, 2, ..., 32.
template <int N>
struct Team {
  static constexpr int size = N;
  const int lane;
  const unsigned mask;
  LS_DEVICE Team()
      : lane(static_cast<int>(threadIdx.x % N)),
        mask(N == 32 ? 0xffffffffu : ((1u << (N % 32)) - 1u) << (threadIdx.x % 32 / N * N)) {}
  LS_DEVICE bool first() const { return lane == 0; }
  // Of all lanes, in a fixed tree; all of them receive it.
  template <class T>
  LS_DEVICE T sum(T s LS_WHERE) const {
    LS_UNROLL
    for (int h = N / 2; h > 0; h /= 2) s += __shfl_xor_sync(mask, s, h, N LS_HERE);
    return s;
  }
  // sum(parts[lane % M]), for less: each step of the tree halves the sums that a lane goes on with. M <= N.
  template <int M, class T>
  LS_DEVICE T sums(T (&parts)[M] LS_WHERE) const {
    int h = N / 2;
    LS_UNROLL
    for (int left = M / 2; left > 0; left /= 2, h /= 2) {
      const bool upper = (lane & h) != 0;
      LS_UNROLL
      for (int i = 0; i < left; ++i) {
        const T given = upper ? parts[i] : parts[i + left], kept = upper ? parts[i + left] : parts[i];
        parts[i] = kept + __shfl_xor_sync(mask, given, h, N LS_HERE);
      }
    }
    T sum = parts[0];
    LS_UNROLL
    for (; h > 0; h /= 2) sum += __shfl_xor_sync(mask, sum, h, N LS_HERE);
    return of_lane(sum, lane % M * (N / M) LS_HERE);
  }
  template <class T>
  LS_DEVICE T of_lane(T s, int at LS_WHERE) const {
    return __shfl_sync(mask, s, at, N LS_HERE);
  }
};

// The number of blocks for `items` items, `each` of them to a block.
inline unsigned blocks_for(int64_t items, int64_t each = 1, int64_t most = 0x7fffffff) {
  return static_cast<unsigned>(std::clamp<int64_t>((items + each - 1) / each, 1, most));
}
// Along the second and third axis of a grid.
inline unsigned blocks_aside(int64_t items) { return blocks_for(items, 1, 0xffff); }

// Those b0 <= b < b1 of a batch, which are one of its groups.
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

// Sums over a batch. Members that add up are cut into a few groups, whose number depends on sizes alone. A
// team works through one group and writes what it adds up to a slot of that group; then one kernel adds the
// slots, in order. So no team has the whole batch, and every run gives the same bits.
//
// On the host (ops/device.cuh), for a kernel that gives `size` numbers for each member, or adds them up:
//
//   const Groups groups(batch, out_step == 0 ? size : 0);
//   const BatchSum<T> sum(like, out, out_step, size, groups);
//   LS_LAUNCH(dim3(blocks, 1, blocks_aside(groups.count)), kThreads, device.stream,
//             (groups, sum.result, ...), kernel<T>);
//   sum.finish(device);
//
// and in the kernel, for number o of the result:
//
//   for_members(groups, [&](Members members) {
//     T sum = 0;
//     for (int64_t b = members.b0; b < members.b1; ++b) sum += ...;
//     result.of(members)[o] = sum;
//   });
//
// If nothing adds up, every group is one member, and the slots are the results.

struct Groups {
  static constexpr int64_t kMost = 32;
  static constexpr int64_t kSlots = int64_t{1} << 22;  // numbers in all slots; more make work for any device
  int64_t batch = 1, each = 1, count = 1;

  Groups() = default;
  // added: how many numbers the members add up, or 0.
  Groups(int64_t batch_, int64_t added) : batch(batch_), count(batch_) {
    if (added == 0 || batch == 0) return;
    const int64_t most = std::min(batch, std::clamp<int64_t>(kSlots / added, 1, kMost));
    each = (batch + most - 1) / most;
    count = (batch + each - 1) / each;
  }
  LS_BOTH Members members(int64_t g) const {
    return {g * each, (g + 1) * each < batch ? (g + 1) * each : batch, g};
  }
};

// f(members) for the groups, along the third axis of the grid.
template <class F>
LS_DEVICE void for_members(const Groups& groups, const F& f) {
  for (int64_t g = blockIdx.z; g < groups.count; g += gridDim.z) f(groups.members(g));
}

// A result of each member, or of each group if `adds`.
template <class T>
struct BatchResult {
  T* p = nullptr;
  int64_t step = 0;
  bool adds = false;
  // Where one kernel has several results, of which some add up:
  LS_DEVICE T* of(int64_t b, const Members& members) const { return p + (adds ? members.group : b) * step; }
  LS_DEVICE bool goes_on(int64_t b, const Members& members) const { return adds && b > members.b0; }
  LS_DEVICE bool ends(int64_t b, const Members& members) const { return !adds || b + 1 == members.b1; }
  // Where it has one:
  LS_DEVICE T* of(const Members& members) const { return p + members.group * step; }
};

// out = the sum of the slots, one after another.
template <class T>
LS_KERNEL(kThreads)
add_groups_kernel(const T* slots, int64_t count, int64_t size, T* out) {
  for_items<1>(size, [&](const auto&, int64_t o) {
    T sum = slots[o];
    for (int64_t g = 1; g < count; ++g) sum += slots[g * size + o];
    out[o] = sum;
  });
}

// Sums over rows: rows are cut into chunks, whose number depends on that of the rows alone. One block adds up
// each chunk, in a fixed tree, and writes a partial sum a column; the block that is last (arrives_last), or
// the next launch, adds up all partials in a fixed order (add_chunks). So a sum has the same bits on every
// run, whatever the grid and the device. As on the host (ops/sweeps.cpp), partial sums are in the numbers'
// own type and the sum of partials in double.

// Rows begin(c) <= i < end(c), 0 <= c < count. At least one chunk, so that a total is written for no rows.
// Tiles are made for the same chunks (learnsolve/matrix/device_analysis.py).
struct Chunks {
  int64_t rows = 0, size = kFewestChunkRows, count = 1;

  Chunks() = default;
  explicit Chunks(int64_t rows_)
      : rows(rows_),
        size(std::max(kFewestChunkRows, ((rows_ + kMostChunks - 1) / kMostChunks + 31) / 32 * 32)),
        count(std::max<int64_t>((rows_ + size - 1) / size, 1)) {}
  LS_BOTH int64_t begin(int64_t c) const { return c * size; }
  LS_BOTH int64_t end(int64_t c) const { return c * size + size < rows ? c * size + size : rows; }
};

// Columns whose totals a block adds up together: a power of two.
LS_BOTH int columns_together(int64_t k) {
  int width = 1;
  while (width < 32 && width < k) width *= 2;
  return width;
}

// The functions below are for a whole block of kThreads.

// In shared memory, slots (a power of two) of `width` numbers, kThreads of them or more: parts[w] becomes the
// sum over the slots of their number w, in a fixed tree. Before: __syncthreads(). Afterwards all threads may
// read the sums.
template <class T>
LS_DEVICE void add_slots(T* parts, int slots, int width) {
  const int lane = static_cast<int>(threadIdx.x), last = width < 32 ? 32 : width;
  int h = slots / 2;
  for (; h * width >= kThreads; h /= 2) {
    for (int e = lane; e < h * width; e += kThreads) parts[e] += parts[e + h * width];
    __syncthreads();
  }
  // From here on a thread needs its own numbers alone, then those of its warp.
  if (lane < last) {
    for (; h * width >= last; h /= 2)
      for (int e = lane; e < h * width; e += last) parts[e] += parts[e + h * width];
    T sum = parts[lane];
    for (; h > 0; h /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, h * width);
    parts[lane] = sum;
  }
  __syncthreads();
}

// Is this block the last one of `count` to come here? Each comes once in a launch, after which `arrived`, at
// first 0, is 0 again. The last one sees all that the others have written before. For a whole block.
LS_DEVICE bool arrives_last(unsigned* arrived, int64_t count) {
  __syncthreads();
  int last = 0;
  if (threadIdx.x == 0) {
    const auto others = static_cast<unsigned>(count - 1);
    __threadfence();
    last = atomicInc(arrived, others) == others;
    __threadfence();
  }
  return __syncthreads_or(last) != 0;
}

// Totals of the columns c0 <= c < c0 + width of partials, chunks x k: shared[c - c0], which holds kThreads
// numbers. Before it is written again: __syncthreads().
template <class T>
LS_DEVICE void add_chunks(const T* partials, int64_t chunks, int64_t k, int64_t c0, int width,
                          double* shared) {
  const int lane = static_cast<int>(threadIdx.x), slots = kThreads / width;
  const int64_t c = c0 + lane % width;
  double sum = 0;
  if (c < k)
    for (int64_t chunk = lane / width; chunk < chunks; chunk += slots)
      sum += static_cast<double>(partials[chunk * k + c]);
  shared[lane] = sum;
  __syncthreads();
  add_slots(shared, slots, width);
}

// Totals of partials (results, chunks, k). Result r, which is number r / batch of member r % batch, goes to
// out + (r % batch) out_step + (r / batch) k: its root, or it is added to what is there.
template <class T>
LS_KERNEL(kThreads)
totals_kernel(const T* partials, int64_t results, int64_t batch, int64_t chunks, int64_t k, bool roots,
              T* out, int64_t out_step) {
  LS_SHARED(shared, double[kThreads]);
  const int width = columns_together(k), lane = static_cast<int>(threadIdx.x);
  const int64_t tiles = (k + width - 1) / width;
  for_blocks(results * tiles, [&](int64_t item) {
    const int64_t r = item / tiles, c0 = item % tiles * width;
    add_chunks(partials + r * chunks * k, chunks, k, c0, width, shared);
    T* const to = out + r % batch * out_step + r / batch * k + c0;
    if (lane < width && c0 + lane < k)
      to[lane] = static_cast<T>(roots ? std::sqrt(shared[lane]) : to[lane] + shared[lane]);
    __syncthreads();
  });
}

}  // namespace learnsolve::cuda
