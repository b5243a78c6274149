// csr_pcg for CUDA tensors: a few launches an iteration.
#include "ops/pcg.cuh"

namespace learnsolve {
namespace {

using namespace cuda;

template <class T, class I>
class DevicePcg {
 public:
  DevicePcg(const OnDevice& device_, const DeviceStructure& A_, const DeviceFactor& factor_,
            const PcgSizes& p, const Tensor& values_, const PcgForward<T>& forward)
      : A(A_),
        factor(factor_),
        applied(device_, factor_, p),
        like(values_),
        P(forward),
        rows{data<I>(A.ptr), data<I>(A.idx), data<T>(values_)},
        values_step(p.values_step),
        device(device_),
        launch{device_, p.k, p.batch, forward.packs},
        chunks(p.n),
        wide(factor_.width) {}

  // r = b - A x (b if x is none), p = M r.
  void begin(const T* b, bool from_x) const {
    const int64_t nk = P.nk();
    if (from_x) {
      launch.pass(MakeDot<T>{{b, nk}, {b, nk}, nullptr}, chunks, P.curvature());
      judge(Judged::length, -1, P.curvature());
      product<0>(A, rows, values_step, {P.x, nk}, {}, {P.q, nk}, nullptr, chunks, {});
    }
    if (P.kind == Preconditioning::diagonal)
      launch.pass(MakeBegin<T, true>{P, b, from_x}, chunks, P.of_residual());
    else
      launch.pass(MakeBegin<T, false>{P, b, from_x}, chunks, P.of_residual());
    judge(Judged::begin, -1, P.of_residual());
    precondition(-1);
    launch.pass(MakeUpdate<T>{P, -1}, chunks, {});
  }
  void resume() const { judge(Judged::start, -1, {}); }

  void run() const {
    for (int64_t i = 0; i < P.iterations; ++i) {
      const int64_t step = p_step(i);
      product<1>(A, rows, values_step, {P.p_at(0, i), step}, {P.p_at(0, i), step}, {P.q, P.nk()},
                 P.columns.flags, chunks, P.curvature());
      judge(Judged::product, i, P.curvature());
      if (P.kind == Preconditioning::diagonal)
        launch.pass(MakeResidual<T, true>{P, i}, chunks, P.of_residual());
      else
        launch.pass(MakeResidual<T, false>{P, i}, chunks, P.of_residual());
      judge(Judged::residual, i, P.of_residual());
      precondition(i);
      launch.pass(MakeUpdate<T>{P, i}, chunks, {});
    }
  }

 private:
  const DeviceStructure& A;
  const DeviceFactor& factor;
  const AppliedDeviceFactor<T, I> applied;
  const Tensor& like;
  const PcgForward<T> P;
  const RowsOf<T, I> rows;
  const int64_t values_step;
  const OnDevice& device;
  const ChunkLaunch<T> launch;
  const Chunks chunks, wide;

  // From one member's r or p to the next one's.
  int64_t p_step(int64_t i) const { return P.store && i < P.iterations ? P.iterations * P.nk() : P.nk(); }

  template <int Sums>
  void product(const DeviceStructure& S, const RowsOf<T, I>& by, int64_t step, const Vectors<const T>& x,
               const Vectors<const T>& u, const Vectors<T>& y, const int* flags, const Chunks& by_chunks,
               const Partials<T>& partials) const {
    const MakeProduct<T, I, Sums> make{by, step, x, u, y, flags};
    launch.template product<I>(S, like, make, y, by_chunks, partials);
  }

  void judge(Judged what, int64_t i, const Partials<T>& partials) const {
    const PcgJudge<T> judged = P.judge(P.columns, what, i, what != Judged::start && what != Judged::length);
    LS_LAUNCH(blocks_for(P.batch), kThreads, device.stream, (judged, P.batch, chunks.count, partials),
              judge_kernel<T>);
    STD_CUDA_CHECK(cudaGetLastError());
  }

  // z = M r of the iteration to come and rho, where they are not known yet.
  void precondition(int64_t i) const {
    if (!P.has_factor()) return;
    const int64_t nk = P.nk();
    const Vectors<const T> r{P.r_at(0, i + 1), p_step(i + 1)};
    const int* entered = P.columns.flags + 1;
    if (factor.lower) {
      applied.solve(true, r.p, r.step, P.w);
      applied.solve(false, P.w, nk, P.z);
      launch.pass(MakeDot<T>{r, {P.z, nk}, entered}, chunks, P.of_preconditioned());
    } else {
      product<0>(*factor.columns, applied.columns(), P.m_step, r, {}, {P.w, P.width * P.k}, entered, wide,
                 {});
      product<1>(*factor.rows, applied.rows(), P.m_step, {P.w, P.width * P.k}, r, {P.z, nk}, entered, chunks,
                 P.of_preconditioned());
    }
    judge(Judged::preconditioned, i, P.of_preconditioned());
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
  const int64_t saved = out.saved, nk = p.nk();
  const Size& size = out.vector;
  const OnDevice device(in.values);
  Tensor x_out = in.x ? new_empty(in.r, size) : new_zeros(in.r, size), r_out = new_empty(in.r, size),
         p_out = new_empty(in.r, size),
         // The p before, where iterations overwrite it.
      before = store            ? new_empty(in.r, Size{0})
               : iterations > 0 ? new_empty(in.r, size)
                                : new_zeros(in.r, size),
         norms = new_empty(in.r, out.norms), carry_out = new_empty(in.r, out.carry),
         scalars = new_zeros(in.r, out.scalars), residuals = new_empty(in.r, out.trajectory),
         directions = new_empty(in.r, out.trajectory);
  if (p.batch == 0 || p.k == 0)
    return {x_out, r_out, p_out, before, carry_out, norms, scalars, residuals, directions};
  dispatch(name, in.values, S.idx, [&]<class T, class I>() {
    const Chunks chunks(p.n);
    const bool made = p.kind == Preconditioning::product || p.kind == Preconditioning::triangular;
    const Tensor q = new_empty(in.r, size), z = new_empty(in.r, made ? size : Size{0}),
                 w = new_empty(in.r, Size{made ? p.batch * factor.width * p.k : 0}),
                 sums = new_empty(in.r, Size{3, p.batch, chunks.count, p.k}),
                 work = new_zeros(in.r, Size{p.batch, kWork, p.k}), flags = new_int(in.r, Size{p.batch, 2});
    const int64_t each = p.batch * chunks.count * p.k;
    T* sum = mutable_data<T>(sums);
    const PcgForward<T> P{
        p.kind,
        data<T>(p.m),
        p.m_step,
        p.n,
        p.k,
        p.batch,
        iterations,
        first,
        factor.width,
        out.begins,
        store,
        takes_packs(data<T>(in.r)) && (nk % kPack<T> == 0 || (p.batch == 1 && saved == 0)) &&
            (p.batch == 1 || factor.width * p.k % kPack<T> == 0),
        mutable_data<T>(x_out),
        mutable_data<T>(r_out),
        mutable_data<T>(p_out),
        store ? nullptr : mutable_data<T>(before),
        mutable_data<T>(residuals),
        mutable_data<T>(directions),
        mutable_data<T>(q),
        mutable_data<T>(z),
        mutable_data<T>(w),
        {sum, sum + each, sum + 2 * each},
        {mutable_data<T>(carry_out), mutable_data<T>(work), static_cast<int*>(flags.data_ptr()), p.k},
        mutable_data<T>(norms),
        mutable_data<T>(scalars),
        data<T>(in.target)};
    const DevicePcg<T, I> pcg(device, S, factor, p, in.values, P);
    if (in.x) copy_blocks(device, P.x, nk, data<T>(*in.x), nk, nk, p.batch);
    if (out.begins) {
      pcg.begin(data<T>(in.r), in.x.has_value());
    } else {
      const int64_t step = saved > 0 ? saved * nk : nk;
      copy_blocks(device, P.r_at(0, 0), step, data<T>(in.r), nk, nk, p.batch);
      copy_blocks(device, P.p_at(0, 0), step, data<T>(*in.p), nk, nk, p.batch);
      const int64_t known = p.batch * kCarry * p.k;
      copy_blocks(device, P.columns.carry, known, data<T>(*in.carry), known, known, 1);
      pcg.resume();
    }
    pcg.run();
  });
  return {x_out, r_out, p_out, before, carry_out, norms, scalars, residuals, directions};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_pcg", TORCH_BOX(&learnsolve::csr_pcg_cuda)); }
