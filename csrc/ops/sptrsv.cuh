// The solve of csr_sptrsv on raw pointers, for loops.
#pragma once

#include "ops/triangular.cuh"

namespace learnsolve {

// DeviceTriangle::solve
template <class T, class I>
void triangular_into(const DeviceTriangle& S, const OnDevice& device, const T* values, int64_t values_step,
                     const T* b, int64_t b_step, T* x, int64_t batch, int64_t k, const Tensor& room) {
  S.template solve<T, I>(device, values, values_step, b, b_step, x, batch, k, room);
}

}  // namespace learnsolve
