// What conjugate gradients and their adjoint share on a CUDA device: launches over chunks of rows, and the
// factor of a preconditioner.
#pragma once

#include "kernels/pcg.cuh"
#include "ops/pcg_factor.h"
#include "ops/spmm.cuh"
#include "ops/sptrsv.cuh"

namespace learnsolve {

inline Tensor new_int(const Tensor& like, const std::vector<int64_t>& size) {
  return torch::stable::new_empty(like, size, ScalarType::Int);
}

// `count` blocks of `size` numbers, each `step` numbers after the one before.
template <class T>
void copy_blocks(const OnDevice& device, T* to, int64_t to_step, const T* from, int64_t from_step,
                 int64_t size, int64_t count) {
  if (size == 0 || count == 0) return;
  // The largest distance between rows that a two-dimensional copy allows.
  constexpr int64_t kPitch = 0x7fffffff / static_cast<int64_t>(sizeof(T));
  if (to_step == size && from_step == size) size *= count, count = 1;
  if (count > 1 && std::max(to_step, from_step) <= kPitch) {
    STD_CUDA_CHECK(cudaMemcpy2DAsync(to, to_step * sizeof(T), from, from_step * sizeof(T), size * sizeof(T),
                                     count, cudaMemcpyDeviceToDevice, device.stream));
    return;
  }
  for (int64_t b = 0; b < count; ++b)
    STD_CUDA_CHECK(cudaMemcpyAsync(to + b * to_step, from + b * from_step, size * sizeof(T),
                                   cudaMemcpyDeviceToDevice, device.stream));
}

// From this mean number of entries a row on, product and sum are two passes: spmm then distributes the rows,
// and what the sum reads again is little beside the matrix.
constexpr int64_t kManyEntries = 32;

inline bool sums_in_product(const DeviceStructure& S) {
  return S.blocks.size(0) == 1 && S.nnz() < kManyEntries * S.rows();
}

// Launches of passes and products over blocks of vectors with k columns, for all members of a batch.
template <class T>
struct ChunkLaunch {
  const OnDevice& device;
  int64_t k, batch;
  bool packs;

  static constexpr int kV = cuda::kPack<T>;

  // Kernels are instances for one column, columns by packs, and columns one by one.
  template <class F>
  void by_columns(const F& f) const {
    if (k == 1)
      f.template operator()<true, kV>();
    else if (k % kV == 0)
      f.template operator()<false, kV>();
    else
      f.template operator()<false, 1>();
  }
  template <class Make>
  void pass(const Make& make, const cuda::Chunks& chunks, const cuda::Partials<T>& partials) const {
    const unsigned grid = cuda::blocks_for(chunks.count * batch);
    by_columns([&]<bool One, int V>() {
      LS_LAUNCH(grid, cuda::kThreads, device.stream, (make, chunks, batch, k, packs, partials),
                cuda::chunk_pass_kernel<One, V, T, Make>);
    });
    STD_CUDA_CHECK(cudaGetLastError());
  }
  // The product that `make` describes, by the rows of S; its values are in the order of the rows. `made` is
  // where the results may go in between.
  template <class I, class Make>
  void product(const DeviceStructure& S, const Tensor& like, const Make& make, const cuda::Vectors<T>& made,
               const cuda::Chunks& chunks, const cuda::Partials<T>& partials) const {
    if (!sums_in_product(S)) {
      spmm_into<T, I>(S, like,
                      {make.rows.values, make.x.p, nullptr, made.p, nullptr, make.values_step, make.x.step, 0,
                       made.step, 0},
                      k, batch);
      return pass(cuda::MakeAfter<T, Make>{make, {made.p, made.step}}, chunks, partials);
    }
    const unsigned grid = cuda::blocks_for(chunks.count * batch);
    const auto launch = [&]<int Lanes, int V>() {
      LS_LAUNCH(grid, cuda::kThreads, device.stream, (make, chunks, batch, k, packs, partials),
                cuda::chunk_product_kernel<Lanes, V, T, Make>);
    };
    if (k > 1)
      k % kV == 0 ? launch.template operator()<0, kV>() : launch.template operator()<0, 1>();
    else if (S.nnz() < 6 * S.rows())
      launch.template operator()<2, 1>();
    else
      launch.template operator()<8, 1>();
    STD_CUDA_CHECK(cudaGetLastError());
  }
};

// values[perm], for values (entries) or (B, entries).
template <class T, class I>
Tensor reordered(const OnDevice& device, const Tensor& perm, const Tensor& values) {
  Tensor out = new_empty(values, sizes_of(values));
  if (out.numel() == 0) return out;
  const int64_t count = perm.numel(), batch = out.numel() / count;
  const dim3 grid(cuda::blocks_for(count, cuda::kThreads), cuda::blocks_aside(batch));
  LS_LAUNCH(grid, cuda::kThreads, device.stream,
            (data<I>(perm), data<T>(values), count, batch, mutable_data<T>(out)), cuda::reorder_kernel<T, I>);
  STD_CUDA_CHECK(cudaGetLastError());
  return out;
}

// On a device triangles are plans of ops/triangular.cuh. L^T's values are read in its own order.
struct DeviceFactor : FactorStructures<DeviceStructure, DeviceTriangle> {
  DeviceFactor(const char* name, const PcgSizes& p, const std::vector<Tensor>& M, const Tensor& idx,
               const Tensor& values)
      : FactorStructures(name, p, M, idx, values) {
    if (columns) perm.swap(columns->perm);
  }
  std::optional<Tensor> perm;
};

// A factor with values, and room for its solves.
template <class T, class I>
class AppliedDeviceFactor {
 public:
  AppliedDeviceFactor(const OnDevice& device_, const DeviceFactor& factor, const PcgSizes& p)
      : of(factor), device(device_), values(data<T>(p.m)), step(p.m_step), k(p.k), batch(p.batch) {
    if (of.columns) transposed = reordered<T, I>(device, of.perm.value_or(of.columns->idx), *p.m);
    if (of.lower) {
      room_below = of.lower->scratch(*p.m, batch, k);
      room_above = of.upper->scratch(*p.m, batch, k);
    }
  }
  cuda::RowsOf<T, I> rows() const { return {data<I>(of.rows->ptr), data<I>(of.rows->idx), values}; }
  cuda::RowsOf<T, I> columns() const {
    return {data<I>(of.columns->ptr), data<I>(of.columns->idx), data<T>(*transposed)};
  }
  // y = L^-1 x or L^-T x, for all members
  void solve(bool below, const T* x, int64_t x_step, T* y) const {
    const DeviceTriangle& S = below ? *of.lower : *of.upper;
    triangular_into<T, I>(S, device, values, step, x, x_step, y, batch, k, below ? *room_below : *room_above);
  }

 private:
  const DeviceFactor& of;
  const OnDevice& device;
  const T* values;
  int64_t step, k, batch;
  std::optional<Tensor> transposed, room_below, room_above;
};

}  // namespace learnsolve
