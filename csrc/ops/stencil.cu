// stencil and stencil_products for CUDA tensors.
#include "kernels/stencil.cuh"
#include "ops/device.cuh"
#include "ops/stencil.h"

namespace learnsolve {
namespace {

using namespace cuda;

struct PointsLaunch {
  dim3 block, grid;
  PointsLaunch(const StencilView& S, const Groups& groups) {
    unsigned width = 8;
    while (width < kThreads && width < S.grid[2]) width *= 2;
    block = dim3(width, kThreads / width);
    grid = dim3(blocks_for(S.grid[2], width), blocks_for(S.grid[1], block.y, 0xffff),
                blocks_aside(groups.count * S.grid[0]));
  }
};

// f(offsets, number of the first of them) for as many at a time as one launch takes.
template <class F>
void for_offsets(const StencilView& S, const F& f) {
  for (int64_t from = 0; from < S.count; from += kStencilOffsets) {
    f(StencilOffsets::of(S, from), from);
    STD_CUDA_CHECK(cudaGetLastError());
  }
}

template <class T>
BatchResult<T> at(BatchResult<T> result, int64_t number) {
  result.p += number;
  return result;
}

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
  const Groups groups(call.batch, call.y_step == 0 ? S.points() : 0);
  const PointsLaunch launch(S, groups);
  dispatch_dtype(name, x, [&]<class T>() {
    const BatchSum<T> sum(x, mutable_data<T>(y), call.y_step, S.points(), groups);
    for_offsets(S, [&](const StencilOffsets& some, int64_t from) {
      const T* first = data<T>(c) + from * (call.constant() ? 1 : S.points());
      const StencilPass<T> P{
          some, {first, call.c_step}, {data<T>(x), call.x_step}, sum.result, groups, call.kind, from > 0, 0};
      LS_LAUNCH(launch.grid, launch.block, device.stream, (P), stencil_kernel<T>);
    });
    sum.finish(device);
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
  Tensor q = constant ? new_zeros(u, call.size) : new_empty(u, call.size);
  const OnDevice device(u);
  const int64_t points = S.points(), size = S.count * (constant ? 1 : points);
  const Groups groups(call.batch, call.q_step == 0 ? size : 0);
  dispatch_dtype(name, u, [&]<class T>() {
    const BatchOf<const T> left{data<T>(u), call.u_step}, right{data<T>(w), call.w_step};
    if (!constant) {
      const BatchSum<T> sum(u, mutable_data<T>(q), call.q_step, size, groups);
      const PointsLaunch launch(S, groups);
      for_offsets(S, [&](const StencilOffsets& some, int64_t from) {
        const StencilPass<T> P{some, left, right, at(sum.result, from * points), groups, {}, false, 0};
        LS_LAUNCH(launch.grid, launch.block, device.stream, (P), stencil_products_kernel<T>);
      });
      return sum.finish(device);
    }
    // Teams sum up a part of the points each, for one result at most kStencilParts of them altogether.
    const int64_t results = call.q_step == 0 ? 1 : call.batch, slots = groups.count / results;
    const int64_t part =
        std::max(kFewestPoints, ((points * slots + kStencilParts - 1) / kStencilParts + 31) / 32 * 32);
    const int64_t parts = (points + part - 1) / part;
    const Tensor memory = new_empty(u, Size{groups.count * parts * S.count});
    T* partial = mutable_data<T>(memory);
    for_offsets(S, [&](const StencilOffsets& some, int64_t from) {
      const StencilPass<T> P{some, left, right, {}, groups, {}, false, part};
      LS_LAUNCH(dim3(blocks_for(parts, kThreads / 32), 1, blocks_aside(groups.count)), kThreads,
                device.stream, (P, partial + from, parts, S.count), stencil_part_sums_kernel<T>);
    });
    add_totals<T>(device, partial, results, results, slots * parts, S.count, false, mutable_data<T>(q),
                  S.count);
  });
  return q;
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("stencil", TORCH_BOX(&learnsolve::stencil_cuda));
  m.impl("stencil_products", TORCH_BOX(&learnsolve::stencil_products_cuda));
}
