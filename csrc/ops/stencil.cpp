// Stencils on structured grids: the operator, its transpose, and the products that are their derivatives.
#include "ops/stencil.h"

#include "ops/host.h"

namespace learnsolve {
namespace {

// f(u0, u1) over ranges of 0 <= u < units; `work` multiply-adds altogether.
template <class F>
void parallel_units(int64_t units, int64_t work, const F& f) {
  const int64_t parts = work < 2 * kGrain ? 1 : std::min<int64_t>({units, work / kGrain, threads_here()});
  if (parts <= 1) return f(0, units);
  parallel_for(0, parts, 1, [&](int64_t c0, int64_t c1) { f(units * c0 / parts, units * c1 / parts); });
}

// f(b, block0, block1) for every b of the batch and every block: blocks of several b in parallel or, where b
// adds to what b - 1 wrote, only those of one.
template <class F>
void parallel_batch(const StencilView& S, int64_t batch, bool adds_up, const F& f) {
  const int64_t blocks = S.blocks(), work = S.points() * (S.count + 1) * batch;
  if (adds_up)
    return parallel_units(blocks, work, [&](int64_t b0, int64_t b1) {
      for (int64_t b = 0; b < batch; ++b) f(b, b0, b1);
    });
  parallel_units(blocks * batch, work, [&](int64_t u0, int64_t u1) {
    for (int64_t u = u0; u < u1;) {
      const int64_t b = u / blocks, end = std::min(u1, (b + 1) * blocks);
      f(b, u - b * blocks, end - b * blocks);
      u = end;
    }
  });
}

}  // namespace

Tensor stencil(const Tensor& coefficients, const Tensor& x_, const std::vector<int64_t>& offsets,
               const std::vector<int64_t>& periodic, bool transpose, bool sum_batch) {
  const char* name = "stencil";
  const Tensor c = dense(coefficients), x = dense(x_);
  check_device(name, x, {&c});
  const StencilCall call(name, c, x, offsets, periodic, transpose, sum_batch);
  const StencilView& S = call.shapes.view;
  if (call.nothing()) return new_zeros(x, call.size);
  Tensor y = new_empty(x, call.size);
  dispatch_dtype(name, x, [&]<class T>() {
    parallel_batch(S, call.batch, sum_batch, [&](int64_t b, int64_t b0, int64_t b1) {
      kernels().get<T, int32_t>().stencil(S, call.kind, b0, b1, data<T>(c) + b * call.c_step,
                                          data<T>(x) + b * call.x_step, mutable_data<T>(y) + b * call.y_step,
                                          sum_batch && b > 0);
    });
  });
  return y;
}

Tensor stencil_products(const Tensor& u_, const Tensor& w_, const std::vector<int64_t>& offsets,
                        const std::vector<int64_t>& periodic, bool constant, bool sum_batch) {
  const char* name = "stencil_products";
  const Tensor u = dense(u_), w = dense(w_);
  check_device(name, u, {&w});
  const StencilProductsCall call(name, u, w, offsets, periodic, constant, sum_batch);
  const StencilView& S = call.shapes.view;
  if (call.nothing()) return new_zeros(u, call.size);
  Tensor q = new_empty(u, call.size);
  dispatch_dtype(name, u, [&]<class T>() {
    const auto& table = kernels().get<T, int32_t>();
    if (!constant)
      return parallel_batch(S, call.batch, sum_batch, [&](int64_t b, int64_t b0, int64_t b1) {
        table.stencil_products(S, b0, b1, data<T>(u) + b * call.u_step, data<T>(w) + b * call.w_step,
                               mutable_data<T>(q) + b * call.q_step, sum_batch && b > 0);
      });
    // Sums of the blocks, added up in order: the same bits for any number of threads.
    const int64_t blocks = S.blocks(), step = blocks * S.count;
    std::vector<T> partial(call.batch * step);
    parallel_batch(S, call.batch, false, [&](int64_t b, int64_t b0, int64_t b1) {
      table.stencil_correlation(S, b0, b1, data<T>(u) + b * call.u_step, data<T>(w) + b * call.w_step,
                                partial.data() + b * step);
    });
    const int64_t results = call.batched ? call.batch : 1, terms = call.batch / results * blocks;
    for (int64_t r = 0; r < results; ++r)
      for (int64_t k = 0; k < S.count; ++k) {
        T sum = 0;
        for (int64_t t = 0; t < terms; ++t) sum += partial[(r * terms + t) * S.count + k];
        mutable_data<T>(q)[r * S.count + k] = sum;
      }
  });
  return q;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("stencil", TORCH_BOX(&learnsolve::stencil));
  m.impl("stencil_products", TORCH_BOX(&learnsolve::stencil_products));
}
