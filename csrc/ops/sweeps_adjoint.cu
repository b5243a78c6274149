// csr_richardson_backward for CUDA tensors: a few launches a sweep (kernels/sweeps.cuh). What a
// sweep adds to the gradient of A's values waits until there are several.
#include "kernels/sweeps.cuh"
#include "ops/sweeps.cuh"
#include "ops/sweeps.h"

namespace learnsolve {
namespace {

// The gradients; null: not needed.
template <class T>
struct SweepGradients {
  T *values, *scale, *momentum, *b, *x0, *before;
};

template <class T, class I>
struct DeviceSweepsAdjoint {
  const DeviceSweeps<T, I>& sweeps;
  const DeviceStructure& St;
  const SweepAdjointTensors& in;
  const SweepAdjointSizes& sizes;
  const int64_t stride;
  const bool goes_on;  // x0 or the iterate before it has a gradient
  const SweepGradients<T> to;

  static constexpr int64_t kWaiting = DevicePairs<T, I>::kMost;
  const SweepSizes& p = sweeps.p;
  const OnDevice& device = sweeps.device;
  const ChunkLaunch<T>& launch = sweeps.launch;
  const cuda::Chunks& rows = sweeps.rows;
  const int64_t nk = p.nk(), all = p.batch * nk, longest = std::min(stride, p.sweeps);
  const LoopMatrix<T, I> At{device, St, in.values, sweeps.A.rows.values.step};
  const In<T> before{sizes.has_before ? data<T>(in.before) : nullptr, nk};
  const In<T> later{p.momentum ? data<T>(in.gbefore) : nullptr, nk},
      kept{data<T>(in.iterates), sizes.slots * nk};
  // (batch, k), (batch, sweeps, k), (batch, sweeps)
  const Tensor learns = sweeps.zeros(p.batch * p.k), c = sweeps.numbers(in.gnorms ? in.norms.numel() : 0),
               normed = sweeps.numbers(in.gnorms ? p.batch * p.sweeps : 0);
  const Tensor g = sweeps.numbers((to.values ? kWaiting : 1) * all);
  const Tensor residual = sweeps.numbers(to.scale ? all : 0);
  const Tensor made = sweeps.numbers(At.ends_in_pass() ? 0 : all);
  // (batch, longest + 1, n, k): the iterates from the one before `begin` on
  const Tensor segment = sweeps.numbers(stride == 1 ? 0 : (longest + 1) * all);
  // (sweeps, batch, chunks, k): partial sums of the gradient of the momentum
  const Tensor moved = sweeps.numbers(to.momentum ? p.sweeps * p.batch * rows.count * p.k : 0);
  std::optional<DevicePairs<T, I>> of_values{};
  std::optional<RowSums<T>> of_scale{};
  int64_t begin = 0;
  // With momentum, in turn the cotangent of an iterate and of the one before it: so that the last is x0's.
  const Tensor other = sweeps.numbers(p.momentum ? all : 0);
  const bool swapped = p.momentum && p.sweeps % 2 == 1;
  T* const lambda[2] = {swapped ? mutable_data<T>(other) : to.x0, swapped ? to.x0 : mutable_data<T>(other)};

  void run() {
    if (to.values)
      of_values.emplace(device, in.values, sweeps.S, p.k, p.batch, to.values, sweeps.A.rows.values.step,
                        In<T>{data<T>(learns), p.k});
    if (to.scale)
      of_scale.emplace(device, in.values, to.scale, p.scale_at(1, 0), p.scales * p.n, p.n, p.k, p.batch);
    copy_blocks(device, lambda[0], nk, data<T>(in.gx), nk, nk, p.batch);
    look({data<T>(in.gx), nk}, later, p.n);
    if (in.gnorms) {
      const int64_t sums = p.batch * p.sweeps;
      LS_LAUNCH(
          cuda::blocks_for(sums, cuda::kThreads / 32), cuda::kThreads, device.stream,
          (data<T>(in.norms), data<T>(in.gnorms), sums, p.k, mutable_data<T>(c), mutable_data<T>(normed)),
          cuda::norm_cotangents_kernel<T>);
      STD_CUDA_CHECK(cudaGetLastError());
      look({data<T>(c), p.sweeps * p.k}, {}, p.sweeps);
    }
    const bool reads = to.values || to.scale || in.gnorms || to.momentum;
    for (int64_t end = p.sweeps; end > 0;) {
      begin = stride == 1 ? 0 : (end - 1) / stride * stride;
      if (stride > 1 && reads) repeat(end);
      for (int64_t it = end - 1; it >= begin; --it) step(it);
      if (of_values) of_values->flush();  // the iterates go
      end = begin;
    }
    if (of_values) of_values->finish();
    if (of_scale) of_scale->finish();
    if (to.before)
      launch.after(lambda_of(0), cuda::AddPass<T>{-1, sweeps.momentum(0), {to.before, nk}}, rows);
    if (to.momentum) add_momentum();
  }

  // Which columns of u and w, with `count` rows, are not zero?
  void look(const In<T>& u, const In<T>& w, int64_t count) const {
    const cuda::Chunks chunks(count);
    const Tensor partials = sweeps.numbers(p.batch * chunks.count * p.k);
    launch.pass(cuda::CountPass<T>{u, w, {}}, chunks, cuda::Partials<T>{{mutable_data<T>(partials)}});
    add_totals(device, data<T>(partials), p.batch, p.batch, chunks.count, p.k, false, mutable_data<T>(learns),
               p.k);
  }
  Out<T> repeated(int64_t i) const {
    return {mutable_data<T>(segment) + (i - begin + 1) * nk, (longest + 1) * nk};
  }
  In<T> iterate(int64_t i) const {
    if (stride > 1) return repeated(i);
    return i < 0 ? before : In<T>{kept.p + i * nk, kept.step};
  }
  // The iterates before begin, begin, ..., end - 1 from those that are kept: with momentum that before
  // `begin`, and `begin`.
  void repeat(int64_t end) const {
    const T* const from = kept.p + begin / stride * (p.momentum ? 2 : 1) * nk;
    const auto take = [&](const T* v, int64_t i) {
      copy_blocks(device, repeated(i).p, repeated(i).step, v, kept.step, nk, p.batch);
    };
    take(from + (p.momentum ? nk : 0), begin);
    if (p.momentum) take(from, begin - 1);
    for (int64_t it = begin; it + 1 < end; ++it)
      sweeps.sweep(it, iterate(it), moves(it) ? iterate(it - 1) : In<T>{}, repeated(it + 1), nullptr);
  }
  bool moves(int64_t it) const { return p.momentum && (it > 0 || before.p); }

  // The cotangent of iterate it + 1.
  Out<T> lambda_of(int64_t it) const { return {lambda[p.momentum ? (p.sweeps - 1 - it) % 2 : 0], nk}; }

  void step(int64_t it) {
    const bool last = it + 1 == p.sweeps;
    const Out<T> cotangent = lambda_of(it),
                 on = p.momentum ? Out<T>{lambda[(p.sweeps - it) % 2], nk} : Out<T>{};
    const Out<T> minus{mutable_data<T>(g) + (to.values ? it % kWaiting : 0) * all, nk};
    const In<T> x = iterate(it), old = to.momentum && moves(it) ? iterate(it - 1) : In<T>{};
    const int64_t lines = p.batch * rows.count;
    cuda::RelaxAdjointPass<T> end{};
    end.learns = {data<T>(learns), p.k}, end.s = sweeps.scale(it), end.b = sweeps.b, end.lambda = cotangent;
    if (in.gnorms)
      end.c = {data<T>(c) + it * p.k, p.sweeps * p.k}, end.normed = {data<T>(normed) + it, p.sweeps};
    if (old.p) end.x = x, end.old = old;
    if (moves(it)) end.momentum = sweeps.momentum(it);
    if (p.momentum && !last) end.later = on, end.next_momentum = sweeps.momentum(it + 1);
    if (last) end.later = later;
    end.g = minus, end.bbar = {to.b, nk}, end.passed = on;
    if (to.scale) end.residual = {mutable_data<T>(residual), nk};
    const cuda::Partials<T> sums{{to.momentum ? mutable_data<T>(moved) + it * lines * p.k : nullptr}};
    if (to.scale || in.gnorms)
      launch.product(sweeps.A, x, end, minus, rows, sums);
    else
      launch.after({}, end, rows, sums);
    if (of_scale) of_scale->add({}, {}, end.residual, cotangent, p.scale_at(0, it));
    if (of_values) of_values->add(minus, x);
    if (it > 0 || goes_on)
      launch.product(At, minus, cuda::AddPass<T>{1, {}, on.p ? on : cotangent}, {mutable_data<T>(made), nk},
                     rows);
  }

  // Sums over the rows and columns of a sweep of a member; then over what shares a number.
  void add_momentum() const {
    const Tensor parts = sweeps.zeros(p.batch * p.sweeps);
    add_totals(device, data<T>(moved), p.sweeps * p.batch, p.batch, rows.count * p.k, 1, false,
               mutable_data<T>(parts), p.sweeps);
    add_totals(device, data<T>(parts), p.bm, p.bm, p.batch / p.bm * (p.sweeps / p.momenta), p.momenta, false,
               to.momentum, p.momenta);
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> csr_richardson_backward_cuda(
    const std::vector<Tensor>& A, const std::vector<Tensor>& At, const Tensor& values, const Tensor& scale,
    const std::optional<Tensor>& momentum, const Tensor& b, const std::optional<Tensor>& before,
    const std::vector<Tensor>& kept, const std::vector<Tensor>& cotangents, int64_t iterations,
    int64_t stride, const std::vector<bool>& needs_) {
  const char* name = "csr_richardson_backward";
  const SweepAdjointTensors in(name, values, scale, momentum, b, before, kept, cotangents);
  const SweepNeeds needs(name, needs_);
  const DeviceStructure S(name, in.values, A), St(name, in.values, At);
  check_device(name, in.values, {&in.scale, &in.b, &in.iterates, &in.norms, &in.gx});
  for (const std::optional<Tensor>* t : {&in.momentum, &in.before, &in.gnorms, &in.gbefore})
    if (*t) check_device(name, in.values, {&**t});
  const SweepSizes p(name, S, in.values, in.scale, in.momentum, in.b, iterations);
  const SweepAdjointSizes out(name, S, St, p, in, stride, needs);
  Tensor ga = new_zeros(in.values, out.values), gs = new_zeros(in.values, out.scale),
         gm = new_zeros(in.values, out.momentum), gb = new_zeros(in.values, out.b),
         gx0 = new_empty(in.values, out.x0), gbefore = new_zeros(in.values, out.before);
  if (p.batch == 0 || p.nk() == 0) return {ga, gs, gm, gb, gx0, gbefore};
  dispatch(name, in.values, S.idx, [&]<class T, class I>() {
    const OnDevice device(in.values);
    const auto if_needed = [](bool needed, const Tensor& t) { return needed ? mutable_data<T>(t) : nullptr; };
    if (iterations == 0) {
      copy_blocks(device, mutable_data<T>(gx0), p.nk(), data<T>(in.gx), p.nk(), p.nk(), p.batch);
      if (out.gives_before && in.gbefore)
        copy_blocks(device, mutable_data<T>(gbefore), p.nk(), data<T>(*in.gbefore), p.nk(), p.nk(), p.batch);
      return;
    }
    const DeviceSweeps<T, I> sweeps{device, p, S, in.values, in.scale, in.momentum, in.b};
    const SweepGradients<T> to{
        if_needed(needs.values, ga), if_needed(needs.scale, gs), if_needed(out.gives_momentum, gm),
        if_needed(needs.b, gb),      mutable_data<T>(gx0),       if_needed(out.gives_before, gbefore)};
    DeviceSweepsAdjoint<T, I>{sweeps, St, in, out, stride, needs.x0, to}.run();
  });
  return {ga, gs, gm, gb, gx0, gbefore};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_richardson_backward", TORCH_BOX(&learnsolve::csr_richardson_backward_cuda)); }
