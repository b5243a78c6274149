// Sums over rows: rows are cut into chunks, whose number depends on that of the rows alone. One block adds up
// each chunk, in a fixed tree, and writes a partial sum a column; the block that is last (arrives_last), or
// the next launch, adds up all partials in a fixed order (add_chunks). So a sum has the same bits on every
// run, whatever the grid and the device. As on the host (ops/richardson.h), partial sums are in the numbers'
// own type and the sum of partials in double.
#pragma once

#include <cmath>

#include "kernels/launch.cuh"

namespace learnsolve::cuda {

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
