// Sampled dense-dense product on a pattern.
#include "ops/check.h"
#include "ops/spmm.h"

namespace learnsolve {

Tensor csr_sddmm(const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& u, const Tensor& v,
                 bool sum_batch, int64_t conjugate) {
  const Structure S("csr_sddmm", ptr, idx, std::nullopt, blocks);
  const Sddmm o(S, u, v, sum_batch);
  S.check_columns(o.v_rows);
  STD_TORCH_CHECK(0 <= conjugate && conjugate <= 2, S.name, ": conjugate must be 0, 1 or 2, got ", conjugate);
  if (o.batch == 0) return new_zeros(u, o.size);
  Tensor out = new_empty(u, o.size);
  const int64_t parts = is_complex(u) ? 2 : 1;
  dispatch<true>(S.name, u, S.idx, [&]<class T, class I>() {
    const auto& table = kernels().get<T, I>();
    const I *ptr = data<I>(S.ptr), *idx = data<I>(S.idx);
    const RowBlocks<I> row_blocks = S.row_blocks<I>();
    for (int64_t b = 0; b < o.batch; ++b) {
      const T *ub = data<T>(o.u) + b * o.u_step * parts, *vb = data<T>(o.v) + b * o.v_step * parts;
      T* to = mutable_data<T>(out) + b * o.out_step * parts;
      const bool add = sum_batch && b > 0;
      parallel_blocks<I>(S, o.k * parts, [&](int64_t b0, int64_t b1) {
        if (parts == 1) return table.sddmm(ptr, idx, row_blocks, b0, b1, ub, vb, o.k, to, add);
        table.complex_sddmm(ptr, idx, row_blocks, b0, b1, ub, vb, o.k, to, add, conjugate);
      });
    }
  });
  return out;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) { m.impl("csr_sddmm", TORCH_BOX(&learnsolve::csr_sddmm)); }
