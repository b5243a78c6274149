// A structure on a CUDA device, and a pass over its rows (kernels/row_pass.cuh) for tensors.
#pragma once

#include "kernels/row_pass_launch.cuh"
#include "ops/batch_sum.cuh"
#include "ops/structure.h"

namespace learnsolve {

// `arrays` are the tensors of the structure, or a list of them.
struct DeviceStructure : SparseStructure {
  template <class... Arrays>
  DeviceStructure(const char* name, const Tensor& values, const Arrays&... arrays)
      : SparseStructure(name, arrays...) {
    check_device(name, values, {&idx});
    STD_TORCH_CHECK(blocks.dim() == 2 && blocks.size(1) == 2 && blocks.size(0) >= 1 &&
                        (blocks.size(0) - 1) * cuda::kPiece <= nnz(),
                    name,
                    ": blocks must be the schedule of these rows on a CUDA device, (further pieces + 1, 2)");
  }

  template <class I>
  cuda::Schedule<I> schedule(int64_t = 1) const {
    return {data<I>(ptr), data<I>(blocks), rows(), nnz(), blocks.size(0) - 1};
  }
};

// Operands of a pass; those that it has no use for are null.
template <class T>
struct PassOperands {
  const T* a;
  const T* x;
  const T* u;
  T* y;
  T* d;
  int64_t a_step, x_step, u_step, y_step, d_step;
};

template <bool Sum, bool Dot, class T, class I>
void row_pass(const DeviceStructure& S, const Tensor& like, const PassOperands<T>& o, int64_t k,
              int64_t batch) {
  if (S.rows() == 0 || k == 0 || batch == 0) return;
  if (!Sum && S.nnz() == 0) return;
  const OnDevice device(like);
  const bool y_adds = Sum && o.y_step == 0, d_adds = Dot && o.d_step == 0;
  const cuda::Groups groups(batch, (y_adds ? S.rows() * k : 0) + (d_adds ? S.nnz() : 0));
  const BatchSum<T> y(like, o.y, Sum ? o.y_step : 1, S.rows() * k, groups);
  const BatchSum<T> d(like, o.d, Dot ? o.d_step : 1, S.nnz(), groups);
  const cuda::Schedule<I> rows = S.schedule<I>();
  const int64_t step = rows.further * k;
  std::optional<Tensor> further;
  if (Sum && step > 0) further = new_empty(like, Size{(y_adds ? groups.count : batch) * step});
  constexpr int64_t pack = 16 / sizeof(T);
  const auto all = [](auto... p) { return (cuda::takes_packs(p) && ...); };
  const cuda::RowPass<T, I> P{rows,
                              data<I>(S.idx),
                              data<I>(S.perm),
                              o.a,
                              o.x,
                              o.u,
                              y.result,
                              d.result,
                              {further ? mutable_data<T>(*further) : nullptr, step, y.result.adds},
                              o.a_step,
                              o.x_step,
                              o.u_step,
                              k,
                              batch,
                              groups,
                              k > 1 && k % pack == 0 && all(o.x, o.u, o.y),
                              all(data<I>(S.idx), data<I>(S.perm)) && cuda::takes_packs(o.a, o.a_step)};
  STD_CUDA_CHECK((cuda::launch_row_pass<Sum, Dot>(P, device.stream)));
  y.finish(device);
  d.finish(device);
}

}  // namespace learnsolve
