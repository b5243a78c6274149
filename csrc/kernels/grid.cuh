// Loops that stay on the device: launches of as many blocks as it holds at once, a barrier for all of them,
// and sums over rows that every block can compute. Compiled for the host a kernel does the work of all
// blocks, a phase at a time, and the barrier does nothing.
//
// A persistent kernel is a sequence of phases with grid_sync() between them. Every block must reach every
// barrier: a condition around a barrier must have the same value in all of them, and no barrier may lie in
// for_blocks.
//
// Sums: rows are cut into chunks, whose number depends on that of the rows alone. One block adds up each
// chunk, in a fixed tree, and writes a partial sum a column. After the barrier each block that needs a total
// adds up all partials in a fixed order (add_chunks): blocks do that in parallel, without a further barrier.
// So sums have the same bits whatever the device, the grid and the form of the loop. As on the host (ops/
// richardson.h), partial sums are in the numbers' own type and the sum of partials in double.
#pragma once

#include <atomic>
#include <type_traits>

#include "kernels/launch.cuh"

#ifdef __CUDACC__
#include <cooperative_groups.h>
#endif

namespace learnsolve::cuda {

// Below 0: what the device has. Else as much, so that both forms of a loop can be measured and compared.
inline std::atomic<int64_t> assumed_cache_bytes{-1};

// Rows begin(c) <= i < end(c), 0 <= c < count. At least one chunk, so that a total is written for no rows.
struct Chunks {
  static constexpr int64_t kMost = 1024, kFewestRows = 128;
  int64_t rows = 0, size = kFewestRows, count = 1;

  Chunks() = default;
  explicit Chunks(int64_t rows_)
      : rows(rows_),
        size(std::max(kFewestRows, ((rows_ + kMost - 1) / kMost + 31) / 32 * 32)),
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

// In shared memory, slots (a power of two) of `width` numbers: parts[w] becomes the sum over the slots of
// their number w, in a fixed tree. All threads must call it, after team.sync(); afterwards all of them may
// read the sums.
template <class Team, class T>
LS_DEVICE void add_slots(const Team& team, T* parts, int slots, int width) {
  for (int h = slots / 2; h > 0; h /= 2) {
    team.each([&](int lane) {
      for (int e = lane; e < h * width; e += Team::size) parts[e] += parts[e + h * width];
    });
    team.sync();
  }
}

// Totals of the columns c0 <= c < c0 + width of partials, chunks x k: shared[c - c0]. `shared` holds
// Team::size numbers; before it is written again: team.sync().
template <class Team, class T>
LS_DEVICE void add_chunks(const Team& team, const T* partials, int64_t chunks, int64_t k, int64_t c0,
                          int width, double* shared) {
  const int slots = Team::size / width;
  team.each([&](int lane) {
    const int64_t c = c0 + lane % width;
    double sum = 0;
    if (c < k)
      for (int64_t chunk = lane / width; chunk < chunks; chunk += slots)
        sum += static_cast<double>(partials[chunk * k + c]);
    shared[lane] = sum;
  });
  team.sync();
  add_slots(team, shared, slots, width);
}

#ifdef __CUDACC__

// All writes before it, of all blocks, are seen by all threads after it.
LS_DEVICE void grid_sync() { cooperative_groups::this_grid().sync(); }

// f(team, slot, i) for begin <= i < end by the teams of one block, of which this is number `slot`: always the
// same one for the same row.
template <int Lanes, class F>
LS_DEVICE void for_teams(int64_t begin, int64_t end, const F& f) {
  constexpr int teams = kThreads / Lanes;
  const WarpTeam<Lanes> team;
  const int slot = static_cast<int>(threadIdx.x) / Lanes;
  for (int64_t i = begin + slot; i < end; i += teams) f(team, slot, i);
}

// A property of the current device, queried once. -1: not queried yet.
template <class F>
int64_t once_a_device(std::atomic<int64_t>* known, const F& ask) {
  constexpr int kDevices = 64;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (device >= kDevices) return ask(device);
  int64_t value = known[device].load(std::memory_order_relaxed) - 1;
  if (value < 0) {
    value = ask(device);
    known[device].store(value + 1, std::memory_order_relaxed);
  }
  return value;
}
template <cudaDeviceAttr Attribute>
int64_t device_attribute() {
  static std::atomic<int64_t> known[64];
  return once_a_device(known, [](int device) -> int64_t {
    int value = 0;
    return cudaDeviceGetAttribute(&value, Attribute, device) == cudaSuccess ? value : 0;
  });
}
inline int64_t l2_bytes() {
  const int64_t assumed = assumed_cache_bytes;
  return assumed < 0 ? device_attribute<cudaDevAttrL2CacheSize>() : assumed;
}

// The number of blocks of Threads threads that the current device runs at once; 0 if it has no barrier for a
// grid.
template <auto Kernel, int Threads>
int64_t resident_blocks() {
  static std::atomic<int64_t> known[64];
  return once_a_device(known, [](int) -> int64_t {
    if (device_attribute<cudaDevAttrCooperativeLaunch>() == 0) return 0;
    int each = 0;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, Kernel, Threads, 0) != cudaSuccess) {
      cudaGetLastError();  // clears the error: the loop of launches needs no barrier
      return 0;
    }
    return each * device_attribute<cudaDevAttrMultiProcessorCount>();
  });
}

template <auto Kernel, int Threads, class... Parameters>
cudaError_t launch_resident_as(void (*)(Parameters...), int64_t blocks, cudaStream_t stream,
                               std::type_identity_t<Parameters>... arguments) {
  const int64_t most = resident_blocks<Kernel, Threads>();
  if (most == 0) return cudaErrorNotSupported;
  void* pointers[] = {static_cast<void*>(&arguments)...};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(Kernel), dim3(blocks_for(blocks, 1, most)),
                                     dim3(Threads), pointers, 0, stream);
}

#else

inline void grid_sync() {
  if (host_grid.barrier) host_grid.barrier();
}

template <int Lanes, class F>
void for_teams(int64_t begin, int64_t end, const F& f) {
  constexpr int teams = kThreads / Lanes;
  for (int64_t i = begin; i < end; ++i) f(HostTeam<Lanes>{}, static_cast<int>((i - begin) % teams), i);
}

inline int64_t l2_bytes() {
  const int64_t assumed = assumed_cache_bytes;
  return assumed < 0 ? int64_t{1} << 12 : assumed;  // small, so that tests run both forms of a loop
}

template <auto Kernel, int Threads>
int64_t resident_blocks() {
  return 1;
}
template <auto Kernel, int Threads, class... Parameters>
cudaError_t launch_resident_as(void (*)(Parameters...), int64_t, cudaStream_t,
                               std::type_identity_t<Parameters>... arguments) {
  Kernel(arguments...);
  return 0;
}

#endif

// Launches Kernel, a persistent kernel, on `blocks` blocks or on as many as the device holds. An error if the
// device has no barrier for a grid (resident_blocks = 0).
template <auto Kernel, int Threads, class... Arguments>
cudaError_t launch_resident(int64_t blocks, cudaStream_t stream, const Arguments&... arguments) {
  return launch_resident_as<Kernel, Threads>(Kernel, blocks, stream, arguments...);
}

}  // namespace learnsolve::cuda
