// Sampled dense-dense product on a pattern.
#include "ops/check.h"

namespace learnsolve {

Tensor csr_sddmm(const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& u_,
                 const Tensor& v_, bool sum_batch) {
  const char* name = "csr_sddmm";
  const Structure S(name, ptr, idx, std::nullopt, blocks);
  const Tensor u = dense(u_), v = dense(v_);
  check_dense(name, "v", v, u);
  check_dense(name, "u", u, u);
  const Dense du(u), dv(v);
  STD_TORCH_CHECK(du.n == S.rows() && du.k == dv.k, name, ": u must have ", S.rows(),
                  " rows and as many columns as v");
  const int64_t batch = broadcast_batch(name, du.batch, dv.batch);
  const bool batched = !sum_batch && (u.dim() == 3 || v.dim() == 3);
  const std::vector<int64_t> size =
      batched ? std::vector<int64_t>{batch, S.nnz()} : std::vector<int64_t>{S.nnz()};
  if (batch == 0) return new_zeros(u, size);
  Tensor out = new_empty(u, size);
  dispatch(name, u, S.idx, [&]<class T, class I>() {
    const auto& table = kernels().get<T, I>();
    for (int64_t b = 0; b < batch; ++b) {
      const T* ub = data<T>(u) + (du.batch == 1 ? 0 : b * du.n * du.k);
      const T* vb = data<T>(v) + (dv.batch == 1 ? 0 : b * dv.n * dv.k);
      T* ob = mutable_data<T>(out) + (sum_batch ? 0 : b * S.nnz());
      parallel_blocks<I>(S, du.k, [&](int64_t b0, int64_t b1) {
        table.sddmm(data<I>(S.ptr), data<I>(S.idx), S.row_blocks<I>(), b0, b1, ub, vb, du.k, ob,
                    sum_batch && b > 0);
      });
    }
  });
  return out;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) { m.impl("csr_sddmm", TORCH_BOX(&learnsolve::csr_sddmm)); }
