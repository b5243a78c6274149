// The adjoint of preconditioned conjugate gradients for one matrix (formulas: kernels/pcg.h), on the
// columns that have a cotangent.
#include "kernels/pcg_column.cuh"
#include "ops/host.h"
#include "ops/pcg.h"
#include "ops/solves.h"

namespace learnsolve {

// What is read and written for one matrix. Null: not given, not needed.
template <class T>
struct PcgAdjointOperands {
  const T *values, *m, *x0, *residuals, *directions, *last, *before, *scalars, *norms, *gx, *gnorms;
  T *rbar, *pbar, *bars, *ga, *gm, *gx0;
  bool begins;  // no call before this one; `before` is null for an empty vector too
};

template <class T, class I>
class PcgAdjoint {
 public:
  PcgAdjoint(const Structure& S_, const Structure& St_, const PcgSizes& p_, const Factor& factor_,
             int64_t iterations, const PcgAdjointOperands<T>& a)
      : S(S_),
        St(St_),
        p(p_),
        factor(factor_),
        applied(factor_, a.m),
        count(iterations),
        in(a),
        columns(p_.n, p_.k) {}

  void run() {
    choose_columns();
    k = columns.count;
    if (k == 0) return;
    nk = p.n * k;
    compact = columns.some();
    if (compact) {
      own_rbar.resize(nk), own_pbar.resize(nk);
      columns.take(in.rbar, own_rbar.data()), columns.take(in.pbar, own_pbar.data());
      if (in.gx) own_gx.resize(nk), columns.take(in.gx, own_gx.data());
    }
    rbar = compact ? own_rbar.data() : in.rbar;
    pbar = compact ? own_pbar.data() : in.pbar;
    xbar = !in.gx ? nullptr : compact ? own_gx.data() : in.gx;
    qbar.emplace(kPairs, nk);
    work.resize(kAdjointWork * k), minus_alpha.resize(k);
    ones.assign(k, T(1)), zeros.assign(k, T(0));
    // With several columns one pass makes A^T qbar and adds the gradient: it loads each row of qbar once for
    // both, which takes half the time of two passes for 2 to 16 columns.
    fused = k > 1 && in.ga;
    if (!fused) transposed = transposed_values<T, I>(St, in.values);
    if (in.ga) gradient.emplace(Pairs<T, I>{S, k, in.ga, {}, {}});
    if (in.gm && factor.rows) factor_gradient.emplace(Pairs<T, I>{*factor.rows, k, in.gm, {}, {}});
    for (int64_t i = count - 1; i >= 0; --i) step(i);
    if (in.begins) finish();
    if (gradient) gradient->flush();
    if (factor_gradient) factor_gradient->flush();
    if (compact) columns.put(own_rbar.data(), in.rbar), columns.put(own_pbar.data(), in.pbar);
  }

 private:
  const Structure &S, &St;
  const PcgSizes& p;
  const Factor& factor;
  const AppliedFactor<T, I> applied;
  const int64_t count;
  const PcgAdjointOperands<T> in;
  const Kernels<T, I>& table = kernels().get<T, I>();
  std::vector<T> transposed;  // values of A^T, for one column
  LearningColumns columns;
  std::vector<int64_t> of_all;  // which they are
  int64_t k = 0, nk = 0;        // of these
  bool compact = false, fused = false;
  std::vector<T> own_rbar, own_pbar, own_gx, qs, ys, zs;
  std::vector<T> work, minus_alpha, ones, zeros;
  T *rbar = nullptr, *pbar = nullptr;
  const T* xbar = nullptr;
  Sums<T> sums;
  std::optional<Pairs<T, I>> gradient, factor_gradient;
  std::optional<Ring<T>> qbar, zbar, first_of_r, first_of_zbar, z_of_r, z_of_zbar;
  // Compact copies of r and p. Those of kPairs iterations wait in pairs, and one more is in work.
  std::optional<Ring<T>> some_r, some_p;
  int64_t taken_r = -1, taken_p = -1;  // lowest iterations that they hold

  template <class F>
  void blocks(const F& f) {
    parallel_blocks<I>(S, k, f);
  }
  const T* now(AdjointWork row) const { return work.data() + row * k; }
  // Column j of those chosen, in iteration i; i = -1: of the first residual, which has no scalars.
  PcgAdjointColumn<T> column(int64_t i, int64_t j) {
    const int64_t c = of_all[j], norm = (i + in.begins) * p.k + c;
    return {in.bars + c,
            work.data() + j,
            in.scalars + std::max<int64_t>(i, 0) * kScalars * p.k + c,
            in.norms + norm,
            in.gnorms ? in.gnorms + norm : nullptr,
            p.k,
            k};
  }

  void choose_columns() {
    columns.look(in.gnorms, count + in.begins);
    columns.look(in.bars, kBars);
    for (const T* v : {static_cast<const T*>(in.rbar), static_cast<const T*>(in.pbar), in.gx})
      columns.look(v, p.n);
    columns.choose();
    for (int64_t j = 0; j < columns.count; ++j) of_all.push_back(columns.column(j));
  }
  // r or p of iteration i.
  const T* of_iteration(const T* slots, const T* last, int64_t i, std::optional<Ring<T>>& some,
                        int64_t& taken) {
    const T* v = i == count ? last : i < 0 ? in.before : slots + i * p.n * p.k;
    if (!compact) return v;
    if (!some) some.emplace(kPairs + 2, nk);
    T* own = (*some)[i + 1];
    if (taken < 0 || i + 1 < taken) columns.take(v, own), taken = i + 1;
    return own;
  }
  const T* r_of(int64_t i) { return of_iteration(in.residuals, in.last, i, some_r, taken_r); }
  const T* p_of(int64_t i) { return of_iteration(in.directions, nullptr, i, some_p, taken_p); }

  CsrView<T, I> adjoint_view() const {
    if (transposed.empty()) return St.view<T, I>(in.values);
    return {data<I>(St.ptr), data<I>(St.idx), nullptr, transposed.data()};
  }

  void combine(const T* a, const T* u, const T* b, const T* w, T* out) {
    blocks(
        [&](int64_t b0, int64_t b1) { table.pcg_combine(S.row_blocks<I>(), b0, b1, {a, u, b, w, out}, k); });
  }

  // M^T zbar + rhobar z' for an M that is made of a factor; i numbers the places of what waits in pairs.
  const T* through_factor(const T* next, int64_t i) {
    for (auto* ring : {&zbar, &z_of_r, &z_of_zbar})
      if (!*ring) ring->emplace(kPairs + 1, nk);
    for (auto* ring : {&first_of_r, &first_of_zbar})
      if (!*ring) ring->emplace(kPairs + 1, factor.width * k);
    T* zb = (*zbar)[i];
    T* y = (*first_of_r)[i];
    T* ybar = (*first_of_zbar)[i];
    combine(ones.data(), pbar, now(kRhobarNow), next, zb);
    applied.first(next, k, y);
    applied.first(zb, k, ybar);
    zs.resize(nk);
    if (factor.lower) {
      T* z = (*z_of_r)[i];
      T* v = (*z_of_zbar)[i];
      applied.second(y, k, z);
      applied.second(ybar, k, v);
      combine(ones.data(), v, now(kRhobarNow), z, zs.data());
      if (factor_gradient) factor_gradient->add(z, ybar), factor_gradient->add(v, y);
    } else {
      // L (L^T zbar + rhobar L^T r'): one product for both.
      ys.resize(factor.width * k);
      const Structure& columns_of_l = *factor.columns;
      parallel_blocks<I>(columns_of_l, k, [&](int64_t b0, int64_t b1) {
        table.pcg_combine(columns_of_l.row_blocks<I>(), b0, b1,
                          {ones.data(), ybar, now(kRhobarNow), y, ys.data()}, k);
      });
      applied.second(ys.data(), k, zs.data());
      if (factor_gradient) factor_gradient->add(zb, y), factor_gradient->add(next, ybar);
    }
    return zs.data();
  }

  // rbar += all that comes through r' = next. With r, also the sums for alphabar.
  void through_residual(const T* next, const T* r, const T* direction, int64_t i) {
    const bool diagonal = p.kind == Preconditioning::diagonal;
    const T* v = factor.rows ? through_factor(next, i) : nullptr;
    T* dbar = diagonal ? in.gm : nullptr;
    if (diagonal && !dbar) unused.resize(p.n), dbar = unused.data();
    T* sum = sums.room(S.n_blocks(), k);
    blocks([&](int64_t b0, int64_t b1) {
      table.pcg_adjoint_residual(S.row_blocks<I>(), b0, b1,
                                 {now(kRhobarNow), now(kNormbar), now(kInverse), pbar, v,
                                  diagonal ? in.m : nullptr, next, r, xbar, direction, rbar, dbar, sum},
                                 k);
    });
  }
  std::vector<T> unused;

  void step(int64_t i) {
    bool any = false;
    for (int64_t j = 0; j < k; ++j) {
      const PcgAdjointColumn<T> known = column(i, j);
      known.prepare(true);
      any = any || known.acts();
      minus_alpha[j] = -known.now(kAlphaNow);
    }
    if (!any) return;
    const T* next = r_of(i + 1);
    const T* r = r_of(i);
    const T* direction = p_of(i);
    through_residual(next, r, direction, i);
    for (int64_t j = 0; j < k; ++j) column(i, j).residual(static_cast<T>(sums.total(S.n_blocks(), k, j)));
    T* q = (*qbar)[i];
    combine(minus_alpha.data(), rbar, now(kPibar), direction, q);
    const T* before = i > 0 || !in.begins ? p_of(i - 1) : nullptr;
    T* sum = sums.room(St.n_blocks(), k);
    parallel_blocks<I>(St, k, [&](int64_t b0, int64_t b1) {
      table.pcg_adjoint_direction(
          adjoint_view(), St.row_blocks<I>(), b0, b1,
          {now(kBetaNow), now(kAlphaNow), now(kAlphabarTerm), q, xbar, r, next, before, pbar, sum}, k,
          direction, fused ? in.ga : nullptr);
    });
    for (int64_t j = 0; j < k; ++j)
      column(i, j).direction(before ? static_cast<T>(sums.total(St.n_blocks(), k, j)) : T(0));
    if (gradient && !fused) gradient->add(q, direction);
    if (i % kPairs == 0) {
      if (gradient) gradient->flush();
      if (factor_gradient) factor_gradient->flush();
    }
  }

  // Through z_0 = M r_0, r_0 = b - A x_0.
  void finish() {
    const T* r = r_of(0);
    for (int64_t j = 0; j < k; ++j) column(-1, j).first(true);
    through_residual(r, nullptr, nullptr, kPairs);
    if (gradient) gradient->flush();
    if (factor_gradient) factor_gradient->flush();
    if (gradient && in.x0) {
      T* q = (*qbar)[0];
      std::vector<T> minus(k, T(-1)), x0;
      combine(minus.data(), rbar, zeros.data(), rbar, q);
      if (compact) x0.resize(nk), columns.take(in.x0, x0.data());
      gradient->add(q, compact ? x0.data() : in.x0);
      gradient->flush();
    }
    if (!in.gx0) return;
    std::vector<T> product(nk), minus(k, T(-1)), out(nk);
    parallel_blocks<I>(St, k, [&](int64_t b0, int64_t b1) {
      table.spmm(St.view<T, I>(in.values), St.row_blocks<I>(), b0, b1, rbar, k, product.data(), false);
    });
    combine(minus.data(), product.data(), (xbar ? ones : zeros).data(), xbar ? xbar : product.data(),
            out.data());
    if (compact)
      columns.put(out.data(), in.gx0);
    else
      std::copy(out.begin(), out.end(), in.gx0);
  }
};

// csr_pcg_backward: checks, results, and the adjoint of each matrix of a batch.

namespace {

// Where the members of a batch add to a gradient of `size` numbers, or, `step` = 0, to one for all of them.
template <class T>
class MemberSums {
 public:
  MemberSums(T* out_, int64_t size_, int64_t step_, int64_t batch_)
      : out(out_), size(size_), step(step_), batch(batch_) {
    if (out && step == 0 && batch > 1) own.assign(batch * size, T(0));
  }
  T* of(int64_t b) { return own.empty() ? (out ? out + b * step : nullptr) : own.data() + b * size; }
  void add_up() {
    for (auto from = own.begin(); from != own.end(); from += size)
      for (int64_t e = 0; e < size; ++e) out[e] += from[e];
  }

 private:
  T* out;
  int64_t size, step, batch;
  std::vector<T> own;
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> csr_pcg_backward(
    const std::vector<Tensor>& A, const std::vector<Tensor>& transpose, const Tensor& values, int64_t kind,
    const std::vector<Tensor>& M, const std::optional<Tensor>& x0, const std::vector<Tensor>& forward,
    const std::optional<Tensor>& gx, const std::optional<Tensor>& gnorms, const std::vector<Tensor>& sums,
    const std::vector<int64_t>& needs) {
  const char* name = "csr_pcg_backward";
  const Structure S(name, A), St(name, transpose);
  const PcgAdjointTensors in(name, values, x0, forward, gx, gnorms, sums, needs);
  const PcgSizes p(name, S, in.values, kind, M, in.last);
  check_device(name, in.values, {&S.idx, &St.idx});
  const Factor factor(name, p, M, S);
  St.check_columns(p.n);
  const PcgAdjointSizes out(name, S, St, p, in, needs);
  const int64_t count = out.count, counted = out.counted, nk = p.nk();

  // What is carried on is copied: an operator must not write to its arguments.
  const auto continued = [&](const std::optional<Tensor>& from, const Size& size) {
    if (!from) return new_zeros(in.values, size);
    Tensor t = new_empty(in.values, size);
    if (t.numel() > 0) std::memcpy(t.data_ptr(), from->data_ptr(), t.numel() * t.element_size());
    return t;
  };
  Tensor rbar = continued(in.rbar, out.vector), pbar = continued(in.pbar, out.vector),
         bars = continued(in.bars, out.bars), ga = continued(in.ga, out.values), gm = continued(in.gm, out.m),
         gx0 = new_zeros(in.values, out.x0);
  dispatch(name, in.values, S.idx, [&]<class T, class I>() {
    // Members that share a matrix have sums of their own, added up in order: the same bits for any number of
    // threads.
    MemberSums<T> of_values(out.gives_values ? mutable_data<T>(ga) : nullptr, S.nnz(), p.values_step,
                            p.batch),
        of_m(out.gives_m ? mutable_data<T>(gm) : nullptr, gm.numel(), p.m_step, p.batch);
    const auto at = [](const std::optional<Tensor>& t, int64_t offset) {
      return t ? data<T>(*t) + offset : nullptr;
    };
    parallel_members(p.batch, p.work(S), 2 * count + 1, [&](int64_t b) {
      const PcgAdjointOperands<T> operands{
          data<T>(in.values) + b * p.values_step,
          at(p.m, b * p.m_step),
          at(in.x0, b * nk),
          data<T>(in.residuals) + b * count * nk,
          data<T>(in.directions) + b * count * nk,
          data<T>(in.last) + b * nk,
          at(in.before, b * nk),
          data<T>(in.scalars) + b * count * kScalars * p.k,
          data<T>(in.norms) + b * counted * p.k,
          at(in.gx, b * nk),
          at(in.gnorms, b * counted * p.k),
          mutable_data<T>(rbar) + b * nk,
          mutable_data<T>(pbar) + b * nk,
          mutable_data<T>(bars) + b * kBars * p.k,
          of_values.of(b),
          of_m.of(b),
          out.gives_x0 ? mutable_data<T>(gx0) + b * nk : nullptr,
          !in.before,
      };
      PcgAdjoint<T, I>(S, St, p, factor, count, operands).run();
    });
    of_values.add_up(), of_m.add_up();
  });
  return {rbar, pbar, bars, ga, gm, gx0};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_pcg_backward", TORCH_BOX(&learnsolve::csr_pcg_backward));
}
