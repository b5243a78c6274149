// Probe: what the memory, the caches, launches and barriers of a device can do at most.
#include <cooperative_groups.h>

#include <string>

#include "probe.h"

namespace probe {
namespace {

namespace cg = cooperative_groups;
constexpr int kSteps = 1000;  // of one thread or block, one after another
int processors = 0;
double clock_rate = 0;  // of a processor, cycles a second

void say(const std::string& what, double number, const char* unit) {
  std::printf("| %-60s | %10.3f | %s |\n", what.c_str(), number, unit);
  std::fflush(stdout);
}
std::string megabytes(int64_t bytes) {
  const double mb = static_cast<double>(bytes) / (1 << 20);
  char text[32];
  std::snprintf(text, sizeof text, mb < 1 ? "%.3f MB" : "%.0f MB", mb);
  return text;
}

// Numbers that no compiler may leave out.
LS_DEVICE void keep(float sum, float* out) {
  if (sum == 1.2345f) *out = sum;
}

LS_KERNEL(kThreads)
copy_kernel(const float4* from, float4* to, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads)
    to[i] = from[i];
}

// All of a set, round after round, past L1; every block starts elsewhere.
LS_KERNEL(kThreads)
read_kernel(const float4* from, int64_t n, int rounds, float* out) {
  float sum = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads, me = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  for (int r = 0; r < rounds; ++r) {
    const int64_t shift = r * int64_t{7919} * kThreads % n;
#pragma unroll 4
    for (int64_t i = me; i < n; i += step) {
      const int64_t at = i + shift;
      const float4 v = __ldcg(from + (at < n ? at : at - n));
      sum += v.x + v.y + v.z + v.w;
    }
  }
  keep(sum, out);
}

// Random numbers of a set (a power of two), 8 under way in each lane.
LS_KERNEL(kThreads)
gather_kernel(const float* from, unsigned mask, int rounds, float* out) {
  unsigned state = (blockIdx.x * kThreads + threadIdx.x) * 2654435761u + 1;
  float sum = 0;
  for (int r = 0; r < rounds; ++r) {
    float v[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      state = state * 1664525u + 1013904223u;
      v[u] = __ldg(from + (state >> 4 & mask));
    }
#pragma unroll
    for (int u = 0; u < 8; ++u) sum += v[u];
  }
  keep(sum, out);
}

// Lanes `Step` numbers apart within 16 KB of a block, which stay in L1.
template <class T, int Step>
LS_KERNEL(kThreads)
l1_kernel(const T* from, int rounds, float* out) {
  constexpr int kSet = 16384 / sizeof(T);
  from += int64_t{blockIdx.x} * kSet;
  T sum = 0;
  unsigned at = threadIdx.x % 32 * Step + threadIdx.x / 32 * 32;
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int u = 0; u < 8; ++u) sum += from[(at + u * 160) & (kSet - 1)];
    at += 32;
  }
  keep(static_cast<float>(sum), out);
}
template <class T, int Step>
void l1(const Buffer<float>& set, float* out) {
  constexpr int kSectors = std::min<int>(32, 32 * Step * sizeof(T) / 32);
  const int blocks = 4 * processors, rounds = 2000;
  const double us = microseconds([&](int) {
    l1_kernel<T, Step><<<blocks, kThreads, 0, stream()>>>(reinterpret_cast<const T*>(set.p), rounds, out);
  });
  const double loads = 8.0 * rounds * blocks * (kThreads / 32);
  char text[96];
  std::snprintf(text, sizeof text, "L1, %zu bytes a lane, %zu apart: clocks a warp load", sizeof(T),
                Step * sizeof(T));
  say(text, us * 1e-6 * clock_rate * processors / loads, "clocks");
  std::snprintf(text, sizeof text, "    the same: %d sectors a load", kSectors);
  say(text, loads * kSectors * 32 / us * 1e-6, "TB/s");
}

// One load after another, through L1 if Near.
template <bool Near>
LS_KERNEL(1)
chase_kernel(const int* next, int at, float* out) {
  for (int s = 0; s < 10 * kSteps; ++s) at = Near ? next[at] : __ldcg(next + at);
  keep(static_cast<float>(at), out);
}
// n, a power of two, numbers in a ring that goes to and fro.
LS_KERNEL(kThreads)
ring_kernel(int* next, int n) {
  for_items<1>(n, [&](const auto&, int64_t i) {
    next[i] = static_cast<int>((static_cast<unsigned>(i) * 1664525u + 1013904223u) & (n - 1u));
  });
}

LS_KERNEL(kThreads)
empty_kernel() {}
LS_KERNEL(kThreads)
waiting_kernel() { cudaGridDependencySynchronize(); }

LS_KERNEL(kThreads)
grid_kernel() {
  const cg::grid_group grid = cg::this_grid();
  for (int s = 0; s < kSteps; ++s) grid.sync();
}
// The same by one counter, which every block polls.
LS_KERNEL(kThreads)
counter_kernel(unsigned* counter) {
  for (unsigned s = 1; s <= kSteps; ++s) {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(counter, 1);
      while (*static_cast<volatile unsigned*>(counter) < s * gridDim.x) {
      }
      __threadfence();
    }
    __syncthreads();
  }
}
LS_KERNEL(kThreads)
cluster_kernel() {
  const cg::cluster_group cluster = cg::this_cluster();
  for (int s = 0; s < kSteps; ++s) cluster.sync();
}
LS_KERNEL(kThreads)
block_kernel() {
  for (int s = 0; s < kSteps; ++s) __syncthreads();
}
// Two blocks that wait for each other by turns.
LS_KERNEL(32)
turns_kernel(int* turn) {
  if (threadIdx.x > 0) return;
  for (int s = 0; s < kSteps; ++s) {
    while (*static_cast<volatile int*>(turn) != 2 * s + static_cast<int>(blockIdx.x)) {
    }
    *static_cast<volatile int*>(turn) = 2 * s + static_cast<int>(blockIdx.x) + 1;
  }
}

// Microseconds of a launch with attributes, which a graph need not know.
template <class F>
double once(const F& launch) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  double best = NAN;
  for (int i = 0; i < 5; ++i) {
    cudaEventRecord(begin, stream());
    if (launch() != cudaSuccess) return cudaGetLastError(), NAN;
    cudaEventRecord(end, stream());
    must(cudaEventSynchronize(end), "launch");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    best = best < 1e3 * ms ? best : 1e3 * ms;
  }
  return best;
}

cudaLaunchConfig_t config(int blocks, cudaLaunchAttribute* attribute) {
  cudaLaunchConfig_t made{};
  made.gridDim = dim3(blocks), made.blockDim = dim3(kThreads), made.stream = stream();
  made.attrs = attribute, made.numAttrs = attribute ? 1 : 0;
  return made;
}

void memory(float* out) {
  const int64_t most = int64_t{1} << 30;
  const Buffer<float> a(most / 4), b(most / 4);
  fill(a, 1), fill(b, 2);
  const int blocks = 8 * processors;
  say("copy of 1 GB, cudaMemcpyAsync", copy_rate() / 1e12, "TB/s");
  say("copy of 1 GB, kernel", 2.0 * most / microseconds([&](int) {
                                copy_kernel<<<blocks, kThreads, 0, stream()>>>(reinterpret_cast<float4*>(a.p),
                                                                               reinterpret_cast<float4*>(b.p),
                                                                               most / 16);
                              }) / 1e6,
      "TB/s");
  for (int64_t mb : {4, 8, 16, 24, 32, 40, 48, 64, 96, 1024}) {
    const int64_t bytes = mb << 20;
    const int rounds = static_cast<int>(std::max<int64_t>(1, most / bytes));
    const double us = microseconds([&](int) {
      read_kernel<<<blocks, kThreads, 0, stream()>>>(reinterpret_cast<float4*>(a.p), bytes / 16, rounds, out);
    });
    say("read again and again, " + megabytes(bytes), 1.0 * bytes * rounds / us / 1e6, "TB/s");
  }
  for (int64_t kb : {16, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 524288}) {
    const int rounds = 100;
    const unsigned mask = static_cast<unsigned>(kb * 256 - 1);
    const double us =
        microseconds([&](int) { gather_kernel<<<blocks, kThreads, 0, stream()>>>(a.p, mask, rounds, out); });
    say("random gathers of 4 bytes from " + megabytes(kb << 10),
        8.0 * rounds * blocks * kThreads * 32 / us / 1e6, "TB/s of sectors");
  }
  l1<float, 1>(a, out), l1<float, 2>(a, out), l1<float, 5>(a, out), l1<float, 7>(a, out),
      l1<float, 8>(a, out);
  l1<float, 32>(a, out), l1<double, 1>(a, out), l1<double, 5>(a, out), l1<double, 16>(a, out);
}

void latency(float* out) {
  for (int64_t kb : {16, 4096, 32768, 524288}) {
    const int n = static_cast<int>(kb * 256);
    const Buffer<int> next(n);
    ring_kernel<<<blocks_for(n, kThreads), kThreads, 0, stream()>>>(next.p, n);
    int start = 0;
    const double us = once([&] {  // from elsewhere, where nothing has been read
      start = (start + 104729) % n;
      kb == 16 ? chase_kernel<true><<<1, 1, 0, stream()>>>(next.p, start, out)
               : chase_kernel<false><<<1, 1, 0, stream()>>>(next.p, start, out);
      return cudaGetLastError();
    });
    say("one load after another, " + megabytes(kb << 10), 100 * us / kSteps, "ns");
  }
}

void launches() {
  const int blocks = processors;
  say("empty kernel in a stream", once([&] {
                                    for (int i = 0; i < kSteps; ++i)
                                      empty_kernel<<<blocks, kThreads, 0, stream()>>>();
                                    return cudaGetLastError();
                                  }) / kSteps,
      "us");
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t overlapped = config(blocks, &early);
  say("    with programmatic launch",
      once([&] {
        cudaError_t error = cudaSuccess;
        for (int i = 0; i < kSteps; ++i)
          error = std::max(error, cudaLaunchKernelEx(&overlapped, waiting_kernel));
        return error;
      }) / kSteps,
      "us");
  say("empty kernel in a graph",
      microseconds([&](int) { empty_kernel<<<blocks, kThreads, 0, stream()>>>(); }, 200), "us");
  say("    with programmatic launch",
      microseconds([&](int) { cudaLaunchKernelEx(&overlapped, waiting_kernel); }, 200), "us");
  const Buffer<char> room(1 << 20);
  for (int64_t bytes : {1 << 10, 1 << 20})
    say("memset in a graph, " + megabytes(bytes),
        microseconds([&](int) { cudaMemsetAsync(room.p, 0, bytes, stream()); }, 200), "us");
}

void barriers() {
  say("barrier of a block of 256", once([] {
                                     block_kernel<<<1, kThreads, 0, stream()>>>();
                                     return cudaGetLastError();
                                   }) / kSteps,
      "us");
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative, together.val.cooperative = 1;
  const Buffer<unsigned> counter(1);
  for (int each : {1, 2, 4}) {
    const cudaLaunchConfig_t all = config(each * processors, &together);
    const std::string blocks = std::to_string(each * processors) + " blocks";
    say("barrier of a grid of " + blocks,
        once([&] { return cudaLaunchKernelEx(&all, grid_kernel); }) / kSteps, "us");
    say("    by one counter", once([&] {
                                cudaMemsetAsync(counter.p, 0, 4, stream());
                                return cudaLaunchKernelEx(&all, counter_kernel, counter.p);
                              }) / kSteps,
        "us");
  }
  cudaFuncSetAttribute(cluster_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  for (unsigned size : {2, 8, 16}) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = size, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    const cudaLaunchConfig_t one = config(static_cast<int>(size), &cluster);
    say("barrier of a cluster of " + std::to_string(size),
        once([&] { return cudaLaunchKernelEx(&one, cluster_kernel); }) / kSteps, "us");
  }
  const Buffer<int> turn(1);
  say("from a store to who polls for it in another block", once([&] {
                                                             cudaMemsetAsync(turn.p, 0, 4, stream());
                                                             turns_kernel<<<2, 32, 0, stream()>>>(turn.p);
                                                             return cudaGetLastError();
                                                           }) / (2 * kSteps),
      "us");
}

}  // namespace
}  // namespace probe

int main() {
  using namespace probe;
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  int khz = 0;
  cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0);
  processors = device.multiProcessorCount, clock_rate = 1e3 * khz;
  std::printf("%s, %d processors, %.0f MHz at most, %d MB of L2\n", device.name, processors, khz / 1e3,
              device.l2CacheSize >> 20);
  std::printf("| what | number | unit |\n|---|---|---|\n");
  const Buffer<float> out(1);
  memory(out.p), latency(out.p), launches(), barriers();
  finish("ceilings");
}
