// csr_pcg for CUDA tensors: three launches an iteration, and those of a preconditioner that is a factor.
#include "kernels/pcg.cuh"
#include "ops/pcg.cuh"

namespace learnsolve {
namespace {

using namespace cuda;

// What a call is told, and what it writes, each with an axis for the batch in front.
template <class T>
struct PcgCall {
  int64_t first, iterations;
  bool begins, store;
  T *x, *r, *p, *before;  // before: p between iterations, where none are stored
  T *residuals, *directions;
  PcgColumns<T> columns;
  unsigned* arrived;  // of judges, one for each member
  T *norms, *scalars;
  const T* target;  // (B, k), or null
};

template <class T, class I>
struct DevicePcg {
  const OnDevice& device;
  const DeviceStructure& S;
  const DeviceFactor& L;
  const PcgSizes& p;
  const Tensor& like;
  const PcgCall<T> to;

  const int64_t nk = p.nk();
  const LoopMatrix<T, I> A{device, S, like, p.values_step};
  const AppliedFactor<T, I> factor{device, L, p};
  const ChunkLaunch<T> launch{device, p.k, p.batch};
  const Chunks chunks{p.n}, wide{L.width};
  const Tensor sums = new_empty(like, Size{2, p.batch, chunks.count, p.k});
  const Tensor rooms = new_empty(like, Size{L.rows ? 2 : 1, p.batch, nk});
  const Tensor room = new_empty(like, Size{p.batch, L.width, p.k});
  const Out<T> x{to.x, nk}, q{mutable_data<T>(rooms), nk};  // q = A p
  const Out<T> z{q.p + (L.rows ? p.batch * nk : 0), nk};    // z = M r
  const Out<T> w{mutable_data<T>(room), L.width * p.k};     // between the two parts of M
  const In<T> diagonal = p.kind == Preconditioning::diagonal ? In<T>{data<T>(p.m), p.m_step} : In<T>{};

  // r = b - A x (b if x is none), p = M r.
  void begin(const T* b, bool from_x) const {
    const In<T> right{b, nk};
    if (from_x)
      launch.after(right, judged(Judged::length, -1, ProductPass<T, 1>{right, {}, nullptr}), chunks,
                   partials());
    with_residual(Judged::begin, -1, right, from_x ? In<T>{} : to.columns.row(kCurrentAlpha), {}, nullptr,
                  [&](const auto& end) {
                    if (from_x)
                      launch.product(A, x, end, q, chunks, partials());
                    else
                      launch.after(right, end, chunks, partials());
                  });
    turn(-1);
  }
  // Goes on from x, r and p.
  void resume(const T* r, const T* p_, const T* carry) const {
    const int64_t known = p.batch * kCarry * p.k;
    copy_blocks(device, r_at(0).p, r_at(0).step, r, nk, nk, p.batch);
    copy_blocks(device, p_at(0).p, p_at(0).step, p_, nk, nk, p.batch);
    copy_blocks(device, to.columns.carry, known, carry, known, known, 1);
    launch.after({}, judged(Judged::start, -1, ProductPass<T, 1>{}), Chunks{}, partials());
  }
  void run() const {
    for (int64_t i = 0; i < to.iterations; ++i) {
      const ProductPass<T, 1> end{p_at(i), q, to.columns.active};
      launch.product(A, p_at(i), judged(Judged::product, i, end), q, chunks, partials());
      with_residual(Judged::residual, i, r_at(i), to.columns.row(kCurrentAlpha), p_at(i), to.columns.entered,
                    [&](const auto& residual) { launch.after(q, residual, chunks, partials()); });
      turn(i);
    }
  }

  Out<T> r_at(int64_t i) const {
    return to.store && i < to.iterations ? Out<T>{to.residuals + i * nk, to.iterations * nk}
                                         : Out<T>{to.r, nk};
  }
  Out<T> p_at(int64_t i) const {
    if (i == to.iterations) return {to.p, nk};
    return to.store ? Out<T>{to.directions + i * nk, to.iterations * nk} : Out<T>{to.before, nk};
  }
  Partials<T> partials() const { return {{mutable_data<T>(sums), mutable_data<T>(sums) + sums.numel() / 2}}; }
  // The pass, and what is made of its sums.
  template <class Pass>
  WithJudge<T, Pass, PcgJudge<T>> judged(Judged what, int64_t i, const Pass& pass) const {
    const int64_t k = p.k;
    const bool norms = what != Judged::start && what != Judged::length, scalars = norms && i >= 0;
    const PcgJudge<T> judge{to.columns,
                            what,
                            p.kind,
                            to.first + i,
                            to.target,
                            norms ? to.norms + (i + to.begins) * k : nullptr,
                            scalars ? to.scalars + i * kScalars * k : nullptr,
                            (to.iterations + to.begins) * k,
                            to.iterations * kScalars * k};
    return {pass, judge, partials(), to.arrived};
  }
  // f(the end of a product that computes the residual after iteration i)
  template <class F>
  void with_residual(Judged what, int64_t i, const In<T>& r, const In<T>& alpha, const Out<T>& direction,
                     const int* entered, const F& f) const {
    const In<T> wipe = to.columns.row(kClearP);
    const Out<T> out = r_at(i + 1);
    if (diagonal.p)
      f(judged(what, i, PcgResidualPass<T, true>{r, diagonal, out, alpha, direction, wipe, entered}));
    else
      f(judged(what, i, PcgResidualPass<T, false>{r, {}, out, alpha, direction, wipe, entered}));
  }
  // x, and p of the iteration after number i.
  void turn(int64_t i) const {
    const Out<T> r = r_at(i + 1);
    const int* const entered = to.columns.entered;
    if (L.lower) {
      factor.solve(true, r, w);
      factor.solve(false, w, z);
      launch.after(z, judged(Judged::preconditioned, i, ProductPass<T, 1>{r, {}, entered}), chunks,
                   partials());
    } else if (L.columns) {
      launch.product(*factor.columns, r, ProductPass<T, 0>{{}, w, entered}, w, wide);
      launch.product(*factor.rows, w, judged(Judged::preconditioned, i, ProductPass<T, 1>{r, z, entered}), z,
                     chunks, partials());
    }
    const auto row = [&](Work of) { return to.columns.row(of); };
    launch.pass(PcgUpdatePass<T>{L.rows ? z : r, diagonal, i < 0 ? In<T>{} : p_at(i), i < 0 ? Out<T>{} : x,
                                 p_at(i + 1), r, row(kCurrentAlpha), row(kCurrentBeta), row(kContinues),
                                 row(kClearR), entered},
                chunks);
  }
};

}  // namespace

PcgResult csr_pcg_cuda(const std::vector<Tensor>& A, const Tensor& values, int64_t kind,
                       const std::vector<Tensor>& M, const std::optional<Tensor>& x, const Tensor& r,
                       const std::vector<Tensor>& state, const std::optional<Tensor>& target, int64_t first,
                       int64_t iterations, bool store) {
  const char* name = "csr_pcg";
  const PcgTensors in(name, values, x, r, state, target);
  const DeviceStructure S(name, in.values, A);
  const PcgSizes p(name, S, in.values, kind, M, in.r);
  const DeviceFactor factor(name, p, M, S.idx, in.values);
  const PcgResultSizes out(name, p, in, first, iterations, store);
  const Size& size = out.vector;
  const OnDevice device(in.values);
  Tensor x_out = in.x ? new_empty(in.r, size) : new_zeros(in.r, size), r_out = new_empty(in.r, size),
         p_out = new_empty(in.r, size),
         // The p before, where iterations overwrite it.
      before = store            ? new_empty(in.r, Size{0})
               : iterations > 0 ? new_empty(in.r, size)
                                : new_zeros(in.r, size),
         norms = new_empty(in.r, out.norms), carry = new_empty(in.r, out.carry),
         scalars = new_zeros(in.r, out.scalars), residuals = new_empty(in.r, out.trajectory),
         directions = new_empty(in.r, out.trajectory);
  if (p.batch == 0 || p.k == 0)
    return {x_out, r_out, p_out, before, carry, norms, scalars, residuals, directions};
  dispatch(name, in.values, S.idx, [&]<class T, class I>() {
    const int64_t nk = p.nk();
    const Tensor work = new_zeros(in.r, Size{p.batch, kWork, p.k});
    const Flags flags(in.r, 3, p.batch);
    const PcgCall<T> call{first,
                          iterations,
                          out.begins,
                          store,
                          mutable_data<T>(x_out),
                          mutable_data<T>(r_out),
                          mutable_data<T>(p_out),
                          mutable_data<T>(before),
                          mutable_data<T>(residuals),
                          mutable_data<T>(directions),
                          {mutable_data<T>(carry), mutable_data<T>(work), flags[0], flags[1], p.k},
                          flags.counter(2),
                          mutable_data<T>(norms),
                          mutable_data<T>(scalars),
                          data<T>(in.target)};
    const DevicePcg<T, I> pcg{device, S, factor, p, in.values, call};
    if (in.x) copy_blocks(device, call.x, nk, data<T>(*in.x), nk, nk, p.batch);
    if (out.begins)
      pcg.begin(data<T>(in.r), in.x.has_value());
    else
      pcg.resume(data<T>(in.r), data<T>(*in.p), data<T>(*in.carry));
    pcg.run();
  });
  return {x_out, r_out, p_out, before, carry, norms, scalars, residuals, directions};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_pcg", TORCH_BOX(&learnsolve::csr_pcg_cuda)); }
