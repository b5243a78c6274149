// What Richardson sweeps and their adjoint share on a CUDA device: one call's operands, shapes of teams, and
// runs of sweeps, whose kernels are compiled once (richardson.cu).
#pragma once

#include "kernels/richardson.cuh"
#include "ops/spmm.cuh"
#include "ops/sweep_sizes.h"

namespace learnsolve {

// to = from, or -factor from, `count` numbers for each member.
template <class T>
void copy_members(const OnDevice& device, const T* from, int64_t from_step, T* to, int64_t to_step,
                  int64_t count, int64_t batch, const T* factor = nullptr, int64_t factor_step = 0) {
  if (count == 0 || batch == 0) return;
  LS_LAUNCH(dim3(cuda::blocks_for(count, cuda::kThreads), cuda::blocks_aside(batch)), cuda::kThreads,
            device.stream, (from, from_step, to, to_step, count, batch, factor, factor_step),
            cuda::copy_kernel<T>);
  STD_CUDA_CHECK(cudaGetLastError());
}

// Totals of partials (sums, chunks, k), or their roots (cuda::totals_kernel).
template <class T>
void totals(const OnDevice& device, const T* partials, int64_t sums, int64_t batch, int64_t chunks, int64_t k,
            bool roots, T* out, int64_t out_step) {
  LS_LAUNCH(cuda::blocks_for(sums * k), cuda::kThreads, device.stream,
            (partials, sums, batch, chunks, k, roots, out, out_step), cuda::totals_kernel<T>);
  STD_CUDA_CHECK(cudaGetLastError());
}

// f.operator()<Shape>(), for rows whose product is given or computed.
template <class T, class F>
void with_shape(int64_t k, bool packs, bool given, int64_t mean, const F& f) {
  constexpr int V = 16 / sizeof(T);
  if (k == 1) {
    if (given || mean < 2)
      f.template operator()<cuda::VectorShape<1>>();
    else if (mean < 8)
      f.template operator()<cuda::VectorShape<2>>();
    else if (mean < 32)
      f.template operator()<cuda::VectorShape<8>>();
    else
      f.template operator()<cuda::VectorShape<32>>();
  } else if (packs) {
    if (k <= 4 * V)
      f.template operator()<cuda::ColumnsShape<4, V>>();
    else
      f.template operator()<cuda::ColumnsShape<16, V>>();
  } else {
    f.template operator()<cuda::ColumnsShape<8, 1>>();
  }
}

// What the forward and the adjoint have in common for one call.
template <class T, class I>
struct SweepsCall {
  const SweepSizes& p;
  const Tensor& values;
  const OnDevice device;
  const int64_t nk, a_step;
  const cuda::Coefficients<T> coefficients;

  SweepsCall(const SweepSizes& p_, int64_t nnz, const Tensor& values_, const Tensor& scale,
             const std::optional<Tensor>& momentum)
      : p(p_),
        values(values_),
        device(values_),
        nk(p_.nk()),
        a_step(p_.bv == 1 ? 0 : nnz),
        coefficients{data<T>(scale),
                     p_.momentum ? data<T>(momentum) : nullptr,
                     p_.bs == 1 ? 0 : p_.scales * p_.n,
                     p_.scales == 1 ? 0 : p_.n,
                     p_.bm == 1 ? 0 : p_.momenta,
                     p_.momenta == 1 ? 0 : 1} {}

  Tensor numbers(int64_t count) const { return new_empty(values, Size{std::max<int64_t>(count, 0)}); }
  Tensor zeros(int64_t count) const { return new_zeros(values, Size{std::max<int64_t>(count, 0)}); }
  cuda::RowPass<T, I> matrix(const DeviceStructure& S) const {
    cuda::RowPass<T, I> A{};
    A.rows = S.schedule<I>(1);
    A.idx = data<I>(S.idx), A.perm = data<I>(S.perm), A.a = data<T>(values), A.a_step = a_step;
    A.k = p.k, A.batch = p.batch;
    A.entries = cuda::takes_packs(A.idx) && cuda::takes_packs(A.perm) && cuda::takes_packs(A.a, a_step);
    return A;
  }
  int64_t mean(const DeviceStructure& S) const { return S.nnz() / std::max<int64_t>(p.n, 1); }
  bool packs(std::initializer_list<const T*> all) const {
    bool yes = p.k > 1 && p.k % (16 / sizeof(T)) == 0;
    for (const T* v : all) yes = yes && cuda::takes_packs(v);
    return yes;
  }
  // S x for rows that are too long for a few threads each.
  void multiply(const DeviceStructure& S, const T* x, int64_t x_step, T* y) const {
    spmm_into<T, I>(S, values,
                    {data<T>(values), x, nullptr, y, nullptr, a_step, x_step, 0, p.batch == 1 ? 0 : nk, 0},
                    p.k, p.batch);
  }

  // From one member to the next, for vectors of a batch.
  template <class At>
  int64_t step(const At& at) const {
    return p.batch > 1 ? at(1) - at(0) : 0;
  }

  // Sweeps first <= it < last. `product`: a place for one, if rows are distributed by the merge path.
  void run(const DeviceStructure& S, cuda::Sweeps<T, I> P, int64_t first, int64_t last, T* product,
           bool packs) const;
};

}  // namespace learnsolve
