// What conjugate gradients and their adjoint share on a CUDA device: the judge's launch, and the factor of a
// preconditioner.
#pragma once

#include "kernels/pcg_judge.cuh"
#include "ops/chunk_launch.cuh"
#include "ops/pcg_factor.h"
#include "ops/sptrsv.cuh"

namespace learnsolve {

inline Tensor new_int(const Tensor& like, const Size& size) {
  return torch::stable::new_empty(like, size, ScalarType::Int);
}

// cuda::PcgJudge or cuda::AdjointJudge, for the sums of a pass over `chunks`.
template <class T, class Judge>
void judge_columns(const OnDevice& device, const Judge& judge, int64_t batch, const cuda::Chunks& chunks,
                   const cuda::Partials<T>& partials) {
  LS_LAUNCH(cuda::blocks_for(batch), cuda::kThreads, device.stream, (judge, batch, chunks.count, partials),
            cuda::judge_kernel<T, Judge>);
  STD_CUDA_CHECK(cudaGetLastError());
}

// On a device triangles are plans of ops/triangular.cuh.
using DeviceFactor = FactorStructures<DeviceStructure, DeviceTriangle>;

// A factor with values, and room for its solves.
template <class T, class I>
class AppliedFactor {
 public:
  const DeviceFactor& of;
  std::optional<LoopMatrix<T, I>> rows, columns;

  AppliedFactor(const OnDevice& device_, const DeviceFactor& factor, const PcgSizes& p)
      : of(factor), device(device_), values(data<T>(p.m)), step(p.m_step), k(p.k), batch(p.batch) {
    if (of.rows) rows.emplace(device, *of.rows, *p.m, step);
    if (of.columns) columns.emplace(device, *of.columns, *p.m, step);
    if (of.lower) {
      room_below = of.lower->scratch(*p.m, batch, k);
      room_above = of.upper->scratch(*p.m, batch, k);
    }
  }
  // y = L^-1 x or L^-T x, for all members
  void solve(bool below, const In<T>& x, const Out<T>& y) const {
    const DeviceTriangle& S = below ? *of.lower : *of.upper;
    triangular_into<T, I>(S, device, values, step, x.p, x.step, y.p, batch, k,
                          below ? *room_below : *room_above);
  }

 private:
  const OnDevice& device;
  const T* values;
  int64_t step, k, batch;
  std::optional<Tensor> room_below, room_above;
};

}  // namespace learnsolve
