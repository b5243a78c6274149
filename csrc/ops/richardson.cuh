// What Richardson sweeps and their adjoint share on a CUDA device: the operands of a call, and a sweep, whose
// kernels are compiled once (richardson.cu).
#pragma once

#include "ops/chunk_launch.cuh"
#include "ops/sweep_sizes.h"

namespace learnsolve {

template <class T, class I>
struct DeviceSweeps {
  const OnDevice& device;
  const SweepSizes& p;
  const LoopMatrix<T, I> A;
  const ChunkLaunch<T> launch;
  const cuda::Chunks rows;
  const T *scales, *momenta;
  const In<T> b;

  DeviceSweeps(const OnDevice& device_, const SweepSizes& p_, const DeviceStructure& S, const Tensor& values,
               const Tensor& scale, const std::optional<Tensor>& momentum, const Tensor& b_)
      : device(device_),
        p(p_),
        A(device_, S, values, p_.bv == 1 ? 0 : S.nnz()),
        launch{device_, p_.k, p_.batch},
        rows(p_.n),
        scales(data<T>(scale)),
        momenta(data<T>(momentum)),
        b{data<T>(b_), p_.nk()} {}

  In<T> scale(int64_t it) const { return {scales + p.scale_at(0, it), p.scale_at(1, 0)}; }
  In<T> momentum(int64_t it) const {
    return {momenta ? momenta + p.momentum_at(0, it) : nullptr, p.momentum_at(1, 0)};
  }
  Tensor numbers(int64_t count) const { return new_empty(A.values, Size{count}); }
  Tensor zeros(int64_t count) const { return new_zeros(A.values, Size{count}); }

  // Sweep `it`, from x and the iterate before it (or none) to next. squares: partial sums; or null.
  void sweep(int64_t it, const In<T>& x, const In<T>& old, const Out<T>& next, T* squares) const;
};

}  // namespace learnsolve
