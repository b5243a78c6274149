// y = A x on CUDA: a sub-warp for each row and column, its lanes stride over the row's entries and are
// summed by shuffles in a fixed order. No atomics: the same bits on every run.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace learnsolve::cuda {

template <class T, class I>
struct SpmmArguments {
  const I* ptr;
  const I* idx;
  const I* perm;  // or null
  const T* values;
  const T* x;
  T* y;
  int64_t rows, k, batch;
  int64_t values_stride, x_stride;  // from one member of the batch to the next; 0 if it is shared
  bool sum_batch;
};

template <int LANES, class T, class I>
__global__ void spmm_kernel(SpmmArguments<T, I> a) {
  const int lane = threadIdx.x % LANES;
  const int64_t item = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / LANES;
  const int64_t outputs = a.sum_batch ? a.rows * a.k : a.batch * a.rows * a.k;
  // A whole sub-warp leaves together: the shuffles below name only the lanes of their own one.
  if (item >= outputs) return;
  const unsigned mask =
      LANES == 32 ? 0xffffffffu : ((1u << LANES) - 1u) << (threadIdx.x % 32 / LANES * LANES);
  const int64_t c = item % a.k, i = item / a.k % a.rows, first = item / a.k / a.rows;
  const int64_t last = a.sum_batch ? a.batch : first + 1;
  T sum = 0;
  for (int64_t b = first; b < last; ++b) {
    const T* values = a.values + b * a.values_stride;
    const T* x = a.x + b * a.x_stride;
    for (int64_t p = a.ptr[i] + lane; p < a.ptr[i + 1]; p += LANES)
      sum +=
          values[a.perm ? static_cast<int64_t>(a.perm[p]) : p] * x[static_cast<int64_t>(a.idx[p]) * a.k + c];
  }
#pragma unroll
  for (int h = LANES / 2; h > 0; h /= 2) sum += __shfl_down_sync(mask, sum, h, LANES);
  if (lane == 0) a.y[item] = sum;
}

template <int LANES, class T, class I>
cudaError_t launch_spmm_lanes(const SpmmArguments<T, I>& a, cudaStream_t stream) {
  constexpr int threads = 256;
  const int64_t outputs = (a.sum_batch ? 1 : a.batch) * a.rows * a.k;
  const int64_t grid = (outputs * LANES + threads - 1) / threads;
  if (grid > 0x7fffffff) return cudaErrorInvalidConfiguration;
  spmm_kernel<LANES, T, I><<<static_cast<unsigned>(grid), threads, 0, stream>>>(a);
  return cudaGetLastError();
}

// As many lanes as the average row has entries, up to a warp; one lane where columns fill the machine.
template <class T, class I>
cudaError_t launch_spmm(const SpmmArguments<T, I>& a, int64_t nnz, cudaStream_t stream) {
  const int64_t mean = a.rows ? nnz / a.rows : 0;
  if (a.k >= 16 || mean < 4) return launch_spmm_lanes<1>(a, stream);
  if (mean < 12) return launch_spmm_lanes<4>(a, stream);
  if (mean < 48) return launch_spmm_lanes<16>(a, stream);
  return launch_spmm_lanes<32>(a, stream);
}

}  // namespace learnsolve::cuda
