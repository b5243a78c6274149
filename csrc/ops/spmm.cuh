// The products of csr_spmm and csr_sddmm on raw pointers (spmm.cu, sddmm.cu), for loops and for both
// gradients of a product with one column: their kernels are compiled once.
#pragma once

#include "ops/row_pass.cuh"

namespace learnsolve {

// y = S x for every member of a batch.
template <class T, class I>
void spmm_into(const DeviceStructure& S, const Tensor& like, const PassOperands<T>& operands, int64_t k,
               int64_t batch);

// d_p = <u_i, x_j> for the entries of S.
template <class T, class I>
void sddmm_into(const DeviceStructure& S, const Tensor& like, const PassOperands<T>& operands, int64_t k,
                int64_t batch);

}  // namespace learnsolve
