// As much of CUDA as the kernels use, on the host: a compiler of C++ takes the device code as it is written.
// Every thread of a launch runs on a stack of its own, with the grid and the blocks that the operator chose.
//
// A thread runs until it waits: at a barrier, for the other lanes of a shuffle, or for a number that it
// polls. Blocks run in random order, one at a time, their threads in random order too, always the same in the
// same sequence of launches (LEARNSOLVE_EMULATOR_SEED=n for another). So a block must not wait for one that
// has not begun, as on a device that has room for one block; and what a barrier is missing for is not there
// yet, or is there already. Under ThreadSanitizer nothing but barriers, shuffles, fences and the end of a
// launch orders the accesses of two threads; an atomic operation orders none.
//
// Faults end the process, with the kernel, the block, the thread and the line:
//   a barrier or a shuffle that some of its threads never reach, or reach by another call;
//   a thread that polls a number which no thread of its block, and none of a block before, stores;
//   a lane that is not in its own mask, or reads from one that is not;
//   more than 48 KB of shared memory, which is not zero but NaN at first, or a read beyond its end (with
//   AddressSanitizer);
//   a block that has not ended after a minute: it waits for another one.
// A launch that a device refuses is an error: cudaGetLastError().
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <source_location>
#include <type_traits>
#include <utility>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidConfiguration = 9;
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice };

namespace learnsolve::emulator {

using Where = std::source_location;

// What a thread is told about itself.
struct Place {
  dim3 thread, block, block_size, grid;
};
extern Place* place;

// Runs body, the kernel with its arguments, in every thread.
void launch(const char* kernel, dim3 grid, dim3 threads, void (*body)(const void*), const void* arguments);
template <class Body>
void launch(const char* kernel, dim3 grid, dim3 threads, const Body& body) {
  launch(kernel, grid, threads, [](const void* of) { (*static_cast<const Body*>(of))(); }, &body);
}

// Memory of this block, one for each key.
void* shared(const void* key, int64_t bytes, int64_t alignment, const Where& where);

// Is `says` true in any thread of the block? Returns when all have asked.
bool barrier(bool says, const Where& where);

// Returns what lane `from` of the warp has given when all lanes of the mask have.
uint64_t exchange(unsigned mask, uint64_t bits, int from, const Where& where);
// The number at `at` is not there yet: other threads go on before it is read again.
void spin(const volatile void* at, const Where& where);
void require(bool holds, const char* what, const Where& where);
// What a thread has done before its fence comes before what another one does after a later fence.
void fence();

template <class T>
T shuffle(unsigned mask, T value, int from, const Where& where) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  union {
    uint64_t bits = 0;
    T value;
  } given, got;
  given.value = value;
  got.bits = exchange(mask, given.bits, from, where);
  return got.value;
}

inline int lane() {
  const Place& p = *place;
  return static_cast<int>(((p.thread.z * p.block_size.y + p.thread.y) * p.block_size.x + p.thread.x) % 32);
}

}  // namespace learnsolve::emulator

#define threadIdx (learnsolve::emulator::place->thread)
#define blockIdx (learnsolve::emulator::place->block)
#define blockDim (learnsolve::emulator::place->block_size)
#define gridDim (learnsolve::emulator::place->grid)

inline void __syncthreads(learnsolve::emulator::Where where = learnsolve::emulator::Where::current()) {
  learnsolve::emulator::barrier(false, where);
}
inline int __syncthreads_or(int says,
                            learnsolve::emulator::Where where = learnsolve::emulator::Where::current()) {
  return learnsolve::emulator::barrier(says != 0, where);
}
inline void __syncwarp(unsigned mask = ~0u,
                       learnsolve::emulator::Where where = learnsolve::emulator::Where::current()) {
  learnsolve::emulator::exchange(mask, 0, learnsolve::emulator::lane(), where);
}
// From this lane of its group of `width` neighbors.
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32,
              learnsolve::emulator::Where where = learnsolve::emulator::Where::current()) {
  const int first = learnsolve::emulator::lane() / width * width;
  return learnsolve::emulator::shuffle(mask, value, first + from % width, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32,
                  learnsolve::emulator::Where where = learnsolve::emulator::Where::current()) {
  const int lane = learnsolve::emulator::lane(), from = lane ^ other;
  return learnsolve::emulator::shuffle(mask, value, from / width > lane / width ? lane : from, where);
}

inline void __threadfence() { learnsolve::emulator::fence(); }
inline unsigned atomicInc(unsigned* at, unsigned limit) {
  const std::atomic_ref<unsigned> number(*at);
  const unsigned old = number.load(std::memory_order_relaxed);
  number.store(old >= limit ? 0 : old + 1, std::memory_order_relaxed);
  return old;
}

inline int __popcll(unsigned long long word) { return std::popcount(word); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

// The error of the last launch, which it forgets.
cudaError_t cudaGetLastError();
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t);
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_step, const void* from, std::size_t from_step,
                              std::size_t bytes, std::size_t count, cudaMemcpyKind, cudaStream_t);
