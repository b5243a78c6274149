// Preconditioned conjugate gradients, any number of iterations in one call.
#include "ops/solves.h"

namespace learnsolve {
namespace {

template <class T>
void clear_column(T* v, int64_t n, int64_t k, int64_t c) {
  for (int64_t i = 0; i < n; ++i) v[i * k + c] = 0;
}

// The iterations of one matrix.
template <class T, class I>
struct Iteration {
  const Structure& S;
  const PcgSizes& p;
  const AppliedFactor<T, I> factor;
  const int64_t width;
  const T* values;
  const T* m;
  T* carry;
  std::vector<T> q, z, w, work;
  const Splitting<T, I>* split;    // of A, or null; then
  std::vector<T> t, h;             // K^-1 r and D^-1 K^T p
  std::vector<T> first_rho, ones;  // rho when t was computed last
  T *alpha, *beta, *keep;          // rows of work
  Sums<T> first_sums, second_sums;
  const Kernels<T, I>& table = kernels().get<T, I>();

  Iteration(const Structure& S_, const PcgSizes& p_, const Factor& factor_, const T* values_, const T* m_,
            T* carry_, const Splitting<T, I>* split_)
      : S(S_),
        p(p_),
        factor(factor_, m_),
        width(factor_.width),
        values(values_),
        m(m_),
        carry(carry_),
        q(p.nk()),
        work(kWork * p.k),
        split(split_),
        alpha(work.data() + kCurrentAlpha * p.k),
        beta(work.data() + kCurrentBeta * p.k),
        keep(work.data() + kContinues * p.k) {}

  PcgColumn<T> column(int64_t c, int64_t iteration, T* norms, T* scalars) {
    return {carry + c, work.data() + c, scalars ? scalars + c : nullptr, norms + c, p.k, iteration};
  }
  bool any_runs() const {
    return std::any_of(carry + kStop * p.k, carry + (kStop + 1) * p.k, [](T stop) { return stop == T(0); });
  }
  template <class F>
  void blocks(const F& f) {
    parallel_blocks<I>(S, p.k, f);
  }
  const T* diagonal() const { return p.kind == Preconditioning::diagonal ? m : nullptr; }

  // out = r - alpha q and its norms; of columns that run.
  void residual(const T* r, const T* qs, T* out) { residual(alpha, r, qs, diagonal(), out); }
  void residual(const T* a, const T* r, const T* qs, const T* weights, T* out) {
    T* squares = first_sums.room(S.n_blocks(), p.k);
    T* rho = second_sums.room(S.n_blocks(), p.k);
    blocks([&](int64_t b0, int64_t b1) {
      table.pcg_residual(S.row_blocks<I>(), b0, b1, {a, r, qs, weights, out, squares, rho}, p.k);
    });
  }
  T norm(int64_t c) const { return static_cast<T>(std::sqrt(first_sums.total(S.n_blocks(), p.k, c))); }

  // z = M r and rho = <r, z> where it is not known yet.
  const T* precondition(const T* r) {
    if (p.kind == Preconditioning::none || p.kind == Preconditioning::diagonal) return r;
    if (split) return begin_split(r), nullptr;
    z.resize(p.nk()), w.resize(width * p.k);
    factor.first(r, p.k, w.data());
    factor.second(w.data(), p.k, z.data());
    T* rho = second_sums.room(S.n_blocks(), p.k);
    blocks(
        [&](int64_t b0, int64_t b1) { table.pcg_dot(S.row_blocks<I>(), b0, b1, {r, z.data(), rho}, p.k); });
    return z.data();
  }
  T rho(int64_t c) const {
    const Sums<T>& sums = p.kind == Preconditioning::none ? first_sums : second_sums;
    return static_cast<T>(sums.total(S.n_blocks(), p.k, c));
  }

  // t = K^-1 r and rho.
  void begin_split(const T* r) {
    t.resize(p.nk());
    split->solve(r, p.k, t.data());
    const std::vector<T> zeros(p.k);
    residual(zeros.data(), t.data(), t.data(), split->s.get(), t.data());
    first_rho.resize(p.k);
    for (int64_t c = 0; c < p.k; ++c) first_rho[c] = rho(c);
  }
  // The errors of t are those of its largest value: it is computed again before they show.
  bool has_shrunk() const {
    for (int64_t c = 0; c < p.k; ++c)
      if (carry[kStop * p.k + c] == T(0) && rho(c) < std::sqrt(kEpsilon<T>) * first_rho[c]) return true;
    return false;
  }
  void resume_split(const T* r, const T* d) {
    begin_split(r);
    h.resize(p.nk());
    split->multiply(d, p.k, h.data());
  }

  // next = z + beta p, x += alpha p for every column.
  void update(const T* zs, const T* d, T* x, T* next) {
    if (split) return update_split(d, x, next);
    blocks([&](int64_t b0, int64_t b1) {
      table.pcg_update(S.row_blocks<I>(), b0, b1, {alpha, beta, keep, zs, diagonal(), d, x, next}, p.k);
    });
  }

  void update_split(const T* d, T* x, T* next) {
    h.resize(p.nk()), ones.assign(p.k, T(1));
    blocks([&](int64_t b0, int64_t b1) {
      const PcgUpdate<T> turn{alpha,    beta,    keep,    t.data(), split->s_over_d.get(),
                              h.data(), nullptr, h.data()};
      table.pcg_update(S.row_blocks<I>(), b0, b1, turn, p.k);
      if (x) table.pcg_combine(S.row_blocks<I>(), b0, b1, {alpha, d, ones.data(), x, x}, p.k);
    });
    split->direction(h.data(), p.k, next);
  }

  // r = b - A x (b if x is none), p = M r.
  void begin(const T* b, const T* x, const T* target, T* r, T* direction, T* norms) {
    if (x) {
      residual(b, b, r);
      for (int64_t c = 0; c < p.k; ++c) column(c, -1, norms, nullptr).now(kRhsNorm) = norm(c);
      std::fill_n(alpha, p.k, T(1));
      blocks([&](int64_t b0, int64_t b1) {
        table.spmm(S.view<T, I>(values), S.row_blocks<I>(), b0, b1, x, p.k, q.data(), false);
      });
    }
    residual(b, x ? q.data() : b, r);
    for (int64_t c = 0; c < p.k; ++c) {
      const PcgColumn<T> known = column(c, -1, norms, nullptr);
      known.begin(norm(c), target ? target + c : nullptr);
      if (known.now(kClearR) != T(0)) clear_column(r, p.n, p.k, c);
    }
    const T* zs = precondition(r);
    for (int64_t c = 0; c < p.k; ++c) column(c, -1, norms, nullptr).advance(rho(c));
    update(zs, zs, nullptr, direction);
  }

  // Iteration number `iteration`: from r and d to `next_r`, `next_d`, x.
  void step(int64_t iteration, T* x, const T* r, T* d, T* next_r, T* next_d, T* norms, T* scalars) {
    T* curvature = first_sums.room(S.n_blocks(), p.k);
    if (split) z.resize(p.nk()), split->product(d, h.data(), p.k, q.data(), z.data());
    blocks([&](int64_t b0, int64_t b1) {
      if (split)
        table.pcg_dot(S.row_blocks<I>(), b0, b1, {d, q.data(), curvature}, p.k);
      else
        table.spmm_dot(S.view<T, I>(values), S.row_blocks<I>(), b0, b1, d, d, p.k, q.data(), curvature);
    });
    for (int64_t c = 0; c < p.k; ++c) {
      const PcgColumn<T> known = column(c, iteration, norms, scalars);
      known.product(static_cast<T>(first_sums.total(S.n_blocks(), p.k, c)));
      if (known.now(kClearP) == T(0)) continue;
      clear_column(q.data(), p.n, p.k, c);
      clear_column(d, p.n, p.k, c);
    }
    if (split) residual(alpha, t.data(), z.data(), split->s.get(), t.data());
    residual(r, q.data(), next_r);
    for (int64_t c = 0; c < p.k; ++c) {
      const PcgColumn<T> known = column(c, iteration, norms, scalars);
      known.residual(norm(c));
      // It is still multiplied by zeros, so it must be finite.
      if (known.now(kClearR) != T(0)) clear_column(next_r, p.n, p.k, c);
    }
    const bool ready = split && !has_shrunk();
    const T* zs = any_runs() && !ready ? precondition(next_r) : next_r;
    for (int64_t c = 0; c < p.k; ++c) column(c, iteration, norms, scalars).advance(rho(c));
    update(zs, d, x, next_d);
  }
};

// Iterations from which the work for a `Splitting` is worth it.
constexpr int64_t kSplit = 4;

template <class T>
void copy(const T* from, int64_t size, T* to) {
  if (size > 0 && from != to) std::memcpy(to, from, size * sizeof(T));
}

}  // namespace

PcgResult csr_pcg(const std::vector<Tensor>& A, const Tensor& values, int64_t kind,
                  const std::vector<Tensor>& M, const std::optional<Tensor>& x, const Tensor& r,
                  const std::vector<Tensor>& state, const std::optional<Tensor>& target, int64_t first,
                  int64_t iterations, bool store) {
  const char* name = "csr_pcg";
  const Structure S(name, A);
  const PcgTensors in(name, values, x, r, state, target);
  const PcgSizes p(name, S, in.values, kind, M, in.r);
  check_device(name, in.values, {&S.idx});
  const Factor factor(name, p, M, S);
  const PcgResultSizes out(name, p, in, first, iterations, store);
  const int64_t counted = out.counted, saved = out.saved;
  Tensor x_out = new_empty(in.r, out.vector), r_out = new_empty(in.r, out.vector),
         p_out = new_empty(in.r, out.vector), before = new_empty(in.r, store ? Size{0} : out.vector),
         norms = new_empty(in.r, out.norms), carry_out = new_empty(in.r, out.carry),
         scalars = new_zeros(in.r, out.scalars), residuals = new_empty(in.r, out.trajectory),
         directions = new_empty(in.r, out.trajectory);
  // Where no memory is kept, glibc returns trajectories to the system after every backward, all at once.
  for (const Tensor* t : {&residuals, &directions})
    if (bytes_of(*t) >= Buffers::kHuge) prefer_huge_pages(t->data_ptr(), bytes_of(*t));
  dispatch(name, in.values, S.idx, [&]<class T, class I>() {
    const int64_t nk = p.nk();
    const bool shared = p.values_step == 0 && p.m_step == 0;
    const auto split = [&](int64_t b, Splitting<T, I>& own) {
      return factor.lower && iterations >= kSplit && nk > 0 &&
             own.fits(S, data<T>(in.values) + b * p.values_step, factor, data<T>(*p.m) + b * p.m_step);
    };
    Splitting<T, I> common;
    const bool common_fits = shared && p.batch > 0 && split(0, common);
    parallel_members(p.batch, p.work(S), iterations + 1, [&](int64_t b) {
      T* xb = mutable_data<T>(x_out) + b * nk;
      T* last_r = mutable_data<T>(r_out) + b * nk;
      T* last_p = mutable_data<T>(p_out) + b * nk;
      T* known = mutable_data<T>(carry_out) + b * kCarry * p.k;
      T* norms_b = mutable_data<T>(norms) + b * counted * p.k;
      // Where r and p of iteration i go. Without `store` they are overwritten, which takes less of the cache
      // than two places in turn; the last p leaves the one before it alone.
      T* slots_r = mutable_data<T>(residuals) + b * saved * nk;
      T* slots_p = mutable_data<T>(directions) + b * saved * nk;
      T* spare_p = store ? nullptr : mutable_data<T>(before) + b * nk;
      const auto r_at = [&](int64_t i) { return store && i < iterations ? slots_r + i * nk : last_r; };
      const auto p_at = [&](int64_t i) {
        return i == iterations ? last_p : store ? slots_p + i * nk : spare_p;
      };
      Splitting<T, I> own;
      const bool fits = shared ? common_fits : split(b, own);
      Iteration<T, I> run(S, p, factor, data<T>(in.values) + b * p.values_step,
                          p.m ? data<T>(*p.m) + b * p.m_step : nullptr, known,
                          !fits    ? nullptr
                          : shared ? &common
                                   : &own);
      if (in.x)
        copy(data<T>(*in.x) + b * nk, nk, xb);
      else
        std::fill_n(xb, nk, T(0));
      if (out.begins) {
        run.begin(data<T>(in.r) + b * nk, in.x ? xb : nullptr,
                  in.target ? data<T>(*in.target) + b * p.k : nullptr, r_at(0), p_at(0), norms_b);
        norms_b += p.k;
      } else {
        copy(data<T>(in.r) + b * nk, nk, r_at(0));
        copy(data<T>(*in.p) + b * nk, nk, p_at(0));
        copy(data<T>(*in.carry) + b * kCarry * p.k, kCarry * p.k, known);
        if (fits) run.resume_split(r_at(0), p_at(0));
      }
      int64_t i = 0;
      for (; i < iterations && run.any_runs(); ++i)
        run.step(first + i, xb, r_at(i), p_at(i), r_at(i + 1), p_at(i + 1), norms_b + i * p.k,
                 mutable_data<T>(scalars) + (b * iterations + i) * kScalars * p.k);
      // All columns have stopped: nothing changes any more, and the adjoint reads nothing from here on.
      copy<T>(r_at(i), nk, last_r);
      if (spare_p && (i < iterations || iterations == 0)) std::fill_n(spare_p, nk, T(0));
      if (i < iterations) std::fill_n(last_p, nk, T(0));
      if (store && i < iterations) {
        std::fill_n(slots_r + (i + 1) * nk, (iterations - i - 1) * nk, T(0));
        std::fill_n(slots_p + (i + 1) * nk, (iterations - i - 1) * nk, T(0));
      }
      for (; i < iterations; ++i) copy(known + kNorm * p.k, p.k, norms_b + i * p.k);
    });
  });
  return {x_out, r_out, p_out, before, carry_out, norms, scalars, residuals, directions};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) { m.impl("csr_pcg", TORCH_BOX(&learnsolve::csr_pcg)); }
