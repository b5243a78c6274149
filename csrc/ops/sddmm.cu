// csr_sddmm for CUDA tensors.
#include "ops/row_pass.cuh"

namespace learnsolve {

Tensor csr_sddmm_cuda(const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& u_,
                      const Tensor& v_, bool sum_batch) {
  const char* name = "csr_sddmm";
  const Tensor u = dense(u_), v = dense(v_);
  const DeviceStructure S(name, u, ptr, idx, std::nullopt, blocks);
  check_device(name, u, {&v});
  check_dense(name, "v", v, u);
  check_dense(name, "u", u, u);
  const Dense du(u), dv(v);
  STD_TORCH_CHECK(du.n == S.rows() && du.k == dv.k, name, ": u must have ", S.rows(),
                  " rows and as many columns as v");
  const int64_t batch = broadcast_batch(name, du.batch, dv.batch);
  const bool batched = !sum_batch && (u.dim() == 3 || v.dim() == 3);
  const std::vector<int64_t> size =
      batched ? std::vector<int64_t>{batch, S.nnz()} : std::vector<int64_t>{S.nnz()};
  if (batch == 0 || du.k == 0) return new_zeros(u, size);
  Tensor out = new_empty(u, size);
  dispatch(name, u, S.idx, [&]<class T, class I>() {
    row_pass<false, true, T, I>(
        S, u,
        {nullptr, data<T>(v), data<T>(u), nullptr, mutable_data<T>(out), 0, dv.batch == 1 ? 0 : dv.n * dv.k,
         du.batch == 1 ? 0 : du.n * du.k, 0, batched ? S.nnz() : 0},
        du.k, batch);
  });
  return out;
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_sddmm", TORCH_BOX(&learnsolve::csr_sddmm_cuda)); }
