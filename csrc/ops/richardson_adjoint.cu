// csr_richardson_backward for CUDA tensors: two launches a sweep (kernels/richardson_adjoint.cuh).
#include <limits>

#include "kernels/richardson_gradients.cuh"
#include "ops/richardson.cuh"
#include "ops/sweep_adjoint_sizes.h"

namespace learnsolve {
namespace {

using namespace cuda;

// The iterates before first, first, ..., last - 1, to where P has them, from those that are kept: with
// momentum that before the first, and the first.
template <class T, class I>
void repeat(const SweepsCall<T, I>& call, const DeviceStructure& S, const SweepsAdjoint<T, I>& P,
            int64_t first, int64_t last, const T* kept, int64_t kept_step, T* to, T* product, bool packs) {
  const int64_t to_step = P.iterates_step;
  const bool before = call.p.momentum && (first > 0 || P.before);
  copy_members(call.device, kept + (call.p.momentum ? call.nk : 0), kept_step, to + call.nk, to_step, call.nk,
               call.p.batch);
  if (before) copy_members(call.device, kept, kept_step, to, to_step, call.nk, call.p.batch);
  Sweeps<T, I> again{P.A, nullptr, P.rows, call.coefficients, {}, P.b, nullptr, 0};
  again.coefficients.scale += call.coefficients.scale_at(0, first);
  if (call.p.momentum) again.coefficients.momentum += first * call.coefficients.momentum_sweep;
  // Treat as if every iterate had been stored.
  again.x = {to + call.nk,
             before ? to : nullptr,
             nullptr,
             nullptr,
             to + call.nk,
             nullptr,
             call.nk,
             to_step,
             to_step,
             0,
             std::numeric_limits<int64_t>::max(),
             1,
             0,
             call.p.momentum};
  call.run(S, again, 0, last - 1 - first, product, packs);
}

// The adjoint of sweeps first <= it < last. product, product_t: places for one with A and with A^T, if rows
// are distributed by the merge path.
template <class T, class I>
void run_adjoint(const SweepsCall<T, I>& call, const DeviceStructure& S, const DeviceStructure& St,
                 SweepsAdjoint<T, I> P, int64_t first, int64_t last, T* product, T* product_t, bool packs) {
  P.given = product, P.given_t = product_t;
  for (int64_t it = last - 1; it >= first; --it) {
    if (product && (P.gs || P.c))
      call.multiply(S, P.iterate(it, 0), call.step([&](int64_t b) { return P.iterate(it, b); }), product);
    with_shape<T>(call.p.k, packs, product != nullptr, call.mean(S), [&]<class Shape>() {
      LS_LAUNCH(blocks_for(call.p.batch / P.members() * P.rows.count), kThreads, call.device.stream, (P, it),
                adjoint_kernel<Shape, T, I>);
    });
    STD_CUDA_CHECK(cudaGetLastError());
    if (!P.goes_on(it)) continue;
    if (product_t) call.multiply(St, P.g_of(it), call.nk, product_t);
    with_shape<T>(call.p.k, packs, product_t != nullptr, call.mean(S), [&]<class Shape>() {
      LS_LAUNCH(blocks_for(P.template items<Shape>()), kThreads, call.device.stream, (P, it),
                transposed_kernel<Shape, T, I>);
    });
    STD_CUDA_CHECK(cudaGetLastError());
  }
}

// Numbers of the cotangents of residuals that are kept before they are added up.
constexpr int64_t kKept = int64_t{1} << 24, kFewestKept = 4;

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
         gx0 = new_empty(in.values, out.x0), before_out = new_zeros(in.values, out.before);
  if (p.batch == 0 || p.nk() == 0) return {ga, gs, gm, gb, gx0, before_out};
  dispatch(name, in.values, S.idx, [&]<class T, class I>() {
    const SweepsCall<T, I> call(p, S.nnz(), in.values, in.scale, in.momentum);
    const OnDevice& device = call.device;
    const int64_t nk = p.nk(), all = p.batch * nk;
    const T* later = in.momentum && in.gbefore ? data<T>(*in.gbefore) : nullptr;
    if (iterations == 0) {
      copy_members(device, data<T>(in.gx), nk, mutable_data<T>(gx0), nk, nk, p.batch);
      if (out.gives_before && later)
        copy_members(device, later, nk, mutable_data<T>(before_out), nk, nk, p.batch);
      return;
    }
    const Tensor learns = call.zeros(p.batch * p.k);
    const auto look = [&](const T* v, int64_t rows) {
      if (!v) return;
      LS_LAUNCH(dim3(blocks_for(rows * p.k, kThreads), blocks_aside(p.batch)), kThreads, device.stream,
                (v, rows, p.k, p.batch, mutable_data<T>(learns)), learns_kernel<T>);
      STD_CUDA_CHECK(cudaGetLastError());
    };
    look(data<T>(in.gx), p.n), look(later, p.n), look(data<T>(in.gnorms), iterations);
    const Tensor c = call.numbers(in.gnorms ? in.norms.numel() : 0),
                 any = call.zeros(in.gnorms ? p.batch * iterations : 0);
    if (in.gnorms) {
      LS_LAUNCH(blocks_for(in.norms.numel(), kThreads), kThreads, device.stream,
                (data<T>(in.norms), data<T>(*in.gnorms), p.batch * iterations, p.k, mutable_data<T>(c),
                 mutable_data<T>(any)),
                norm_cotangents_kernel<T>);
      STD_CUDA_CHECK(cudaGetLastError());
    }

    SweepsAdjoint<T, I> P{};
    P.A = call.matrix(S), P.At = call.matrix(St);
    const Chunks rows(p.n);
    P.rows = rows, P.coefficients = call.coefficients, P.sweeps = iterations;
    P.before = out.has_before ? data<T>(*in.before) : nullptr;
    P.b = data<T>(in.b), P.learns = data<T>(learns);
    if (in.gnorms) P.c = data<T>(c), P.norms = data<T>(any);
    // Lambda begins where it ends up in gx0 after the last sweep.
    const Tensor other = call.numbers(p.momentum ? all : 0);
    T *const to = mutable_data<T>(gx0), *const aside = mutable_data<T>(other);
    const bool swapped = p.momentum && iterations % 2 == 1;
    P.lambda[0] = swapped ? aside : to, P.lambda[1] = p.momentum ? (swapped ? to : aside) : nullptr;
    copy_members(device, data<T>(in.gx), nk, P.lambda[0], nk, nk, p.batch);
    if (later) copy_members(device, later, nk, P.lambda[1], nk, nk, p.batch);
    P.has_later = later != nullptr;
    P.gb = needs.b ? mutable_data<T>(gb) : nullptr, P.gs = needs.scale ? mutable_data<T>(gs) : nullptr;
    P.gs_own = p.bs != 1, P.need_x0 = needs.x0;
    const Tensor sums = call.numbers(out.gives_momentum ? iterations * p.batch * rows.count : 0);
    P.sums = out.gives_momentum ? mutable_data<T>(sums) : nullptr;

    const int64_t segment = stride == 1 ? iterations : std::min(stride, iterations);
    const int64_t together =
        needs.values
            ? std::min(std::max<int64_t>(kKept / static_cast<int64_t>(sizeof(T)) / all, kFewestKept), segment)
            : segment;
    const Tensor g = call.numbers((needs.values ? together : 1) * all);
    P.g = mutable_data<T>(g), P.g_step = needs.values ? all : 0;
    const Tensor of_segment = call.numbers(stride == 1 ? 0 : (segment + 1) * all);
    P.iterates = stride == 1 ? data<T>(in.iterates) : data<T>(of_segment);
    P.iterates_step = (stride == 1 ? out.slots : segment + 1) * nk;
    const bool table = S.blocks.size(0) > 1, table_t = St.blocks.size(0) > 1;
    const Tensor product = call.numbers(table ? all : 0), product_t = call.numbers(table_t ? all : 0);
    T* const product_at = table ? mutable_data<T>(product) : nullptr;
    const bool packs = call.packs({P.b, P.before, P.iterates, to, aside, P.g});
    const bool reads_iterates = needs.values || needs.scale || in.gnorms || out.gives_momentum;

    for (int64_t end = iterations; end > 0;) {
      const int64_t begin = stride == 1 ? 0 : (end - 1) / stride * stride;
      if (stride > 1) {
        P.iterates_from = begin - 1;
        if (reads_iterates)
          repeat(call, S, P, begin, end, data<T>(in.iterates) + begin / stride * (p.momentum ? 2 : 1) * nk,
                 out.slots * nk, mutable_data<T>(of_segment), product_at, packs);
      }
      for (int64_t hi = end; hi > begin;) {
        const int64_t lo = std::max(begin, hi - together);
        P.g_from = lo;
        run_adjoint(call, S, St, P, lo, hi, product_at, table_t ? mutable_data<T>(product_t) : nullptr,
                    packs);
        if (needs.values && S.nnz() > 0) {
          LS_LAUNCH(dim3(blocks_for(S.nnz(), kThreads), blocks_aside(p.bv == 1 ? 1 : p.batch)), kThreads,
                    device.stream, (P, lo, hi, mutable_data<T>(ga)), entries_kernel<T, I>);
          STD_CUDA_CHECK(cudaGetLastError());
        }
        hi = lo;
      }
      end = begin;
    }
    if (out.gives_before)
      copy_members(device, static_cast<const T*>(P.lambda_of(0)), nk, mutable_data<T>(before_out), nk, nk,
                   p.batch, P.coefficients.momentum, P.coefficients.momentum_member);
    if (out.gives_momentum) {
      const Tensor parts = call.numbers(p.batch * iterations);
      totals(device, data<T>(sums), iterations * p.batch, p.batch, rows.count, 1, false,
             mutable_data<T>(parts), iterations);
      LS_LAUNCH(blocks_for(p.bm * p.momenta, kThreads), kThreads, device.stream,
                (data<T>(parts), p.batch, iterations, p.bm, p.momenta, mutable_data<T>(gm)),
                shared_sums_kernel<T>);
      STD_CUDA_CHECK(cudaGetLastError());
    }
  });
  return {ga, gs, gm, gb, gx0, before_out};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_richardson_backward", TORCH_BOX(&learnsolve::csr_richardson_backward_cuda)); }
