// csr_spmm for CUDA tensors.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include "kernels/spmm.cuh"
#include "ops/shapes.h"

namespace learnsolve {

Tensor csr_spmm_cuda(const Tensor& ptr_, const Tensor& idx_, const std::optional<Tensor>& perm_,
                     const Tensor& blocks, const Tensor& values_, const Tensor& x_, bool sum_batch) {
  const char* name = "csr_spmm";
  const Tensor ptr = dense(ptr_), idx = dense(idx_), values = dense(values_), x = dense(x_);
  const std::optional<Tensor> perm = perm_ ? std::optional<Tensor>(dense(*perm_)) : std::nullopt;
  check_indices(name, ptr, idx, perm,
                blocks);  // the blocks are for the CPU: rows are dealt to sub-warps here
  const int64_t m = ptr.numel() - 1, nnz = idx.numel();
  check_values(name, values, nnz);
  check_dense(name, "x", x, values);
  const int64_t bv = values.dim() == 2 ? values.size(0) : 1;
  const Dense d(x);
  const int64_t bx = d.batch, n = d.n, k = d.k, batch = broadcast_batch(name, bv, bx);
  const std::vector<int64_t> size = product_size(values, x, batch, m, k, sum_batch);
  Tensor y = torch::stable::new_empty(values, size);
  if (batch == 0) {
    torch::stable::zero_(y);
    return y;
  }
  if (m == 0 || k == 0) return y;
  const torch::stable::accelerator::DeviceGuard guard(values.get_device_index());
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(values.get_device_index(), &stream));
  dispatch(name, values, idx, [&]<class T, class I>() {
    cuda::SpmmArguments<T, I> a{static_cast<const I*>(ptr.data_ptr()),
                                static_cast<const I*>(idx.data_ptr()),
                                perm ? static_cast<const I*>(perm->data_ptr()) : nullptr,
                                static_cast<const T*>(values.data_ptr()),
                                static_cast<const T*>(x.data_ptr()),
                                static_cast<T*>(y.data_ptr()),
                                m,
                                k,
                                batch,
                                bv == 1 ? 0 : nnz,
                                bx == 1 ? 0 : n * k,
                                sum_batch};
    STD_CUDA_CHECK(cuda::launch_spmm(a, nnz, static_cast<cudaStream_t>(stream)));
  });
  return y;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CUDA, m) { m.impl("csr_spmm", TORCH_BOX(&learnsolve::csr_spmm_cuda)); }
