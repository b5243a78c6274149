// csr_spmm for CUDA tensors.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "kernels/spmm.cuh"

namespace learnsolve {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

namespace {

Tensor dense(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

}  // namespace

Tensor csr_spmm_cuda(const Tensor& ptr_, const Tensor& idx_, const std::optional<Tensor>& perm_,
                     const Tensor& blocks, const Tensor& values_, const Tensor& x_, bool sum_batch) {
  (void)blocks;  // the deal of rows to threads is by sub-warps here
  const Tensor ptr = dense(ptr_), idx = dense(idx_), values = dense(values_), x = dense(x_);
  const std::optional<Tensor> perm = perm_ ? std::optional<Tensor>(dense(*perm_)) : std::nullopt;
  const int64_t m = ptr.numel() - 1, nnz = idx.numel();
  STD_TORCH_CHECK(values.size(values.dim() - 1) == nnz, "csr_spmm: values must hold nnz = ", nnz);
  STD_TORCH_CHECK(values.scalar_type() == x.scalar_type(), "csr_spmm: x and values must have one dtype");
  const int64_t bv = values.dim() == 2 ? values.size(0) : 1, bx = x.dim() == 3 ? x.size(0) : 1;
  STD_TORCH_CHECK(bv == bx || bv == 1 || bx == 1, "csr_spmm: batch sizes ", bv, " and ", bx, " do not match");
  const int64_t batch = bv == 1 ? bx : bv, n = x.dim() == 3 ? x.size(1) : x.size(0),
                k = x.dim() == 1 ? 1 : x.size(x.dim() - 1);
  std::vector<int64_t> size;
  if (x.dim() == 1 && values.dim() == 1)
    size = {m};
  else if (sum_batch || (x.dim() < 3 && values.dim() == 1))
    size = {m, k};
  else
    size = {batch, m, k};
  Tensor y = torch::stable::new_empty(values, size);
  if (batch == 0) {
    torch::stable::zero_(y);
    return y;
  }
  if (m == 0 || k == 0) return y;
  const torch::stable::accelerator::DeviceGuard guard(values.get_device_index());
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(values.get_device_index(), &stream));
  const auto run = [&]<class T, class I>() {
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
  };
  const bool f64 = values.scalar_type() == ScalarType::Double, i32 = idx.scalar_type() == ScalarType::Int;
  STD_TORCH_CHECK(f64 || values.scalar_type() == ScalarType::Float,
                  "csr_spmm: values must be float32 or float64");
  if (f64)
    i32 ? run.template operator()<double, int32_t>() : run.template operator()<double, int64_t>();
  else
    i32 ? run.template operator()<float, int32_t>() : run.template operator()<float, int64_t>();
  return y;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CUDA, m) { m.impl("csr_spmm", TORCH_BOX(&learnsolve::csr_spmm_cuda)); }
