// csr_pcg for CUDA tensors: a few launches an iteration.
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
    if (from_x) {
      launch.after(right, ProductPass<T, 1>{right, {}, nullptr}, chunks, partials());
      judge(Judged::length, -1);
    }
    with_residual(right, r_at(0), from_x ? In<T>{} : to.columns.row(kStep), {}, nullptr,
                  [&](const auto& end) {
                    if (from_x)
                      launch.product(A, x, end, q, chunks, partials());
                    else
                      launch.after(right, end, chunks, partials());
                  });
    judge(Judged::begin, -1);
    turn(-1);
  }
  // Goes on from x, r and p.
  void resume(const T* r, const T* p_, const T* carry) const {
    const int64_t known = p.batch * kCarry * p.k;
    copy_blocks(device, r_at(0).p, r_at(0).step, r, nk, nk, p.batch);
    copy_blocks(device, p_at(0).p, p_at(0).step, p_, nk, nk, p.batch);
    copy_blocks(device, to.columns.carry, known, carry, known, known, 1);
    judge(Judged::start, -1);
  }
  void run() const {
    for (int64_t i = 0; i < to.iterations; ++i) {
      multiply<1>(A, p_at(i), p_at(i), q, to.columns.active, chunks);
      judge(Judged::product, i);
      with_residual(r_at(i), r_at(i + 1), to.columns.row(kStep), p_at(i), to.columns.entered,
                    [&](const auto& end) { launch.after(q, end, chunks, partials()); });
      judge(Judged::residual, i);
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
  void judge(Judged what, int64_t i) const {
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
    judge_columns(device, judge, p.batch, chunks, partials());
  }
  // f(the end of a product that computes a residual)
  template <class F>
  void with_residual(const In<T>& r, const Out<T>& out, const In<T>& alpha, const Out<T>& direction,
                     const int* entered, const F& f) const {
    const In<T> wipe = to.columns.row(kWipeP);
    if (diagonal.p)
      f(PcgResidualPass<T, true>{r, diagonal, out, alpha, direction, wipe, entered});
    else
      f(PcgResidualPass<T, false>{r, {}, out, alpha, direction, wipe, entered});
  }
  template <int Sums>
  void multiply(const LoopMatrix<T, I>& by, const In<T>& v, const In<T>& u, const Out<T>& y,
                const int* active, const Chunks& rows) const {
    launch.product(by, v, ProductPass<T, Sums>{u, y, active}, y, rows, partials());
  }
  // x, and p of the iteration after number i.
  void turn(int64_t i) const {
    const Out<T> r = r_at(i + 1);
    const int* const entered = to.columns.entered;
    if (L.lower) {
      factor.solve(true, r, w);
      factor.solve(false, w, z);
      launch.after(z, ProductPass<T, 1>{r, {}, entered}, chunks, partials());
    } else if (L.columns) {
      multiply<0>(*factor.columns, r, {}, w, entered, wide);
      multiply<1>(*factor.rows, w, r, z, entered, chunks);
    }
    if (L.rows) judge(Judged::preconditioned, i);
    const auto row = [&](Work of) { return to.columns.row(of); };
    launch.pass(PcgUpdatePass<T>{L.rows ? z : r, diagonal, i < 0 ? In<T>{} : p_at(i), i < 0 ? Out<T>{} : x,
                                 p_at(i + 1), r, row(kStep), row(kTurn), row(kKeep), row(kWipeR), entered},
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
    const Tensor work = new_zeros(in.r, Size{p.batch, kWork, p.k}), flags = new_int(in.r, Size{2, p.batch});
    int* const active = static_cast<int*>(flags.data_ptr());
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
                          {mutable_data<T>(carry), mutable_data<T>(work), active, active + p.batch, p.k},
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
