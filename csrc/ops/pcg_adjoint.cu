// csr_pcg_backward for CUDA tensors: the iterations last to first, a few launches each. What an iteration
// adds to the gradients on patterns waits until there are several.
#include "kernels/pcg_adjoint.cuh"
#include "kernels/sddmm_pairs.cuh"
#include "ops/pcg.cuh"
#include "ops/pcg_adjoint_sizes.h"

namespace learnsolve {
namespace {

using namespace cuda;

template <class T>
using In = Vectors<const T>;

template <class T>
In<T> read(const Vectors<T>& v) {
  return {v.p, v.step};
}

// out_p += <u_i, v_j> on the pattern of S for pairs (u, v) that stay where they are until flush.
template <class T, class I>
class DevicePairs {
 public:
  static constexpr int64_t kMost = EntryPairs<T, I>::kMost;

  DevicePairs(const OnDevice& device_, const DeviceStructure& S, int64_t k, int64_t batch, T* out,
              int64_t out_step)
      : device(device_), row(new_empty(S.idx, std::vector<int64_t>{S.nnz()})) {
    sums = {data<I>(row), data<I>(S.idx), S.nnz(), k, batch, out_step, out, {}, {}, 0};
    if (S.nnz() == 0) return;
    LS_LAUNCH(blocks_for(S.rows(), kThreads / 32), kThreads, device.stream,
              (data<I>(S.ptr), S.rows(), mutable_data<I>(row)), rows_of_entries_kernel<I>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
  void add(const In<T>& u, const In<T>& v) {
    sums.u[sums.count] = u, sums.v[sums.count] = v;
    if (++sums.count == kMost) flush();
  }
  void flush() {
    if (sums.count > 0 && sums.entries > 0) sums.k == 1 ? launch<1>() : launch<8>();
    sums.count = 0;
  }

 private:
  const OnDevice& device;
  const Tensor row;
  EntryPairs<T, I> sums;

  template <int Lanes>
  void launch() const {
    const dim3 grid(blocks_for(sums.entries, kThreads / Lanes), 1,
                    blocks_aside(sums.adds_up() ? 1 : sums.batch));
    LS_LAUNCH(grid, kThreads, device.stream, (sums), entry_pairs_kernel<Lanes, T, I>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
};

// What is read and written. Null: not there, not wanted.
template <class T>
struct DeviceOperands {
  const T *x0, *residuals, *directions, *last, *before, *scalars, *norms, *gx, *gnorms;
  T *rbar, *pbar, *bars, *ga, *gm, *gx0;
};

template <class T, class I>
class DeviceAdjoint {
 public:
  DeviceAdjoint(const OnDevice& device_, const DeviceStructure& A, const DeviceStructure& St_,
                const Tensor& transposed_, const DeviceFactor& factor_, const PcgSizes& p_,
                const Tensor& values_, const std::optional<Tensor>& m_, int64_t count_, bool packs,
                const DeviceOperands<T>& operands)
      : device(device_),
        St(St_),
        transposed(transposed_),
        factor(factor_),
        applied(device_, factor_, p_, m_),
        p(p_),
        like(values_),
        m(m_),
        count(count_),
        nk(p_.nk()),
        in(operands),
        launch{device_, p_.k, p_.batch, packs},
        chunks(p_.n),
        wide(factor_.width),
        sums(new_zeros(values_, Size{std::max(chunks.count, wide.count) * p_.batch * p_.k})),
        work(new_zeros(values_, Size{p_.batch, kAdjointWork, p_.k})),
        flags(new_int(values_, Size{p_.batch})),
        columns{in.bars, mutable_data<T>(work), static_cast<int*>(flags.data_ptr()), p_.k},
        rbar{in.rbar, nk},
        pbar{in.pbar, nk},
        xbar{in.gx, nk} {
    if (in.ga) gradient.emplace(device, A, p.k, p.batch, in.ga, p.values_step);
    if (in.gm && factor.rows) factor_gradient.emplace(device, *factor.rows, p.k, p.batch, in.gm, p.m_step);
    qbar = slots(kPairs, p.n);
    if (!factor.rows) return;
    // Two pairs an iteration: they wait half as long.
    const int64_t waiting = factor_gradient ? DevicePairs<T, I>::kMost / 2 : 1;
    for (auto* t : {&first_of_r, &first_of_zbar}) *t = slots(waiting, factor.width);
    zbar = slots(factor.lower ? 1 : waiting, p.n);
    if (factor.lower)
      for (auto* t : {&z_of_r, &z_of_zbar}) *t = slots(waiting, p.n);
    zs = slots(1, p.n), ys = slots(1, factor.width);
  }

  void run() {
    launch.pass(MakeCount<T>{xbar, read(rbar), read(pbar)}, chunks, partials());
    judge(Adjoining::learns, false, false, 0);
    for (int64_t i = count - 1; i >= 0; --i) step(i);
    if (in.before) {
      if (count > 0) judge(Adjoining::iteration, true, false, 0);
    } else {
      finish();
    }
    flush();
  }

 private:
  const OnDevice& device;
  const DeviceStructure& St;
  const Tensor& transposed;  // values of A^T
  const DeviceFactor& factor;
  const AppliedDeviceFactor<T, I> applied;
  const PcgSizes& p;
  const Tensor& like;
  const std::optional<Tensor>& m;
  const int64_t count, nk;
  const DeviceOperands<T> in;
  const ChunkLaunch<T> launch;
  const Chunks chunks, wide;
  const Tensor sums, work, flags;
  const AdjointColumns<T> columns;
  const Vectors<T> rbar, pbar;
  const In<T> xbar;
  std::optional<DevicePairs<T, I>> gradient, factor_gradient;
  // Blocks of vectors of several iterations.
  struct Slots {
    std::optional<Tensor> tensor;
    int64_t size = 0, batch = 0;
    Vectors<T> operator[](int64_t i) const {
      return {mutable_data<T>(*tensor) + i % tensor->size(0) * batch * size, size};
    }
  };
  Slots qbar, zbar, z_of_r, z_of_zbar, first_of_r, first_of_zbar, zs, ys;

  Slots slots(int64_t number, int64_t rows) const {
    return {new_empty(like, Size{number, p.batch, rows * p.k}), rows * p.k, p.batch};
  }
  Partials<T> partials() const { return {{mutable_data<T>(sums), nullptr}}; }
  In<T> r_of(int64_t i) const {
    return i == count ? In<T>{in.last, nk} : In<T>{in.residuals + i * nk, count * nk};
  }
  In<T> p_of(int64_t i) const {
    return i < 0 ? In<T>{in.before, nk} : In<T>{in.directions + i * nk, count * nk};
  }

  void judge(Adjoining what, bool collects, bool prepares, int64_t i) const {
    const AdjointJudge<T> judged{columns, what,  collects,   prepares, in.before != nullptr,
                                 i,       count, in.scalars, in.norms, in.gnorms};
    LS_LAUNCH(blocks_for(p.batch), kThreads, device.stream, (judged, p.batch, chunks.count, partials()),
              adjoint_judge_kernel<T>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
  // a: kAdjointWork for 1.
  void combine(T sign, AdjointWork a, const In<T>& u, AdjointWork b, const In<T>& w, const Vectors<T>& out,
               const Chunks& by) const {
    launch.pass(MakeCombine<T>{columns, a, b, sign, u, w, out}, by, {});
  }
  void multiply(const DeviceStructure& S, const RowsOf<T, I>& rows, const In<T>& x, const Vectors<T>& y,
                const Chunks& by) const {
    launch.template product<I>(S, like, MakeProduct<T, I, 0>{rows, p.m_step, x, {}, y, nullptr}, y, by, {});
  }
  void flush() {
    if (gradient) gradient->flush();
    if (factor_gradient) factor_gradient->flush();
  }

  // M^T zbar + rhobar z' for an M that is made of a factor; what waits in pairs goes to places number i.
  In<T> through_factor(const In<T>& next, int64_t i) {
    const Vectors<T> zb = zbar[i], y = first_of_r[i], ybar = first_of_zbar[i], out = zs[0];
    combine(1, kAdjointWork, read(pbar), kRhobarNow, next, zb, chunks);
    if (factor.lower) {
      const Vectors<T> z = z_of_r[i], v = z_of_zbar[i];
      applied.solve(true, next.p, next.step, y.p);
      applied.solve(true, zb.p, zb.step, ybar.p);
      applied.solve(false, y.p, y.step, z.p);
      applied.solve(false, ybar.p, ybar.step, v.p);
      combine(1, kAdjointWork, read(v), kRhobarNow, read(z), out, chunks);
      if (factor_gradient) factor_gradient->add(read(z), read(ybar)), factor_gradient->add(read(v), read(y));
    } else {
      // L (L^T zbar + rhobar L^T r'): one product for both.
      multiply(*factor.columns, applied.columns(), next, y, wide);
      multiply(*factor.columns, applied.columns(), read(zb), ybar, wide);
      combine(1, kAdjointWork, read(ybar), kRhobarNow, read(y), ys[0], wide);
      multiply(*factor.rows, applied.rows(), read(ys[0]), out, chunks);
      if (factor_gradient) factor_gradient->add(read(zb), read(y)), factor_gradient->add(next, read(ybar));
    }
    return read(out);
  }

  // rbar += all that comes through r' = next. With r, also the sums for alphabar.
  void through_residual(const In<T>& next, const In<T>& r, const In<T>& direction, int64_t i) {
    const bool diagonal = p.kind == Preconditioning::diagonal;
    const In<T> v = factor.rows ? through_factor(next, i) : In<T>{};
    const In<T> d = diagonal ? In<T>{data<T>(*m), p.m_step} : In<T>{};
    Vectors<T> dbar = diagonal ? Vectors<T>{in.gm, p.m_step} : Vectors<T>{};
    if (dbar.p && (p.k > 1 || (p.batch > 1 && p.m_step == 0))) {
      row_sums(RowDots<T>{columns, read(pbar), next, dbar, p.n, p.batch});
      dbar = {};
    }
    if (r.p)
      launch.pass(
          MakeAdjointResidual<T, true>{columns, read(pbar), v, d, next, r, xbar, direction, rbar, dbar},
          chunks, partials());
    else
      launch.pass(MakeAdjointResidual<T, false>{columns, read(pbar), v, d, next, {}, xbar, {}, rbar, dbar},
                  chunks, {});
  }
  void row_sums(const RowDots<T>& rows) const {
    const dim3 grid(blocks_for(p.n, kThreads / (p.k > 1 ? 8 : 1)), 1,
                    blocks_aside(rows.adds_up() ? 1 : p.batch));
    if (p.k > 1)
      LS_LAUNCH(grid, kThreads, device.stream, (rows), row_dots_kernel<8, T>);
    else
      LS_LAUNCH(grid, kThreads, device.stream, (rows), row_dots_kernel<1, T>);
    STD_CUDA_CHECK(cudaGetLastError());
  }

  void step(int64_t i) {
    const In<T> next = r_of(i + 1), r = r_of(i), direction = p_of(i);
    judge(Adjoining::iteration, i + 1 < count, true, i);
    through_residual(next, r, direction, i);
    judge(Adjoining::residual, false, false, i);
    const Vectors<T> q = qbar[i];
    combine(-1, kAlphaNow, read(rbar), kPibar, direction, q, chunks);
    if (i > 0 || in.before)
      turn<true>(q, r, next, p_of(i - 1));
    else
      turn<false>(q, r, next, {});
    if (gradient) gradient->add(read(q), direction);
    if (i % kPairs == 0) flush();
  }

  template <bool Sum>
  void turn(const Vectors<T>& q, const In<T>& r, const In<T>& next, const In<T>& before) {
    const MakeAdjointDirection<T, I, Sum> make{by_transpose(read(q)), columns, xbar, r, next, before, pbar};
    launch.template product<I>(St, like, make, product_room(), chunks, partials());
  }
  ByTranspose<T, I> by_transpose(const In<T>& x) const {
    return {{data<I>(St.ptr), data<I>(St.idx), data<T>(transposed)}, p.values_step, x};
  }
  // For products that are summed up apart.
  Slots made;
  Vectors<T> product_room() {
    if (sums_in_product(St)) return {};
    if (!made.tensor) made = slots(1, p.n);
    return made[0];
  }

  // Through z_0 = M r_0, r_0 = b - A x_0.
  void finish() {
    flush();  // places of what waits are free
    judge(Adjoining::iteration, false, true, -1);
    through_residual(r_of(0), {}, {}, 0);
    flush();
    if (gradient && in.x0) {
      const Vectors<T> q = qbar[0];
      combine(-1, kAdjointWork, read(rbar), kPibar, {}, q, chunks);
      gradient->add(read(q), {in.x0, nk});
    }
    if (!in.gx0) return;
    const MakeFirstIterate<T, I> make{by_transpose(read(rbar)), xbar, {in.gx0, nk}};
    launch.template product<I>(St, like, make, product_room(), chunks, {});
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> csr_pcg_backward_cuda(
    const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& tptr, const Tensor& tidx,
    const Tensor& tperm_, const Tensor& tblocks, const Tensor& values_, int64_t kind,
    const std::optional<Tensor>& m_, const std::vector<Tensor>& factor_, const std::optional<Tensor>& x0_,
    const Tensor& residuals_, const Tensor& directions_, const Tensor& last_,
    const std::optional<Tensor>& before_, const Tensor& scalars_, const Tensor& norms_,
    const std::optional<Tensor>& gx_, const std::optional<Tensor>& gnorms_,
    const std::optional<Tensor>& rbar_, const std::optional<Tensor>& pbar_,
    const std::optional<Tensor>& bars_, const std::optional<Tensor>& ga_, const std::optional<Tensor>& gm_,
    bool need_values, bool need_m, bool need_x0) {
  const char* name = "csr_pcg_backward";
  const PcgAdjointTensors in{dense(values_),
                             dense(m_),
                             dense(x0_),
                             dense(residuals_),
                             dense(directions_),
                             dense(last_),
                             dense(before_),
                             dense(scalars_),
                             dense(norms_),
                             dense(gx_),
                             dense(gnorms_),
                             dense(rbar_),
                             dense(pbar_),
                             dense(bars_),
                             need_values ? dense(ga_) : std::optional<Tensor>(),
                             need_m ? dense(gm_) : std::optional<Tensor>()};
  const Tensor tperm = dense(tperm_);
  const DeviceStructure S(name, in.values, ptr, idx, std::nullopt, blocks);
  check_indices(name, tptr, tidx, tperm, tblocks);
  const DeviceStructure St(name, in.values, tptr, tidx, std::nullopt, tblocks);
  check_device(name, in.values, {&in.residuals, &in.directions, &in.last, &in.scalars, &in.norms, &tperm});
  for (const auto* t :
       {&in.m, &in.x0, &in.before, &in.gx, &in.gnorms, &in.rbar, &in.pbar, &in.bars, &in.ga, &in.gm})
    if (*t) check_device(name, in.values, {&**t});
  const PcgSizes p(name, S, in.values, kind, in.m, in.last);
  const DeviceFactor factor(name, p, in.values, in.m, factor_, S.idx);
  const PcgAdjointSizes out(name, S, St, p, in, need_values, need_m, need_x0);
  const int64_t count = out.count, nk = p.nk();

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
    const Tensor transposed = reordered<T, I>(device, tperm, in.values);
    // Blocks of n and of `width` rows lie one behind another.
    bool packs = (nk % kPack<T> == 0 && factor.width * p.k % kPack<T> == 0) || (p.batch == 1 && count <= 1);
    for (const Tensor* t : {&in.residuals, &in.directions, &in.last})
      packs = packs && takes_packs(data<T>(*t));
    for (const auto* t : {&in.x0, &in.before, &in.gx})
      if (*t) packs = packs && takes_packs(data<T>(**t));
    const DeviceOperands<T> operands{
        data<T>(in.x0),
        data<T>(in.residuals),
        data<T>(in.directions),
        data<T>(in.last),
        data<T>(in.before),
        data<T>(in.scalars),
        data<T>(in.norms),
        data<T>(in.gx),
        data<T>(in.gnorms),
        mutable_data<T>(rbar),
        mutable_data<T>(pbar),
        mutable_data<T>(bars),
        need_values ? mutable_data<T>(ga) : nullptr,
        out.gives_m ? mutable_data<T>(gm) : nullptr,
        out.gives_x0 ? mutable_data<T>(gx0) : nullptr,
    };
    DeviceAdjoint<T, I>(device, S, St, transposed, factor, p, in.values, in.m, count, packs, operands).run();
  });
  return {rbar, pbar, bars, ga, gm, gx0};
}

}  // namespace learnsolve

LS_OPERATORS(m) { m.impl("csr_pcg_backward", TORCH_BOX(&learnsolve::csr_pcg_backward_cuda)); }
