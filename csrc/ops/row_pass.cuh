// A structure on a CUDA device, and a pass over its rows (kernels/row_pass.cuh) for tensors.
#pragma once

#include "kernels/row_pass_launch.cuh"
#include "ops/device.cuh"
#include "ops/structure.h"

namespace learnsolve {

// `arrays` are the tensors of the structure, or a list of them.
struct DeviceStructure : SparseStructure {
  template <class... Arrays>
  DeviceStructure(const char* name, const Tensor& values, const Arrays&... arrays)
      : SparseStructure(name, arrays...) {
    check_device(name, values, {&idx});
    const int64_t items = rows() + nnz();
    STD_TORCH_CHECK(
        blocks.dim() == 2 && blocks.size(1) == 2 &&
            (blocks.size(0) == 1 || blocks.size(0) == (items + cuda::kStretch - 1) / cuda::kStretch + 1),
        name, ": blocks must be the schedule of these rows on a CUDA device, (1 or stretches + 1, 2)");
  }

  // For k columns.
  template <class I>
  cuda::Schedule<I> schedule(int64_t k) const {
    const bool table = blocks.size(0) > 1;
    return {data<I>(ptr),   table ? data<I>(blocks) : nullptr, rows(), nnz(), blocks.size(0) - 1,
            cuda::kStretch, k == 1 ? 1 : cuda::kParts};
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
  cuda::RowPass<T, I> P{
      S.schedule<I>(k), data<I>(S.idx), data<I>(S.perm), o.a,      o.x,      o.u, o.y,   o.d,   nullptr,
      o.a_step,         o.x_step,       o.u_step,        o.y_step, o.d_step, k,   batch, false, false};
  constexpr int64_t pack = 16 / sizeof(T);
  using cuda::takes_packs;
  P.packs = k > 1 && k % pack == 0 && takes_packs(o.x) && takes_packs(o.u) && takes_packs(o.y);
  P.entries = takes_packs(P.idx) && takes_packs(P.perm) && takes_packs(o.a, o.a_step);
  std::optional<Tensor> carry;
  if (Sum && P.rows.table) {
    const std::vector<int64_t> size{(o.y_step ? batch : 1) * P.rows.pieces() * k};
    carry = new_empty(like, size);
    P.carry = mutable_data<T>(*carry);
  }
  STD_CUDA_CHECK((cuda::launch_row_pass<Sum, Dot>(P, device.stream)));
}

}  // namespace learnsolve
