// csr_pcg_backward for CUDA tensors: the iterations last to first, three launches each, and those of a
// preconditioner that is a factor. What an iteration adds to the gradients on patterns waits until there are
// several.
#include "kernels/pcg.cuh"
#include "ops/pcg.cuh"
#include "ops/pcg.h"

namespace learnsolve {
namespace {

// What is given; null: not needed.
template <class T>
struct PcgGradients {
  T *rbar, *pbar, *bars, *ga, *gm, *gx0;
};

template <class T, class I>
struct DevicePcgAdjoint {
  const OnDevice& device;
  const DeviceStructure &A, &At;
  const DeviceFactor& L;
  const PcgSizes& p;
  const PcgAdjointTensors& in;
  const int64_t count;
  const PcgGradients<T> to;

  void run() {
    if (to.ga) gradient.emplace(device, in.values, A, p.k, p.batch, to.ga, p.values_step);
    if (to.gm && !L.rows)
      of_diagonal.emplace(in.values, to.gm, p.m_step, p.n, cuda::Groups(p.batch, 0), true, &device);
    if (to.gm && L.rows) factor_gradient.emplace(device, in.values, *L.rows, p.k, p.batch, to.gm, p.m_step);
    launch.pass(judged(cuda::Adjoining::learns, count, cuda::CountPass<T>{xbar, rbar, pbar}), chunks,
                partials());
    for (int64_t i = count - 1; i >= 0; --i) step(i);
    if (begins) finish();
    if (gradient) gradient->finish();
    if (factor_gradient) factor_gradient->finish();
    if (of_diagonal) of_diagonal->finish(device);
  }

  // Blocks of vectors of several iterations.
  struct Slots {
    Tensor tensor;
    int64_t size, batch;
    Out<T> operator[](int64_t i) const {
      return {mutable_data<T>(tensor) + i % tensor.size(0) * batch * size, size};
    }
  };
  Slots slots(int64_t number, int64_t rows) const {
    return {new_empty(in.values, Size{number, p.batch, rows * p.k}), rows * p.k, p.batch};
  }
  const int64_t nk = p.nk();
  const bool begins = !in.before;  // no call before this one
  const LoopMatrix<T, I> St{device, At, in.values, p.values_step};
  const AppliedFactor<T, I> factor{device, L, p};
  const ChunkLaunch<T> launch{device, p.k, p.batch};
  const cuda::Chunks chunks{p.n}, wide{L.width};
  const Tensor sums = new_empty(in.values, Size{chunks.count, p.batch, p.k});
  const Tensor work = new_zeros(in.values, Size{p.batch, kAdjointWork, p.k});
  const Flags flags{in.values, 2, p.batch};
  const cuda::AdjointColumns<T> columns{to.bars, mutable_data<T>(work), flags[0], p.k};
  const Out<T> rbar{to.rbar, nk}, pbar{to.pbar, nk};
  const In<T> xbar{data<T>(in.gx), nk};
  std::optional<DevicePairs<T, I>> gradient{}, factor_gradient{};
  std::optional<BatchSum<T>> of_diagonal{};
  // What waits in pairs: two an iteration with a factor, half as long.
  const int64_t waiting = to.gm ? DevicePairs<T, I>::kMost / 2 : 1, n = p.n, of_factor = L.rows ? n : 0,
                of_triangles = L.lower ? n : 0;
  const Slots qbar = slots(kPairs, n), made = slots(1, St.ends_in_pass() ? 0 : n);
  const Slots first_of_r = slots(waiting, L.width), first_of_zbar = slots(waiting, L.width);
  const Slots zbar = slots(L.lower ? 1 : waiting, of_factor), z_of_r = slots(waiting, of_triangles),
              z_of_zbar = slots(waiting, of_triangles), zs = slots(1, of_factor), ys = slots(1, L.width);

  cuda::Partials<T> partials() const { return {{mutable_data<T>(sums)}}; }
  In<T> row(AdjointWork of) const { return columns.row(of); }
  In<T> r_of(int64_t i) const {
    return i == count ? In<T>{data<T>(in.last), nk} : In<T>{data<T>(in.residuals) + i * nk, count * nk};
  }
  In<T> p_of(int64_t i) const {
    return i < 0 ? In<T>{data<T>(in.before), nk} : In<T>{data<T>(in.directions) + i * nk, count * nk};
  }

  // A pass of iteration i (`count`: before all), and what is made of its sums.
  template <class Pass>
  cuda::WithJudge<T, Pass, cuda::AdjointJudge<T>> judged(cuda::Adjoining what, int64_t i,
                                                         const Pass& pass) const {
    const bool ends = what != cuda::Adjoining::residual, prepares = ends && (i > 0 || begins);
    const cuda::AdjointJudge<T> judge{columns,
                                      what,
                                      prepares,
                                      !begins,
                                      ends ? (prepares ? i - 1 : 0) : i,
                                      count,
                                      data<T>(in.scalars),
                                      data<T>(in.norms),
                                      data<T>(in.gnorms)};
    return {pass, judge, partials(), flags.counter(1)};
  }
  // a: kAdjointWork for 1.
  void combine(T sign, AdjointWork a, const In<T>& u, AdjointWork b, const In<T>& w, const Out<T>& out,
               const cuda::Chunks& by) const {
    launch.pass(cuda::CombinePass<T>{sign, row(kActs), row(a), u, row(b), w, out}, by);
  }
  void multiply(const LoopMatrix<T, I>& by, const In<T>& x, const Out<T>& y, const cuda::Chunks& rows) const {
    launch.product(by, x, cuda::ProductPass<T, 0>{{}, y, nullptr}, y, rows);
  }
  void flush() {
    if (gradient) gradient->flush();
    if (factor_gradient) factor_gradient->flush();
  }

  // M^T zbar + rhobar z' for an M that is made of a factor; what waits in pairs goes to places number i.
  In<T> through_factor(const In<T>& next, int64_t i) {
    const Out<T> zb = zbar[i], y = first_of_r[i], ybar = first_of_zbar[i], out = zs[0];
    combine(1, kAdjointWork, pbar, kRhobarNow, next, zb, chunks);
    if (L.lower) {
      const Out<T> z = z_of_r[i], v = z_of_zbar[i];
      factor.solve(true, next, y);
      factor.solve(true, zb, ybar);
      factor.solve(false, y, z);
      factor.solve(false, ybar, v);
      combine(1, kAdjointWork, v, kRhobarNow, z, out, chunks);
      if (factor_gradient) factor_gradient->add(z, ybar), factor_gradient->add(v, y);
    } else {
      // L (L^T zbar + rhobar L^T r'): one product for both.
      multiply(*factor.columns, next, y, wide);
      multiply(*factor.columns, zb, ybar, wide);
      combine(1, kAdjointWork, ybar, kRhobarNow, y, ys[0], wide);
      multiply(*factor.rows, ys[0], out, chunks);
      if (factor_gradient) factor_gradient->add(zb, y), factor_gradient->add(next, ybar);
    }
    return out;
  }

  // rbar += all that comes through r' = next. With r, also the sums for alphabar.
  void through_residual(const In<T>& next, const In<T>& r, const In<T>& direction, int64_t i) {
    const bool diagonal = p.kind == Preconditioning::diagonal;
    const In<T> v = factor.rows ? through_factor(next, i) : In<T>{};
    const In<T> d = diagonal ? In<T>{data<T>(p.m), p.m_step} : In<T>{};
    const Out<T> dbar = of_diagonal ? Out<T>{of_diagonal->result.p, of_diagonal->result.step} : Out<T>{};
    const cuda::AdjointResidualPass<T> pass{row(kActs),
                                            row(kRhobarNow),
                                            row(kNormbar),
                                            row(kInverse),
                                            pbar,
                                            v,
                                            d,
                                            next,
                                            r,
                                            xbar,
                                            xbar.p ? direction : In<T>{},
                                            rbar,
                                            dbar,
                                            columns.flags};
    launch.pass(judged(cuda::Adjoining::residual, r.p ? i : -1, pass), chunks, partials());
  }

  void step(int64_t i) {
    const In<T> next = r_of(i + 1), r = r_of(i), direction = p_of(i);
    const bool more = i > 0 || !begins;
    const Out<T> q = qbar[i];
    through_residual(next, r, direction, i);
    combine(-1, kAlphaNow, rbar, kPibar, direction, q, chunks);
    const cuda::AdjointDirectionPass<T> end{row(kActs),     row(kBetaNow),
                                            row(kAlphaNow), row(kAlphabarTerm),
                                            xbar,           r,
                                            next,           more ? p_of(i - 1) : In<T>{},
                                            pbar,           columns.flags};
    launch.product(St, q, judged(cuda::Adjoining::direction, i, end), made[0], chunks, partials());
    if (gradient) gradient->add(q, direction);
    if (i % kPairs == 0) flush();
  }

  // Through z_0 = M r_0, r_0 = b - A x_0.
  void finish() {
    flush();  // places of what waits are free
    through_residual(r_of(0), {}, {}, 0);
    flush();
    if (gradient && in.x0) {
      combine(-1, kAdjointWork, rbar, kPibar, {}, qbar[0], chunks);
      gradient->add(qbar[0], {data<T>(in.x0), nk});
    }
    if (!to.gx0) return;
    const Out<T> gx0{to.gx0, nk};  // xbar - A^T rbar
    if (xbar.p) copy_blocks(device, gx0.p, nk, xbar.p, nk, nk, p.batch);
    launch.product(St, rbar, cuda::AddPass<T>{-1, {}, gx0}, made[0], chunks);
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> csr_pcg_backward_cuda(
    const std::vector<Tensor>& A, const std::vector<Tensor>& transpose, const Tensor& values, int64_t kind,
    const std::vector<Tensor>& M, const std::optional<Tensor>& x0, const std::vector<Tensor>& forward,
    const std::optional<Tensor>& gx, const std::optional<Tensor>& gnorms, const std::vector<Tensor>& sums,
    const std::vector<int64_t>& needs) {
  const char* name = "csr_pcg_backward";
  const PcgAdjointTensors in(name, values, x0, forward, gx, gnorms, sums, needs);
  const DeviceStructure S(name, in.values, A);
  const DeviceStructure St(name, in.values, transpose);
  const PcgSizes p(name, S, in.values, kind, M, in.last);
  const DeviceFactor factor(name, p, M, S.idx, in.values);
  const PcgAdjointSizes out(name, S, St, p, in, needs);
  const OnDevice device(in.values);
  // What is carried on is copied: an operator must not write to its arguments.
  const auto continued = [&](const std::optional<Tensor>& from, const Size& size) {
    if (!from) return new_zeros(in.values, size);
    Tensor t = new_empty(in.values, size);
    const int64_t bytes = t.numel() * t.element_size();
    copy_blocks(device, static_cast<char*>(t.data_ptr()), bytes, static_cast<const char*>(from->data_ptr()),
                bytes, bytes, 1);
    return t;
  };
  Tensor rbar = continued(in.rbar, out.vector), pbar = continued(in.pbar, out.vector),
         bars = continued(in.bars, out.bars), ga = continued(in.ga, out.values), gm = continued(in.gm, out.m),
         gx0 = new_zeros(in.values, out.x0);
  if (p.batch == 0 || p.k == 0) return {rbar, pbar, bars, ga, gm, gx0};
  dispatch(name, in.values, S.idx, [&]<class T, class I>() {
    const auto if_needed = [](bool needed, const Tensor& t) { return needed ? mutable_data<T>(t) : nullptr; };
    const PcgGradients<T> to{mutable_data<T>(rbar),      mutable_data<T>(pbar),
                             mutable_data<T>(bars),      if_needed(out.gives_values, ga),
                             if_needed(out.gives_m, gm), if_needed(out.gives_x0, gx0)};
    DevicePcgAdjoint<T, I>{device, S, St, factor, p, in, out.count, to}.run();
  });
  return {rbar, pbar, bars, ga, gm, gx0};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_pcg_backward", TORCH_BOX(&learnsolve::csr_pcg_backward_cuda)); }
