// Scaled Richardson sweeps with momentum (weighted Jacobi, heavy ball, Chebyshev), many in one call.
#include "ops/richardson.h"

namespace learnsolve {

std::tuple<Tensor, Tensor, Tensor, Tensor> csr_richardson(const std::vector<Tensor>& A, const Tensor& values_,
                                                          const Tensor& scale_,
                                                          const std::optional<Tensor>& momentum_,
                                                          const Tensor& b_, const Tensor& x0_,
                                                          const std::optional<Tensor>& before_,
                                                          int64_t iterations, int64_t stride) {
  const char* name = "csr_richardson";
  const Structure S(name, A);
  const Tensor values = dense(values_), scale = dense(scale_), b = dense(b_), x0 = dense(x0_);
  const std::optional<Tensor> momentum = dense(momentum_), before = dense(before_);
  const SweepSizes p(name, S, values, scale, momentum, b, iterations);
  const SweepResults out(name, p, b, x0, before, stride);
  check_device(name, values,
               {&S.idx, &scale, &b, &x0, momentum ? &*momentum : &values, before ? &*before : &values});
  S.check_columns(p.n);
  const int64_t kept = p.kept(stride), slots = p.slots(stride);
  Tensor x = new_empty(b, out.x), norms = new_empty(b, out.norms), iterates = new_empty(b, out.iterates),
         last = new_empty(b, out.last);
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    const int64_t nk = p.nk();
    const auto copy = [&](const T* from, T* to) {
      if (nk > 0) std::memcpy(to, from, nk * sizeof(T));
    };
    std::vector<T> scratch[3];
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const T* values_at = data<T>(values) + (p.bv == 1 ? 0 : batch * S.nnz());
      Sweeper<T, I> sweep{S, p.k, S.view<T, I>(values_at), data<T>(b) + batch * nk, {}};
      T* const x_at = mutable_data<T>(x) + batch * nk;
      T* const last_at = out.gives_last ? mutable_data<T>(last) + batch * nk : nullptr;
      T* const slots_at = mutable_data<T>(iterates) + batch * slots * nk;
      // Where iterate i > 0 is written.
      const auto place = [&](int64_t i) {
        if (i == iterations) return x_at;
        if (stride == 1) return slots_at + i * nk;
        if (stride > 1 && i % stride == 0)
          return slots_at + i / stride * (p.momentum ? 2 : 1) * nk + (p.momentum ? nk : 0);
        if (p.pairs(stride) && (i + 1) % stride == 0 && (i + 1) / stride < kept)
          return slots_at + 2 * ((i + 1) / stride) * nk;
        if (out.gives_last && i + 1 == iterations) return last_at;
        std::vector<T>& buffer = scratch[i % 3];
        buffer.resize(nk);
        return buffer.data();
      };
      const T* current = data<T>(x0) + batch * nk;
      const T* old = before && p.momentum ? data<T>(*before) + batch * nk : nullptr;
      if (kept > 0) copy(current, slots_at + (p.pairs(stride) ? nk : 0));
      if (kept > 0 && p.pairs(stride)) copy(old ? old : current, slots_at);
      if (iterations == 0) copy(current, x_at);
      if (iterations == 0 && out.gives_last) copy(old ? old : current, last_at);
      if (iterations == 1 && out.gives_last) copy(current, last_at);
      for (int64_t it = 0; it < iterations; ++it) {
        T* next = place(it + 1);
        sweep(current, old, data<T>(scale) + p.scale_at(batch, it),
              p.momentum ? data<T>(*momentum)[p.momentum_at(batch, it)] : T(0), next,
              mutable_data<T>(norms) + (batch * iterations + it) * p.k);
        if (p.momentum) old = current;
        current = next;
      }
    }
  });
  return {x, norms, iterates, last};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_richardson", TORCH_BOX(&learnsolve::csr_richardson));
}
