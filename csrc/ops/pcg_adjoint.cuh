// The adjoint of preconditioned conjugate gradients on a CUDA device: the iterations last to first, a few
// launches each. What an iteration adds to the gradients on patterns waits until there are several.
#pragma once

#include "kernels/pcg_adjoint.cuh"
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
                   const DeviceFactor& factor_, const PcgSizes& p_, const Tensor& values, int64_t count_,
                   const DevicePcgAdjointOperands<T>& operands)
      : device(device_),
        St(device_, St_, values, p_.values_step),
        factor(device_, factor_, p_),
        p(p_),
        like(values),
        count(count_),
        nk(p_.nk()),
        in(operands),
        launch{device_, p_.k, p_.batch},
        chunks(p_.n),
        wide(factor_.width),
        sums(new_empty(values, Size{chunks.count, p_.batch, p_.k})),
        work(new_zeros(values, Size{p_.batch, kAdjointWork, p_.k})),
        flags(new_int(values, Size{p_.batch})),
        columns{in.bars, mutable_data<T>(work), static_cast<int*>(flags.data_ptr()), p_.k},
        rbar{in.rbar, nk},
        pbar{in.pbar, nk},
        xbar{in.gx, nk} {
    const bool diagonal = p.kind == Preconditioning::diagonal;
    if (in.ga) gradient.emplace(device, like, A, p.k, p.batch, in.ga, p.values_step);
    if (in.gm && diagonal) row_sums.emplace(device, like, in.gm, p.m_step, p.n, p.n, p.k, p.batch);
    if (in.gm && factor.rows)
      factor_gradient.emplace(device, like, factor.of.rows.value(), p.k, p.batch, in.gm, p.m_step);
    qbar = slots(kPairs, p.n);
    if (!St.ends_in_pass()) made = slots(1, p.n);
    if (!factor.rows) return;
    // Two pairs an iteration: they wait half as long.
    const int64_t waiting = factor_gradient ? DevicePairs<T, I>::kMost / 2 : 1;
    for (auto* t : {&first_of_r, &first_of_zbar}) *t = slots(waiting, factor.of.width);
    zbar = slots(factor.of.lower ? 1 : waiting, p.n);
    if (factor.of.lower)
      for (auto* t : {&z_of_r, &z_of_zbar}) *t = slots(waiting, p.n);
    zs = slots(1, p.n), ys = slots(1, factor.of.width);
  }

  void run() {
    launch.pass(cuda::CountPass<T>{xbar, rbar, pbar}, chunks, partials());
    judge(cuda::Adjoining::learns, false, false, 0);
    for (int64_t i = count - 1; i >= 0; --i) step(i);
    if (in.begins)
      finish();
    else if (count > 0)
      judge(cuda::Adjoining::iteration, true, false, 0);
    if (gradient) gradient->finish();
    if (factor_gradient) factor_gradient->finish();
    if (row_sums) row_sums->finish();
  }

 private:
  // Blocks of vectors of several iterations.
  struct Slots {
    std::optional<Tensor> tensor;
    int64_t size = 0, batch = 0;
    Out<T> operator[](int64_t i) const {
      if (!tensor) return {};
      return {mutable_data<T>(*tensor) + i % tensor->size(0) * batch * size, size};
    }
  };
  const OnDevice& device;
  const LoopMatrix<T, I> St;
  const AppliedFactor<T, I> factor;
  const PcgSizes& p;
  const Tensor& like;
  const int64_t count, nk;
  const DevicePcgAdjointOperands<T> in;
  const ChunkLaunch<T> launch;
  const cuda::Chunks chunks, wide;
  const Tensor sums, work, flags;
  const cuda::AdjointColumns<T> columns;
  const Out<T> rbar, pbar;
  const In<T> xbar;
  std::optional<DevicePairs<T, I>> gradient, factor_gradient;
  std::optional<RowSums<T>> row_sums;
  Slots qbar, made, zbar, z_of_r, z_of_zbar, first_of_r, first_of_zbar, zs, ys;

  Slots slots(int64_t number, int64_t rows) const {
    return {new_empty(like, Size{number, p.batch, rows * p.k}), rows * p.k, p.batch};
  }
  cuda::Partials<T> partials() const { return {{mutable_data<T>(sums)}}; }
  In<T> row(AdjointWork of) const { return columns.row(of); }
  In<T> r_of(int64_t i) const {
    return i == count ? In<T>{in.last, nk} : In<T>{in.residuals + i * nk, count * nk};
  }
  In<T> p_of(int64_t i) const {
    return i < 0 ? In<T>{in.before, nk} : In<T>{in.directions + i * nk, count * nk};
  }

  void judge(cuda::Adjoining what, bool collects, bool prepares, int64_t i) const {
    const cuda::AdjointJudge<T> judge{columns, what,  collects,   prepares, !in.begins,
                                      i,       count, in.scalars, in.norms, in.gnorms};
    judge_columns(device, judge, p.batch, chunks, partials());
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
    if (factor.of.lower) {
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
    if (row_sums) row_sums->add(row(kActs), row(kRhobarNow), pbar, next);
    const In<T> d = diagonal ? In<T>{data<T>(p.m), p.m_step} : In<T>{};
    launch.pass(
        cuda::AdjointResidualPass<T>{row(kActs), row(kRhobarNow), row(kNormbar), row(kInverse), pbar, v, d,
                                     next, r, xbar, xbar.p ? direction : In<T>{}, rbar, columns.flags},
        chunks, partials());
  }

  void step(int64_t i) {
    const In<T> next = r_of(i + 1), r = r_of(i), direction = p_of(i);
    const bool more = i > 0 || !in.begins;
    const Out<T> q = qbar[i];
    judge(cuda::Adjoining::iteration, i + 1 < count, true, i);
    through_residual(next, r, direction, i);
    judge(cuda::Adjoining::residual, false, false, i);
    combine(-1, kAlphaNow, rbar, kPibar, direction, q, chunks);
    const cuda::AdjointDirectionPass<T> end{
        row(kActs), row(kBetaNow), row(kAlphaNow), row(kTurned), xbar, r, next, more ? p_of(i - 1) : In<T>{},
        pbar,       columns.flags};
    launch.product(St, q, end, made[0], chunks, partials());
    if (gradient) gradient->add(q, direction);
    if (i % kPairs == 0) flush();
  }

  // Through z_0 = M r_0, r_0 = b - A x_0.
  void finish() {
    flush();  // places of what waits are free
    judge(cuda::Adjoining::iteration, false, true, -1);
    through_residual(r_of(0), {}, {}, 0);
    flush();
    if (gradient && in.x0) {
      combine(-1, kAdjointWork, rbar, kPibar, {}, qbar[0], chunks);
      gradient->add(qbar[0], {in.x0, nk});
    }
    if (!in.gx0) return;
    const Out<T> gx0{in.gx0, nk};
    launch.product(St, rbar, cuda::FirstIteratePass<T>{xbar, gx0}, gx0, chunks);
  }
};

}  // namespace learnsolve
