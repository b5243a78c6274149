// Totals of partial sums, in order (kernels/grid.cuh).
#pragma once

#include "kernels/grid.cuh"
#include "ops/device.cuh"

namespace learnsolve {

// cuda::totals_kernel
template <class T>
void add_totals(const OnDevice& device, const T* partials, int64_t results, int64_t batch, int64_t chunks,
                int64_t k, bool roots, T* out, int64_t out_step) {
  LS_LAUNCH(cuda::blocks_for(results * ((k + 31) / 32)), cuda::kThreads, device.stream,
            (partials, results, batch, chunks, k, roots, out, out_step), cuda::totals_kernel<T>);
  STD_CUDA_CHECK(cudaGetLastError());
}

}  // namespace learnsolve
