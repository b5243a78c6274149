// Preconditioned conjugate gradients, any number of iterations in one call.
#include "ops/pcg.h"

namespace learnsolve {

namespace {

template <class T>
Stop stop_of(T value, Stop not_positive) {
  if (!std::isfinite(value)) return Stop::non_finite;
  if (value >= std::numeric_limits<T>::min()) return Stop::running;
  return value > 0 ? Stop::rounding : not_positive;
}

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
  std::vector<T> q, z, w, alpha, beta, keep;
  Sums<T> first_sums, second_sums;
  const Kernels<T, I>& table = kernels().get<T, I>();

  Iteration(const Structure& S_, const PcgSizes& p_, const Factor& factor_, const T* values_, const T* m_,
            T* carry_)
      : S(S_),
        p(p_),
        factor(factor_, m_),
        width(factor_.width),
        values(values_),
        m(m_),
        carry(carry_),
        q(p.nk()),
        alpha(p.k),
        beta(p.k),
        keep(p.k) {}

  T& at(Carry row, int64_t c) { return carry[row * p.k + c]; }
  bool runs(int64_t c) { return at(kStop, c) == T(0); }
  bool any_runs() {
    for (int64_t c = 0; c < p.k; ++c)
      if (runs(c)) return true;
    return false;
  }
  void stop(int64_t c, Stop why, int64_t iteration) {
    at(kStop, c) = static_cast<T>(why);
    at(kWhen, c) = static_cast<T>(iteration);
  }
  template <class F>
  void blocks(const F& f) {
    parallel_blocks<I>(S, p.k, f);
  }
  const T* diagonal() const { return p.kind == Preconditioning::diagonal ? m : nullptr; }

  // out = r - alpha q and its norms; of columns that run.
  void residual(const T* r, const T* qs, T* out) {
    T* squares = first_sums.room(S.n_blocks(), p.k);
    T* rho = second_sums.room(S.n_blocks(), p.k);
    blocks([&](int64_t b0, int64_t b1) {
      table.pcg_residual(S.row_blocks<I>(), b0, b1, {alpha.data(), r, qs, diagonal(), out, squares, rho},
                         p.k);
    });
  }
  T norm(int64_t c) const { return static_cast<T>(std::sqrt(first_sums.total(S.n_blocks(), p.k, c))); }

  // z = M r and rho = <r, z> where it is not known yet.
  const T* precondition(const T* r) {
    if (p.kind == Preconditioning::none || p.kind == Preconditioning::diagonal) return r;
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

  // next = z + beta p, x += alpha p for every column; rho and beta of those that run on are set before.
  void update(const T* zs, const T* d, T* x, T* next) {
    blocks([&](int64_t b0, int64_t b1) {
      table.pcg_update(S.row_blocks<I>(), b0, b1,
                       {alpha.data(), beta.data(), keep.data(), zs, diagonal(), d, x, next}, p.k);
    });
  }

  // r = b - A x (b if x is none), p = M r.
  void begin(const T* b, const T* x, T* r, T* direction, T* norms) {
    std::vector<T> length(p.k);
    std::fill(alpha.begin(), alpha.end(), T(0));
    if (x) {
      residual(b, b, r);
      for (int64_t c = 0; c < p.k; ++c) length[c] = norm(c);
      std::fill(alpha.begin(), alpha.end(), T(1));
      blocks([&](int64_t b0, int64_t b1) {
        table.spmm(S.view<T, I>(values), S.row_blocks<I>(), b0, b1, x, p.k, q.data(), false);
      });
    }
    residual(b, x ? q.data() : b, r);
    for (int64_t c = 0; c < p.k; ++c) {
      const T size = norm(c);
      norms[c] = at(kNorm, c) = size;
      at(kLow, c) = std::numeric_limits<T>::epsilon() * std::max(size, length[c]);
      at(kHigh, c) = size / std::numeric_limits<T>::epsilon();
      at(kRho, c) = at(kStop, c) = at(kWhen, c) = 0;
      if (!std::isfinite(size)) {
        stop(c, Stop::non_finite, 0);
        clear_column(r, p.n, p.k, c);
      } else if (size <= at(kLow, c)) {
        stop(c, Stop::rounding, 0);
      }
    }
    const T* zs = precondition(r);
    advance(0);
    update(zs, zs, nullptr, direction);
  }

  // rho and beta of the columns that run on, after r and z are known; `iteration` is that to come.
  void advance(int64_t iteration) {
    for (int64_t c = 0; c < p.k; ++c) {
      beta[c] = keep[c] = 0;
      if (!runs(c)) continue;
      const T old = at(kRho, c), found = rho(c);
      if (const Stop why = stop_of(found, Stop::preconditioner); why != Stop::running) {
        stop(c, why, iteration);
        continue;
      }
      at(kRho, c) = found;
      beta[c] = iteration > 0 ? found / old : T(0);
      keep[c] = 1;
    }
  }

  // Iteration number `iteration`: from r and d to `next_r`, `next_d`, x.
  void step(int64_t iteration, T* x, const T* r, T* d, T* next_r, T* next_d, T* norms, T* scalars) {
    T* curvature = first_sums.room(S.n_blocks(), p.k);
    blocks([&](int64_t b0, int64_t b1) {
      table.spmm_dot(S.view<T, I>(values), S.row_blocks<I>(), b0, b1, d, d, p.k, q.data(), curvature);
    });
    for (int64_t c = 0; c < p.k; ++c) {
      alpha[c] = 0;
      scalars[kScalarRho * p.k + c] = at(kRho, c);
      if (!runs(c)) continue;
      const T pi = static_cast<T>(first_sums.total(S.n_blocks(), p.k, c));
      Stop why = stop_of(pi, Stop::curvature);
      const T a = at(kRho, c) / pi;
      if (why == Stop::running && !std::isfinite(a)) why = Stop::non_finite;
      if (why == Stop::running && a == T(0)) why = Stop::rounding;
      if (why == Stop::running) {
        alpha[c] = a;
        continue;
      }
      stop(c, why, iteration);
      if (why != Stop::non_finite) continue;
      clear_column(q.data(), p.n, p.k, c);
      clear_column(d, p.n, p.k, c);
    }
    residual(r, q.data(), next_r);
    for (int64_t c = 0; c < p.k; ++c) {
      if (runs(c)) {
        const T size = norm(c);
        if (!std::isfinite(size)) {
          stop(c, Stop::non_finite, iteration);
          alpha[c] = 0;
          // Nobody reads this r any more, but it is multiplied by zeros.
          clear_column(next_r, p.n, p.k, c);
        } else {
          at(kNorm, c) = size;
          if (size <= at(kLow, c))
            stop(c, Stop::rounding, iteration + 1);
          else if (size > at(kHigh, c))
            stop(c, Stop::diverged, iteration + 1);
        }
      }
      norms[c] = at(kNorm, c);
    }
    const T* zs = any_runs() ? precondition(next_r) : next_r;
    advance(iteration + 1);
    update(zs, d, x, next_d);
    for (int64_t c = 0; c < p.k; ++c) {
      scalars[kAlpha * p.k + c] = alpha[c];
      scalars[kBeta * p.k + c] = beta[c];
    }
  }
};

template <class T>
void copy(const T* from, int64_t size, T* to) {
  if (size > 0 && from != to) std::memcpy(to, from, size * sizeof(T));
}

}  // namespace

PcgResult csr_pcg(const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& values_,
                  int64_t kind, const std::optional<Tensor>& m_, const std::vector<Tensor>& factor_,
                  const std::optional<Tensor>& x_, const Tensor& r_, const std::optional<Tensor>& p_,
                  const std::optional<Tensor>& carry_, int64_t first, int64_t iterations, bool store) {
  const char* name = "csr_pcg";
  const Structure S(name, ptr, idx, std::nullopt, blocks);
  const Tensor values = dense(values_), r = dense(r_);
  const std::optional<Tensor> m = dense(m_), x = dense(x_), direction = dense(p_), carry = dense(carry_);
  const PcgSizes p(name, S, values, kind, m, r);
  const Factor factor(name, p, m, factor_, S.idx);
  const PcgResultSizes out(name, p, values, r, x, direction, carry, first, iterations, store);
  const bool begins = out.begins;
  const int64_t counted = out.counted, saved = out.saved;
  Tensor x_out = new_empty(r, out.vector), r_out = new_empty(r, out.vector), p_out = new_empty(r, out.vector),
         before = new_empty(r, store ? Size{0} : out.vector), norms = new_empty(r, out.norms),
         carry_out = new_empty(r, out.carry), scalars = new_zeros(r, out.scalars),
         residuals = new_empty(r, out.trajectory), directions = new_empty(r, out.trajectory);
  // Trajectories are freed after every backward, all at once, and glibc then returns them to the system.
  for (const Tensor* t : {&residuals, &directions})
    prefer_huge_pages(t->data_ptr(), static_cast<size_t>(t->numel()) * t->element_size(), size_t{4} << 20);
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    const int64_t nk = p.nk();
    for (int64_t b = 0; b < p.batch; ++b) {
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
      Iteration<T, I> run(S, p, factor, data<T>(values) + b * p.values_step,
                          m ? data<T>(*m) + b * p.m_step : nullptr, known);
      if (x)
        copy(data<T>(*x) + b * nk, nk, xb);
      else
        std::fill_n(xb, nk, T(0));
      if (begins) {
        run.begin(data<T>(r) + b * nk, x ? xb : nullptr, r_at(0), p_at(0), norms_b);
        norms_b += p.k;
      } else {
        copy(data<T>(r) + b * nk, nk, r_at(0));
        copy(data<T>(*direction) + b * nk, nk, p_at(0));
        copy(data<T>(*carry) + b * kCarry * p.k, kCarry * p.k, known);
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
    }
  });
  return {x_out, r_out, p_out, before, carry_out, norms, scalars, residuals, directions};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) { m.impl("csr_pcg", TORCH_BOX(&learnsolve::csr_pcg)); }
