// csr_richardson for CUDA tensors: a launch a sweep (kernels/sweeps.cuh).
#include "kernels/sweeps.cuh"
#include "ops/sweeps.cuh"

namespace learnsolve {

template <class T, class I>
void DeviceSweeps<T, I>::sweep(int64_t it, const In<T>& x, const In<T>& old, const Out<T>& next,
                               T* squares) const {
  const cuda::RelaxPass<T> end{x, b, scale(it), momenta ? old : In<T>{}, momentum(it), next};
  launch.product(A, x, end, next, rows, cuda::Partials<T>{{squares}});
}

template struct DeviceSweeps<float, int32_t>;
template struct DeviceSweeps<float, int64_t>;
template struct DeviceSweeps<double, int32_t>;
template struct DeviceSweeps<double, int64_t>;

namespace {

// Where a call has its iterates.
template <class T>
struct Iterates {
  In<T> x0, before;  // before: or none
  T *x, *last;       // last: the iterate before x, or null
  T* slots;          // those that are kept
  T* scratch;        // those that are not, in turn
  int64_t nk, batch, iterations, stride, kept, slots_step;
  bool momentum;

  int64_t turns() const { return momentum ? 3 : 2; }

  // Where iterate i > 0 is written.
  Out<T> place(int64_t i) const {
    const auto slot = [&](int64_t at) { return Out<T>{slots + at * nk, slots_step}; };
    if (i == iterations) return {x, nk};
    if (stride == 1) return slot(i);
    if (stride > 1 && i % stride == 0) return slot(momentum ? i / stride * 2 + 1 : i / stride);
    if (momentum && stride > 1 && (i + 1) % stride == 0 && (i + 1) / stride < kept)
      return slot(2 * ((i + 1) / stride));
    if (last && i + 1 == iterations) return {last, nk};
    return {scratch + (i - 1) % turns() * batch * nk, nk};
  }
  // Iterate i; the one before x0 for -1.
  In<T> at(int64_t i) const { return i > 0 ? In<T>(place(i)) : i == 0 ? x0 : before; }
};

}  // namespace

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
  const int64_t kept = p.kept(stride), slots = p.slots(stride), nk = p.nk();
  Tensor x = new_empty(b, out.x), norms = new_empty(b, out.norms), iterates = new_empty(b, out.iterates),
         last = new_empty(b, out.last);
  if (p.batch == 0 || p.k == 0) return {x, norms, iterates, last};
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    const OnDevice device(values);
    const DeviceSweeps<T, I> sweeps{device, p, S, values, scale, momentum, b};
    Iterates<T> at{{data<T>(x0), nk},
                   {p.momentum ? data<T>(before) : nullptr, nk},
                   mutable_data<T>(x),
                   out.gives_last ? mutable_data<T>(last) : nullptr,
                   mutable_data<T>(iterates),
                   nullptr,
                   nk,
                   p.batch,
                   iterations,
                   stride,
                   kept,
                   slots * nk,
                   p.momentum};
    const auto start = [&](const In<T>& v, T* to, int64_t step) {
      copy_blocks(device, to, step, v.p, nk, nk, p.batch);
    };
    const In<T> old = at.before.p ? at.before : at.x0;
    if (kept > 0) start(at.x0, at.slots + (p.pairs(stride) ? nk : 0), slots * nk);
    if (kept > 0 && p.pairs(stride)) start(old, at.slots, slots * nk);
    if (iterations == 0) start(at.x0, at.x, nk);
    if (out.gives_last && iterations < 2) start(iterations == 0 ? old : at.x0, at.last, nk);

    const Tensor scratch = sweeps.numbers(
        stride == 1 || iterations < 2 ? 0 : std::min(at.turns(), iterations - 1) * p.batch * nk);
    at.scratch = mutable_data<T>(scratch);
    const int64_t of_sweep = p.batch * sweeps.rows.count * p.k;
    const Tensor partials = sweeps.numbers(std::min(cuda::kSweepsTogether, iterations) * of_sweep);
    for (int64_t it = 0; it < iterations; ++it) {
      const int64_t part = it % cuda::kSweepsTogether, first = it - part;
      sweeps.sweep(it, at.at(it), at.at(it - 1), at.place(it + 1),
                   mutable_data<T>(partials) + part * of_sweep);
      if (part + 1 == cuda::kSweepsTogether || it + 1 == iterations)
        add_totals(device, data<T>(partials), (part + 1) * p.batch, p.batch, sweeps.rows.count, p.k, true,
                   mutable_data<T>(norms) + first * p.k, iterations * p.k);
    }
  });
  return {x, norms, iterates, last};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_richardson", TORCH_BOX(&learnsolve::csr_richardson_cuda)); }
