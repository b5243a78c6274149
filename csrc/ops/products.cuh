// A structure on a CUDA device, and a pass over its rows (kernels/products.cuh) for tensors.
#pragma once

#include "kernels/launch.cuh"
#include "kernels/products.cuh"
#include "ops/device.cuh"
#include "ops/tensors.h"

namespace learnsolve {

// `arrays` are the tensors of the structure, or a list of them.
struct DeviceStructure : SparseStructure {
  template <class... Arrays>
  DeviceStructure(const char* name, const Tensor& values, const Arrays&... arrays)
      : SparseStructure(name, arrays...) {
    check_device(name, values, {&idx});
    STD_TORCH_CHECK(
        blocks.dim() == 2 && blocks.size(1) == 2 && further() >= 0 && further() * cuda::kPiece <= nnz(), name,
        ": blocks must be the schedule of these rows on a CUDA device, (further pieces + tiles, 2)");
  }
  // Of the table: those of tiles, and with their end and the chunks of rows.
  int64_t tiles() const { return cuda::Chunks(rows()).count + nnz() / cuda::kTile; }
  int64_t lines_of_tiles() const { return tiles() + 1 + cuda::Chunks(rows()).count; }
  int64_t further() const { return blocks.size(0) - lines_of_tiles(); }
  template <class I>
  cuda::Tiles<I> tile_table() const {
    return {data<I>(ptr), data<I>(blocks), tiles()};
  }
  template <class I>
  cuda::Schedule<I> schedule() const {
    return {data<I>(ptr), data<I>(blocks) + 2 * lines_of_tiles(), rows(), nnz(), further(), tile_table<I>()};
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
  T* w = nullptr;  // of one column: u_i a_p, for all members
};

template <bool Sum, bool Dot, class T, class I>
void row_pass(const DeviceStructure& S, const Tensor& like, const PassOperands<T>& o, int64_t k,
              int64_t batch) {
  if (S.rows() == 0 || k == 0 || batch == 0 || (!Sum && S.nnz() == 0)) return;
  const OnDevice device(like);
  const int64_t y_size = S.rows() * k, further = S.further();
  const int64_t added = (Sum && o.y_step == 0 ? y_size : 0) + (Dot && o.d_step == 0 ? S.nnz() : 0);
  const cuda::Groups groups(batch, added);
  const BatchSum<T> y(like, o.y, Sum ? o.y_step : 1, y_size, groups);
  const BatchSum<T> d(like, o.d, Dot ? o.d_step : 1, S.nnz(), groups);
  std::optional<Tensor> sums;
  cuda::RowPass<T, I> P{};
  P.rows = S.schedule<I>();
  P.idx = Sum && !o.a ? data<I>(S.perm) : data<I>(S.idx);  // without a: of numbers of entries, the sums
  P.perm = data<I>(S.perm);
  P.a = o.a, P.x = o.x, P.u = o.u, P.y = y.result, P.d = d.result, P.w = o.w;
  P.a_step = o.a_step, P.x_step = o.x_step, P.u_step = o.u_step;
  P.k = k, P.groups = groups;
  P.packs =
      k % (16 / sizeof(T)) == 0 && cuda::takes_packs(o.x) && cuda::takes_packs(o.u) && cuda::takes_packs(o.y);
  if (Sum && further > 0) {
    const int64_t size = k > 1 ? further * k : S.tiles();
    sums = new_empty(like, Size{y.result.adds ? groups.count : batch, size});
    P.further = {mutable_data<T>(*sums), size, y.result.adds};
  }
  STD_CUDA_CHECK((cuda::launch_row_pass<Sum, Dot>(P, device.stream)));
  y.finish(device);
  d.finish(device);
}

// The products of csr_spmm and csr_sddmm on raw pointers (spmm.cu, sddmm.cu), for loops and for both
// gradients of a product with one column: their kernels are compiled once.

// y = S x for every member of a batch.
template <class T, class I>
void spmm_into(const DeviceStructure& S, const Tensor& like, const PassOperands<T>& operands, int64_t k,
               int64_t batch);

// d_p = <u_i, x_j> for the entries of S.
template <class T, class I>
void sddmm_into(const DeviceStructure& S, const Tensor& like, const PassOperands<T>& operands, int64_t k,
                int64_t batch);

}  // namespace learnsolve
