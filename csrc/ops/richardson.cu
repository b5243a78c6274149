// csr_richardson for CUDA tensors: a launch a sweep (kernels/richardson.cuh).
#include "ops/richardson.cuh"

namespace learnsolve {

using namespace cuda;

template <class T, class I>
void SweepsCall<T, I>::run(const DeviceStructure& S, Sweeps<T, I> P, int64_t first, int64_t last, T* product,
                           bool packs) const {
  if (first == last) return;
  with_shape<T>(p.k, packs, product != nullptr, mean(S), [&]<class Shape>() {
    const int64_t items = P.template items<Shape>();
    P.given = product;
    for (int64_t it = first; it < last; ++it) {
      if (product) multiply(S, P.x.at(it, 0), step([&](int64_t b) { return P.x.at(it, b); }), product);
      LS_LAUNCH(blocks_for(items), kThreads, device.stream, (P, it), sweeps_kernel<Shape, T, I>);
      STD_CUDA_CHECK(cudaGetLastError());
    }
  });
}

template struct SweepsCall<float, int32_t>;
template struct SweepsCall<float, int64_t>;
template struct SweepsCall<double, int32_t>;
template struct SweepsCall<double, int64_t>;

// Numbers of partial sums that are kept before they are added up.
constexpr int64_t kPartials = int64_t{1} << 22;

std::tuple<Tensor, Tensor, Tensor, Tensor> csr_richardson_cuda(const std::vector<Tensor>& A,
                                                               const Tensor& values_, const Tensor& scale_,
                                                               const std::optional<Tensor>& momentum_,
                                                               const Tensor& b_, const Tensor& x0_,
                                                               const std::optional<Tensor>& before_,
                                                               int64_t iterations, int64_t stride) {
  const char* name = "csr_richardson";
  const Tensor values = dense(values_), scale = dense(scale_), b = dense(b_), x0 = dense(x0_);
  const std::optional<Tensor> momentum = dense(momentum_), before = dense(before_);
  const DeviceStructure S(name, values, A);
  check_device(name, values, {&scale, &b, &x0, momentum ? &*momentum : &values, before ? &*before : &values});
  const SweepSizes p(name, S, values, scale, momentum, b, iterations);
  const SweepResults out(name, p, b, x0, before, stride);
  const int64_t kept = p.kept(stride), slots = p.slots(stride);
  Tensor x = new_empty(b, out.x), norms = new_empty(b, out.norms), iterates = new_empty(b, out.iterates),
         last = new_empty(b, out.last);
  if (p.batch == 0 || p.k == 0) return {x, norms, iterates, last};
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    const SweepsCall<T, I> call(p, S.nnz(), values, scale, momentum);
    const int64_t nk = p.nk(), all = p.batch * nk;
    const T *from = data<T>(x0), *old = p.momentum && before ? data<T>(*before) : nullptr;
    T *const x_at = mutable_data<T>(x), *const slots_at = mutable_data<T>(iterates);
    T* const last_at = out.gives_last ? mutable_data<T>(last) : nullptr;
    const auto start = [&](const T* v, T* to, int64_t step) {
      copy_members(call.device, v, nk, to, step, nk, p.batch);
    };
    if (kept > 0) start(from, slots_at + (p.pairs(stride) ? nk : 0), slots * nk);
    if (kept > 0 && p.pairs(stride)) start(old ? old : from, slots_at, slots * nk);
    if (iterations == 0) start(from, x_at, nk);
    if (out.gives_last && iterations == 0) start(old ? old : from, last_at, nk);
    if (out.gives_last && iterations == 1) start(from, last_at, nk);
    if (iterations == 0) return;

    const Chunks rows(p.n);
    const int64_t of_sweep = p.batch * rows.count * p.k,
                  together = std::clamp<int64_t>(kPartials / of_sweep, 1, iterations);
    Sweeps<T, I> P{call.matrix(S), nullptr, rows, call.coefficients, {}, data<T>(b), nullptr, 0};
    P.x = {from, old,        x_at, last_at,    slots_at, nullptr, nk,
           nk,   slots * nk, all,  iterations, stride,   kept,    p.momentum};
    const Tensor scratch = call.numbers(stride == 1 ? 0 : std::min(P.x.turns(), iterations - 1) * all);
    const Tensor partials = call.numbers(together * of_sweep);
    const Tensor product = call.numbers(S.blocks.size(0) > 1 ? all : 0);
    P.x.scratch = mutable_data<T>(scratch), P.partials = mutable_data<T>(partials);
    const bool packs = call.packs({P.b, from, old, x_at, last_at, slots_at, P.x.scratch});
    for (int64_t first = 0; first < iterations; first += together) {
      const int64_t end = std::min(first + together, iterations);
      P.partials_from = first;
      call.run(S, P, first, end, S.blocks.size(0) > 1 ? mutable_data<T>(product) : nullptr, packs);
      totals(call.device, data<T>(partials), (end - first) * p.batch, p.batch, rows.count, p.k, true,
             mutable_data<T>(norms) + first * p.k, iterations * p.k);
    }
  });
  return {x, norms, iterates, last};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_richardson", TORCH_BOX(&learnsolve::csr_richardson_cuda)); }
