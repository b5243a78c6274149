// Sums and combinations of columns for CUDA tensors.
#include "ops/loops.cuh"
#include "ops/products.h"

namespace learnsolve {
namespace {

using namespace cuda;

template <class T>
LS_KERNEL(kThreads)
column_combination_kernel(Groups groups, BatchOf<const T> a, BatchOf<const T> v, int64_t size, int64_t k,
                          BatchResult<T> out) {
  for_members(groups, [&](const Members& members) {
    for_items<1>(size, [&](const auto&, int64_t o) {
      T sum = 0;
      for (int64_t b = members.b0; b < members.b1; ++b) sum += a.of(b)[o % k] * v.of(b)[o];
      out.of(members)[o] = sum;
    });
  });
}

}  // namespace

Tensor column_dots_cuda(const Tensor& u, const Tensor& v, bool sum_batch) {
  const char* name = "column_dots";
  const Columns o(name, u, v, false);
  if (o.k == 0 || o.n == 0 || o.batch == 0) return new_zeros(o.u, o.sums(sum_batch));
  Tensor out = new_zeros(o.u, o.sums(sum_batch));
  const OnDevice device(o.u);
  const Chunks chunks(o.n);
  const Tensor sums = new_empty(o.u, Size{o.batch * chunks.count * o.k});
  const int64_t results = out.numel() / o.k;
  dispatch_dtype(name, o.u, [&]<class T>() {
    const In<T> w{data<T>(o.v), o.v_step};
    const ProductPass<T, 1> end{{data<T>(o.u), o.u_step}, {}, nullptr};
    ChunkLaunch<T>{device, o.k, o.batch}.after(w, end, chunks, Partials<T>{{mutable_data<T>(sums)}});
    add_totals(device, data<T>(sums), results, results, o.batch * chunks.count / results, o.k, false,
               mutable_data<T>(out), o.k);
  });
  return out;
}

Tensor column_combination_cuda(const Tensor& a, const Tensor& v) {
  const char* name = "column_combination";
  const Columns o(name, a, v, true);
  const Size size{o.n, o.k};
  if (o.batch == 0 || o.n * o.k == 0) return new_zeros(o.v, size);
  Tensor out = new_empty(o.v, size);
  const OnDevice device(o.v);
  dispatch_dtype(name, o.v, [&]<class T>() {
    const Groups groups(o.batch, o.n * o.k);
    const BatchSum<T> sum(o.v, mutable_data<T>(out), 0, o.n * o.k, groups);
    LS_LAUNCH(dim3(blocks_for(o.n * o.k, kThreads), 1, blocks_aside(groups.count)), kThreads, device.stream,
              (groups, BatchOf<const T>{data<T>(o.u), o.u_step}, BatchOf<const T>{data<T>(o.v), o.v_step},
               o.n * o.k, o.k, sum.result),
              column_combination_kernel<T>);
    STD_CUDA_CHECK(cudaGetLastError());
    sum.finish(device);
  });
  return out;
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("column_dots", TORCH_BOX(&learnsolve::column_dots_cuda));
  m.impl("column_combination", TORCH_BOX(&learnsolve::column_combination_cuda));
}
