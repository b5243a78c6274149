// What Richardson sweeps and their adjoint share on a CUDA device: the operands of a call, and a sweep, whose
// kernels are compiled once (sweeps.cu).
#pragma once

#include "ops/loops.cuh"
#include "ops/sweeps.h"

namespace learnsolve {

template <class T, class I>
struct DeviceSweeps {
  const OnDevice& device;
  const SweepSizes& p;
  const DeviceStructure& S;
  const Tensor &values, &scales;
  const std::optional<Tensor>& momenta;
  const Tensor& right;

  const LoopMatrix<T, I> A{device, S, values, p.bv == 1 ? 0 : S.nnz()};
  const ChunkLaunch<T> launch{device, p.k, p.batch};
  const cuda::Chunks rows{p.n};
  const In<T> b{data<T>(right), p.nk()};

  In<T> scale(int64_t it) const { return {data<T>(scales) + p.scale_at(0, it), p.scale_at(1, 0)}; }
  In<T> momentum(int64_t it) const {
    return {momenta ? data<T>(*momenta) + p.momentum_at(0, it) : nullptr, p.momentum_at(1, 0)};
  }
  Tensor numbers(int64_t count) const { return new_empty(values, Size{count}); }
  Tensor zeros(int64_t count) const { return new_zeros(values, Size{count}); }

  // Sweep `it`, from x and the iterate before it (or none) to next. squares: partial sums; or null.
  void sweep(int64_t it, const In<T>& x, const In<T>& old, const Out<T>& next, T* squares) const;
};

}  // namespace learnsolve
