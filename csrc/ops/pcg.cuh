// What conjugate gradients and their adjoint share on a CUDA device: flags, and the factor of a
// preconditioner.
#pragma once

#include "kernels/pcg.cuh"
#include "ops/loops.cuh"
#include "ops/pcg.h"
#include "ops/triangular.cuh"

namespace learnsolve {

// `count` integers for each member of a batch.
struct Flags {
  Tensor tensor;
  int64_t batch;
  Flags(const Tensor& like, int64_t count, int64_t batch_)
      : tensor(torch::stable::new_zeros(like, Size{count, batch_}, ScalarType::Int)), batch(batch_) {}
  int* operator[](int64_t i) const { return static_cast<int*>(tensor.data_ptr()) + i * batch; }
  unsigned* counter(int64_t i) const { return reinterpret_cast<unsigned*>((*this)[i]); }
};

// On a device triangles are plans of ops/triangular.cuh.
using DeviceFactor = FactorStructures<DeviceStructure, DeviceTriangle>;

// A factor with values, and room for its solves.
template <class T, class I>
struct AppliedFactor {
  const OnDevice& device;
  const DeviceFactor& of;
  const PcgSizes& p;
  std::optional<LoopMatrix<T, I>> rows = matrix(of.rows), columns = matrix(of.columns);
  std::optional<Tensor> room_below = room(of.lower), room_above = room(of.upper);

  // y = L^-1 x or L^-T x, for all members
  void solve(bool below, const In<T>& x, const Out<T>& y) const {
    const DeviceTriangle& S = below ? *of.lower : *of.upper;
    S.template solve<T, I>(device, data<T>(p.m), p.m_step, x.p, x.step, y.p, p.batch, p.k,
                           below ? *room_below : *room_above);
  }

  std::optional<LoopMatrix<T, I>> matrix(const std::optional<DeviceStructure>& S) const {
    if (!S) return std::nullopt;
    return LoopMatrix<T, I>(device, *S, *p.m, p.m_step);
  }
  std::optional<Tensor> room(const std::optional<DeviceTriangle>& S) const {
    if (!S) return std::nullopt;
    return S->scratch(*p.m, p.batch, p.k);
  }
};

}  // namespace learnsolve
