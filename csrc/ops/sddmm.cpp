// Sampled dense-dense product on a pattern.
#include "ops/check.h"
#include "ops/spmm.h"

namespace learnsolve {

Tensor csr_sddmm(const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& u, const Tensor& v,
                 bool sum_batch) {
  const Structure S("csr_sddmm", ptr, idx, std::nullopt, blocks);
  const Sddmm o(S, u, v, sum_batch);
  S.check_columns(o.v_rows);
  if (o.batch == 0) return new_zeros(u, o.size);
  Tensor out = new_empty(u, o.size);
  const int64_t parts = is_complex(u) ? 2 : 1;
  dispatch<true>(S.name, u, S.idx, [&]<class T, class I>() {
    const auto& table = kernels().get<T, I>();
    const auto kernel = parts == 2 ? table.complex_sddmm : table.sddmm;
    for (int64_t b = 0; b < o.batch; ++b)
      parallel_blocks<I>(S, o.k * parts, [&](int64_t b0, int64_t b1) {
        kernel(data<I>(S.ptr), data<I>(S.idx), S.row_blocks<I>(), b0, b1,
               data<T>(o.u) + b * o.u_step * parts, data<T>(o.v) + b * o.v_step * parts, o.k,
               mutable_data<T>(out) + b * o.out_step * parts, sum_batch && b > 0);
      });
  });
  return out;
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) { m.impl("csr_sddmm", TORCH_BOX(&learnsolve::csr_sddmm)); }
