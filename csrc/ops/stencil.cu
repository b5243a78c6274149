// stencil and stencil_products for CUDA tensors.
#include "kernels/stencil.cuh"
#include "ops/device.cuh"
#include "ops/launch.cuh"
#include "ops/stencil.h"

namespace learnsolve {
namespace {

using namespace cuda;

// A point a thread: the last axis along x, the one before along y, the first and the batch along z.
template <class Pass, class F>
__device__ __forceinline__ void for_points(const Pass& P, const F& f) {
  const int64_t* n = P.S.grid;
  const int64_t layers = (P.adds_up() ? 1 : P.batch) * n[0];
  for (int64_t layer = blockIdx.z; layer < layers; layer += gridDim.z) {
    const int64_t b = layer / n[0], i0 = layer % n[0];
    const Members members = P.adds_up() ? Members{0, P.batch} : Members{b, b + 1};
    for (int64_t i1 = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; i1 < n[1];
         i1 += static_cast<int64_t>(gridDim.y) * blockDim.y)
      for (int64_t i2 = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i2 < n[2];
           i2 += static_cast<int64_t>(gridDim.x) * blockDim.x)
        f(GridPoint(P.S, i0, i1, i2), members);
  }
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads) stencil_kernel(const __grid_constant__ StencilPass<T> P) {
  for_points(P, [&](const GridPoint& i, Members members) { stencil_point(P, i, members); });
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    stencil_products_kernel(const __grid_constant__ StencilProductsPass<T> P) {
  for_points(P, [&](const GridPoint& i, Members members) { stencil_products_point(P, i, members); });
}

template <class T>
__global__ void __launch_bounds__(kStencilThreads)
    stencil_part_sums_kernel(const __grid_constant__ StencilProductsPass<T> P, T* partial, int64_t parts,
                             int64_t count) {
  __shared__ SumsScratch<T> scratch;
  const BlockTeam<kStencilThreads> team;
  for (int64_t b = blockIdx.y; b < P.batch; b += gridDim.y)
    for (int64_t n = blockIdx.x; n < parts; n += gridDim.x)
      stencil_part_sums(team, P, n, b, partial + (b * parts + n) * count, scratch);
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    stencil_total_kernel(const T* partial, int64_t terms, int64_t count, int64_t results, T* out) {
  for_items<32>(results * count, [&](const auto& team, int64_t item) {
    const int64_t r = item / count;
    stencil_total(team, partial + r * terms * count, terms, static_cast<int>(count),
                  static_cast<int>(item % count), out + r * count);
  });
}

struct PointsLaunch {
  dim3 block, grid;
  explicit PointsLaunch(const StencilView& S, int64_t members) {
    unsigned width = 8;
    while (width < kBlockThreads && width < S.grid[2]) width *= 2;
    block = dim3(width, kBlockThreads / width);
    grid = dim3(blocks_for(S.grid[2], width), blocks_for(S.grid[1], block.y, 0xffff),
                blocks_aside(members * S.grid[0]));
  }
};

}  // namespace

Tensor stencil_cuda(const Tensor& coefficients, const Tensor& x_, const std::vector<int64_t>& offsets,
                    const std::vector<int64_t>& periodic, bool transpose, bool sum_batch) {
  const char* name = "stencil";
  const Tensor c = dense(coefficients), x = dense(x_);
  check_device(name, x, {&c});
  const StencilCall call(name, c, x, offsets, periodic, transpose, sum_batch);
  const StencilView& S = call.shapes.view;
  if (call.nothing()) return new_zeros(x, call.size);
  Tensor y = new_empty(x, call.size);
  const OnDevice device(x);
  const PointsLaunch launch(S, call.adds_up() ? 1 : call.batch);
  dispatch_dtype(name, x, [&]<class T>() {
    for (int64_t from = 0; from < S.count; from += kStencilOffsets) {
      const StencilPass<T> P{StencilOffsets::of(S, from),
                             call.kind,
                             data<T>(c) + from * (call.constant() ? 1 : S.points()),
                             data<T>(x),
                             mutable_data<T>(y),
                             call.c_step,
                             call.x_step,
                             call.y_step,
                             call.batch,
                             from > 0};
      stencil_kernel<<<launch.grid, launch.block, 0, device.stream>>>(P);
      STD_CUDA_CHECK(cudaGetLastError());
    }
  });
  return y;
}

Tensor stencil_products_cuda(const Tensor& u_, const Tensor& w_, const std::vector<int64_t>& offsets,
                             const std::vector<int64_t>& periodic, bool constant, bool sum_batch) {
  const char* name = "stencil_products";
  const Tensor u = dense(u_), w = dense(w_);
  check_device(name, u, {&w});
  const StencilProductsCall call(name, u, w, offsets, periodic, constant, sum_batch);
  const StencilView& S = call.shapes.view;
  if (call.nothing()) return new_zeros(u, call.size);
  Tensor q = new_empty(u, call.size);
  const OnDevice device(u);
  const int64_t points = S.points(), parts = (points + kStencilPart - 1) / kStencilPart;
  const PointsLaunch launch(S, call.adds_up() ? 1 : call.batch);
  const std::vector<int64_t> partial_size{constant ? call.batch * parts * S.count : 0};
  const Tensor partial = new_empty(u, partial_size);
  dispatch_dtype(name, u, [&]<class T>() {
    for (int64_t from = 0; from < S.count; from += kStencilOffsets) {
      const StencilProductsPass<T> P{StencilOffsets::of(S, from),
                                     data<T>(u),
                                     data<T>(w),
                                     mutable_data<T>(q) + from * points,
                                     call.u_step,
                                     call.w_step,
                                     call.q_step,
                                     call.batch};
      if (constant)
        stencil_part_sums_kernel<<<dim3(blocks_for(parts), blocks_aside(call.batch)), kStencilThreads, 0,
                                   device.stream>>>(P, mutable_data<T>(partial) + from, parts, S.count);
      else
        stencil_products_kernel<<<launch.grid, launch.block, 0, device.stream>>>(P);
      STD_CUDA_CHECK(cudaGetLastError());
    }
    if (!constant) return;
    const int64_t results = call.batched ? call.batch : 1, terms = call.batch / results * parts;
    const unsigned blocks = blocks_for(results * S.count, kBlockThreads / 32);
    stencil_total_kernel<<<blocks, kBlockThreads, 0, device.stream>>>(data<T>(partial), terms, S.count,
                                                                      results, mutable_data<T>(q));
    STD_CUDA_CHECK(cudaGetLastError());
  });
  return q;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CUDA, m) {
  m.impl("stencil", TORCH_BOX(&learnsolve::stencil_cuda));
  m.impl("stencil_products", TORCH_BOX(&learnsolve::stencil_products_cuda));
}
