// Sums and combinations of columns for CUDA tensors.
#include "ops/column_dots.h"
#include "ops/pcg.cuh"

namespace learnsolve {
namespace {

using namespace cuda;

// Totals of `terms` x k partial sums in order, for each result.
template <class T>
LS_KERNEL(kThreads)
column_totals_kernel(const T* partials, int64_t terms, int64_t results, int64_t k, T* out) {
  LS_SHARED(shared, double[kThreads]);
  const Block<kThreads> team;
  const int width = columns_together(k);
  for_blocks(results, [&](int64_t r) {
    for (int64_t c0 = 0; c0 < k; c0 += width) {
      add_chunks(team, partials + r * terms * k, terms, k, c0, width, shared);
      team.each([&](int lane) {
        if (lane < width && c0 + lane < k) out[r * k + c0 + lane] = static_cast<T>(shared[lane]);
      });
      team.sync();
    }
  });
}

template <class T>
LS_KERNEL(kThreads)
column_combination_kernel(BatchOf<const T> a, BatchOf<const T> v, int64_t batch, int64_t size, int64_t k,
                          T* out) {
  for_items<1>(size, [&](const auto& team, int64_t o) {
    team.first([&] {
      T sum = 0;
      for (int64_t b = 0; b < batch; ++b) sum += a.of(b)[o % k] * v.of(b)[o];
      out[o] = sum;
    });
  });
}

}  // namespace

Tensor column_dots_cuda(const Tensor& u, const Tensor& v, bool sum_batch) {
  const char* name = "column_dots";
  const Columns o(name, u, v, false);
  if (o.k == 0 || o.n == 0 || o.batch == 0) return new_zeros(o.u, o.sums(sum_batch));
  Tensor out = new_empty(o.u, o.sums(sum_batch));
  const OnDevice device(o.u);
  const Chunks chunks(o.n);
  const Tensor sums = new_empty(o.u, Size{o.batch * chunks.count * o.k});
  const int64_t results = out.numel() / o.k, terms = o.batch * chunks.count / results;
  dispatch_dtype(name, o.u, [&]<class T>() {
    const bool packs = takes_packs(data<T>(o.u), o.u_step) && takes_packs(data<T>(o.v), o.v_step);
    const ChunkLaunch<T> launch{device, o.k, o.batch, packs};
    launch.pass(MakeDot<T>{{data<T>(o.u), o.u_step}, {data<T>(o.v), o.v_step}, nullptr}, chunks,
                Partials<T>{{mutable_data<T>(sums), nullptr}});
    LS_LAUNCH(blocks_for(results), kThreads, device.stream,
              (data<T>(sums), terms, results, o.k, mutable_data<T>(out)), column_totals_kernel<T>);
    STD_CUDA_CHECK(cudaGetLastError());
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
    LS_LAUNCH(blocks_for(o.n * o.k, kThreads), kThreads, device.stream,
              (BatchOf<const T>{data<T>(o.u), o.u_step}, BatchOf<const T>{data<T>(o.v), o.v_step}, o.batch,
               o.n * o.k, o.k, mutable_data<T>(out)),
              column_combination_kernel<T>);
    STD_CUDA_CHECK(cudaGetLastError());
  });
  return out;
}

}  // namespace learnsolve

LS_OPERATORS(m) {
  m.impl("column_dots", TORCH_BOX(&learnsolve::column_dots_cuda));
  m.impl("column_combination", TORCH_BOX(&learnsolve::column_combination_cuda));
}
