// The product of csr_spmm on raw pointers (spmm.cu), for loops: its kernels are compiled once.
#pragma once

#include "ops/row_pass.cuh"

namespace learnsolve {

// y = S x for every member of a batch.
template <class T, class I>
void spmm_into(const DeviceStructure& S, const Tensor& like, const PassOperands<T>& operands, int64_t k,
               int64_t batch);

}  // namespace learnsolve
