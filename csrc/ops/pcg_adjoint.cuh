// The adjoint of preconditioned conjugate gradients on a CUDA device: the iterations last to first, a few
// launches each. What an iteration adds to the gradients on patterns waits until there are several.
#pragma once

#include "kernels/pcg_adjoint.cuh"
#include "ops/pairs.cuh"
#include "ops/pcg.cuh"

namespace learnsolve {

// What is read and written. Null: not given, not needed.
template <class T>
struct DevicePcgAdjointOperands {
  const T *x0, *residuals, *directions, *last, *before, *scalars, *norms, *gx, *gnorms;
  T *rbar, *pbar, *bars, *ga, *gm, *gx0;
  bool begins;  // no call before this one; `before` is null for an empty vector too
};

template <class T, class I>
class DevicePcgAdjoint {
 public:
  DevicePcgAdjoint(const OnDevice& device_, const DeviceStructure& A, const DeviceStructure& St_,
                   const Tensor& transposed_, const DeviceFactor& factor_, const PcgSizes& p_,
                   const Tensor& values_, int64_t count_, bool packs,
                   const DevicePcgAdjointOperands<T>& operands)
      : device(device_),
        St(St_),
        transposed(transposed_),
        factor(factor_),
        applied(device_, factor_, p_),
        p(p_),
        like(values_),
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
    if (in.ga) gradient.emplace(device, like, A, p.k, p.batch, in.ga, p.values_step);
    if (in.gm && factor.rows)
      factor_gradient.emplace(device, like, *factor.rows, p.k, p.batch, in.gm, p.m_step);
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
    launch.pass(cuda::MakeCount<T>{xbar, read(rbar), read(pbar)}, chunks, partials());
    judge(cuda::Adjoining::learns, false, false, 0);
    for (int64_t i = count - 1; i >= 0; --i) step(i);
    if (!in.begins) {
      if (count > 0) judge(cuda::Adjoining::iteration, true, false, 0);
    } else {
      finish();
    }
    if (gradient) gradient->finish();
    if (factor_gradient) factor_gradient->finish();
  }

 private:
  const OnDevice& device;
  const DeviceStructure& St;
  const Tensor& transposed;  // values of A^T
  const DeviceFactor& factor;
  const AppliedDeviceFactor<T, I> applied;
  const PcgSizes& p;
  const Tensor& like;
  const int64_t count, nk;
  const DevicePcgAdjointOperands<T> in;
  const ChunkLaunch<T> launch;
  const cuda::Chunks chunks, wide;
  const Tensor sums, work, flags;
  const cuda::AdjointColumns<T> columns;
  const cuda::Vectors<T> rbar, pbar;
  const In<T> xbar;
  std::optional<DevicePairs<T, I>> gradient, factor_gradient;
  // Blocks of vectors of several iterations.
  struct Slots {
    std::optional<Tensor> tensor;
    int64_t size = 0, batch = 0;
    cuda::Vectors<T> operator[](int64_t i) const {
      return {mutable_data<T>(*tensor) + i % tensor->size(0) * batch * size, size};
    }
  };
  Slots qbar, zbar, z_of_r, z_of_zbar, first_of_r, first_of_zbar, zs, ys;

  Slots slots(int64_t number, int64_t rows) const {
    return {new_empty(like, Size{number, p.batch, rows * p.k}), rows * p.k, p.batch};
  }
  cuda::Partials<T> partials() const { return {{mutable_data<T>(sums), nullptr}}; }
  In<T> r_of(int64_t i) const {
    return i == count ? In<T>{in.last, nk} : In<T>{in.residuals + i * nk, count * nk};
  }
  In<T> p_of(int64_t i) const {
    return i < 0 ? In<T>{in.before, nk} : In<T>{in.directions + i * nk, count * nk};
  }

  void judge(cuda::Adjoining what, bool collects, bool prepares, int64_t i) const {
    const cuda::AdjointJudge<T> judged{columns, what,  collects,   prepares, !in.begins,
                                       i,       count, in.scalars, in.norms, in.gnorms};
    LS_LAUNCH(cuda::blocks_for(p.batch), cuda::kThreads, device.stream,
              (judged, p.batch, chunks.count, partials()), cuda::adjoint_judge_kernel<T>);
    STD_CUDA_CHECK(cudaGetLastError());
  }
  // a: kAdjointWork for 1.
  void combine(T sign, AdjointWork a, const In<T>& u, AdjointWork b, const In<T>& w,
               const cuda::Vectors<T>& out, const cuda::Chunks& by) const {
    launch.pass(cuda::MakeCombine<T>{columns, a, b, sign, u, w, out}, by, {});
  }
  void multiply(const DeviceStructure& S, const cuda::RowsOf<T, I>& rows, const In<T>& x,
                const cuda::Vectors<T>& y, const cuda::Chunks& by) const {
    launch.template product<I>(S, like, cuda::MakeProduct<T, I, 0>{rows, p.m_step, x, {}, y, nullptr}, y, by,
                               {});
  }
  void flush() {
    if (gradient) gradient->flush();
    if (factor_gradient) factor_gradient->flush();
  }

  // M^T zbar + rhobar z' for an M that is made of a factor; what waits in pairs goes to places number i.
  In<T> through_factor(const In<T>& next, int64_t i) {
    const cuda::Vectors<T> zb = zbar[i], y = first_of_r[i], ybar = first_of_zbar[i], out = zs[0];
    combine(1, kAdjointWork, read(pbar), kRhobarNow, next, zb, chunks);
    if (factor.lower) {
      const cuda::Vectors<T> z = z_of_r[i], v = z_of_zbar[i];
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
    const In<T> d = diagonal ? In<T>{data<T>(p.m), p.m_step} : In<T>{};
    cuda::Vectors<T> dbar = diagonal ? cuda::Vectors<T>{in.gm, p.m_step} : cuda::Vectors<T>{};
    if (dbar.p && (p.k > 1 || (p.batch > 1 && p.m_step == 0))) {
      row_sums(cuda::RowDots<T>{columns, read(pbar), next, dbar, p.n, p.batch});
      dbar = {};
    }
    if (r.p)
      launch.pass(
          cuda::MakeAdjointResidual<T, true>{columns, read(pbar), v, d, next, r, xbar, direction, rbar, dbar},
          chunks, partials());
    else
      launch.pass(
          cuda::MakeAdjointResidual<T, false>{columns, read(pbar), v, d, next, {}, xbar, {}, rbar, dbar},
          chunks, {});
  }
  void row_sums(const cuda::RowDots<T>& rows) const {
    const dim3 grid(cuda::blocks_for(p.n, cuda::kThreads / (p.k > 1 ? 8 : 1)), 1,
                    cuda::blocks_aside(rows.adds_up() ? 1 : p.batch));
    if (p.k > 1)
      LS_LAUNCH(grid, cuda::kThreads, device.stream, (rows), cuda::row_dots_kernel<8, T>);
    else
      LS_LAUNCH(grid, cuda::kThreads, device.stream, (rows), cuda::row_dots_kernel<1, T>);
    STD_CUDA_CHECK(cudaGetLastError());
  }

  void step(int64_t i) {
    const In<T> next = r_of(i + 1), r = r_of(i), direction = p_of(i);
    judge(cuda::Adjoining::iteration, i + 1 < count, true, i);
    through_residual(next, r, direction, i);
    judge(cuda::Adjoining::residual, false, false, i);
    const cuda::Vectors<T> q = qbar[i];
    combine(-1, kAlphaNow, read(rbar), kPibar, direction, q, chunks);
    if (i > 0 || !in.begins)
      turn<true>(q, r, next, p_of(i - 1));
    else
      turn<false>(q, r, next, {});
    if (gradient) gradient->add(read(q), direction);
    if (i % kPairs == 0) flush();
  }

  template <bool Sum>
  void turn(const cuda::Vectors<T>& q, const In<T>& r, const In<T>& next, const In<T>& before) {
    const cuda::MakeAdjointDirection<T, I, Sum> make{
        by_transpose(read(q)), columns, xbar, r, next, before, pbar};
    launch.template product<I>(St, like, make, product_room(), chunks, partials());
  }
  cuda::ByTranspose<T, I> by_transpose(const In<T>& x) const {
    return {{data<I>(St.ptr), data<I>(St.idx), data<T>(transposed)}, p.values_step, x};
  }
  // For products that are summed up apart.
  Slots made;
  cuda::Vectors<T> product_room() {
    if (sums_in_product(St)) return {};
    if (!made.tensor) made = slots(1, p.n);
    return made[0];
  }

  // Through z_0 = M r_0, r_0 = b - A x_0.
  void finish() {
    flush();  // places of what waits are free
    judge(cuda::Adjoining::iteration, false, true, -1);
    through_residual(r_of(0), {}, {}, 0);
    flush();
    if (gradient && in.x0) {
      const cuda::Vectors<T> q = qbar[0];
      combine(-1, kAdjointWork, read(rbar), kPibar, {}, q, chunks);
      gradient->add(read(q), {in.x0, nk});
    }
    if (!in.gx0) return;
    const cuda::MakeFirstIterate<T, I> make{by_transpose(read(rbar)), xbar, {in.gx0, nk}};
    launch.template product<I>(St, like, make, product_room(), chunks, {});
  }
};

}  // namespace learnsolve
