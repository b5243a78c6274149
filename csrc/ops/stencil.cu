// stencil and stencil_products for CUDA tensors.
#include "kernels/stencil.cuh"
#include "ops/device.cuh"
#include "ops/stencil.h"

namespace learnsolve {
namespace {

using namespace cuda;

// A point a thread: the last axis along x, the one before along y, the first and the batch along z.
template <class Pass, class F>
LS_DEVICE void for_grid_points(const Pass& P, const F& f) {
  const int64_t* n = P.S.grid;
  for_points((P.adds_up() ? 1 : P.batch) * n[0], n[1], n[2], [&](int64_t layer, int64_t i1, int64_t i2) {
    const int64_t b = layer / n[0];
    f(GridPoint(P.S, layer % n[0], i1, i2), P.adds_up() ? Members{0, P.batch} : Members{b, b + 1});
  });
}

template <class T>
LS_KERNEL(kThreads)
stencil_kernel(LS_ARGUMENT StencilPass<T> P) {
  for_grid_points(P, [&](const GridPoint& i, Members members) { stencil_point(P, i, members); });
}

template <class T>
LS_KERNEL(kThreads)
stencil_products_kernel(LS_ARGUMENT StencilProductsPass<T> P) {
  for_grid_points(P, [&](const GridPoint& i, Members members) { stencil_products_point(P, i, members); });
}

template <class T>
LS_KERNEL(kStencilThreads)
stencil_part_sums_kernel(LS_ARGUMENT StencilProductsPass<T> P, T* partial, int64_t parts, int64_t count) {
  LS_SHARED(scratch, SumsScratch<T>);
  const Block<kStencilThreads> team;
  for_aside(P.batch, [&](int64_t b) {
    for_blocks(parts, [&](int64_t n) {
      stencil_part_sums(team, P, n, b, partial + (b * parts + n) * count, scratch);
    });
  });
}

template <class T>
LS_KERNEL(kThreads)
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
    while (width < kThreads && width < S.grid[2]) width *= 2;
    block = dim3(width, kThreads / width);
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
      LS_LAUNCH(launch.grid, launch.block, device.stream, (P), stencil_kernel<T>);
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
        LS_LAUNCH(dim3(blocks_for(parts), blocks_aside(call.batch)), kStencilThreads, device.stream,
                  (P, mutable_data<T>(partial) + from, parts, S.count), stencil_part_sums_kernel<T>);
      else
        LS_LAUNCH(launch.grid, launch.block, device.stream, (P), stencil_products_kernel<T>);
      STD_CUDA_CHECK(cudaGetLastError());
    }
    if (!constant) return;
    const int64_t results = call.batched ? call.batch : 1, terms = call.batch / results * parts;
    const unsigned blocks = blocks_for(results * S.count, kThreads / 32);
    LS_LAUNCH(blocks, kThreads, device.stream,
              (data<T>(partial), terms, S.count, results, mutable_data<T>(q)), stencil_total_kernel<T>);
    STD_CUDA_CHECK(cudaGetLastError());
  });
  return q;
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("stencil", TORCH_BOX(&learnsolve::stencil_cuda));
  m.impl("stencil_products", TORCH_BOX(&learnsolve::stencil_products_cuda));
}
