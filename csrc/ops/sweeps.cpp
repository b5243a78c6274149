// Scaled Richardson sweeps with momentum (weighted Jacobi, heavy ball, Chebyshev), many in one call.
#include "ops/sweeps.h"

#include <cmath>
#include <utility>

#include "ops/host.h"

namespace learnsolve {

// One sweep and, if requested, the norms of the residual it began with.
template <class T, class I>
struct Sweeper {
  const Structure& S;
  int64_t k;
  CsrView<T, I> A;
  const T* b;
  std::vector<T> squares;

  void operator()(const T* x, const T* old, const T* s, T momentum, T* next, T* norms) {
    squares.resize(S.n_blocks() * k);
    parallel_blocks<I>(S, k, [&](int64_t b0, int64_t b1) {
      kernels().get<T, I>().richardson_sweep(A, S.row_blocks<I>(), b0, b1,
                                             {x, b, s, old, momentum, next, squares.data()}, k);
    });
    if (!norms) return;
    for (int64_t c = 0; c < k; ++c) {
      double sum = 0;
      for (int64_t block = 0; block < S.n_blocks(); ++block) sum += squares[block * k + c];
      norms[c] = static_cast<T>(std::sqrt(sum));
    }
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> csr_richardson(const std::vector<Tensor>& A, const Tensor& values_,
                                                          const Tensor& scale_,
                                                          const std::optional<Tensor>& momentum_,
                                                          const Tensor& b_, const Tensor& x0_,
                                                          const std::optional<Tensor>& before_,
                                                          int64_t iterations, int64_t stride) {
  const char* name = "csr_richardson";
  const Structure S(name, A);
  const Tensor values = dense(values_), scale = dense(scale_), b = dense(b_), x0 = dense(x0_);
  const std::optional<Tensor> momentum = dense(momentum_), before = dense(before_);
  const SweepSizes p(name, S, values, scale, momentum, b, iterations);
  const SweepResults out(name, p, b, x0, before, stride);
  check_device(name, values,
               {&S.idx, &scale, &b, &x0, momentum ? &*momentum : &values, before ? &*before : &values});
  S.check_columns(p.n);
  const int64_t kept = p.kept(stride), slots = p.slots(stride);
  Tensor x = new_empty(b, out.x), norms = new_empty(b, out.norms), iterates = new_empty(b, out.iterates),
         last = new_empty(b, out.last);
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    const int64_t nk = p.nk();
    const auto copy = [&](const T* from, T* to) {
      if (nk > 0) std::memcpy(to, from, nk * sizeof(T));
    };
    std::vector<T> scratch[3];
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const T* values_at = data<T>(values) + (p.bv == 1 ? 0 : batch * S.nnz());
      Sweeper<T, I> sweep{S, p.k, S.view<T, I>(values_at), data<T>(b) + batch * nk, {}};
      T* const x_at = mutable_data<T>(x) + batch * nk;
      T* const last_at = out.gives_last ? mutable_data<T>(last) + batch * nk : nullptr;
      T* const slots_at = mutable_data<T>(iterates) + batch * slots * nk;
      // Where iterate i > 0 is written.
      const auto place = [&](int64_t i) {
        if (i == iterations) return x_at;
        if (stride == 1) return slots_at + i * nk;
        if (stride > 1 && i % stride == 0)
          return slots_at + i / stride * (p.momentum ? 2 : 1) * nk + (p.momentum ? nk : 0);
        if (p.pairs(stride) && (i + 1) % stride == 0 && (i + 1) / stride < kept)
          return slots_at + 2 * ((i + 1) / stride) * nk;
        if (out.gives_last && i + 1 == iterations) return last_at;
        std::vector<T>& buffer = scratch[i % 3];
        buffer.resize(nk);
        return buffer.data();
      };
      const T* current = data<T>(x0) + batch * nk;
      const T* old = before && p.momentum ? data<T>(*before) + batch * nk : nullptr;
      if (kept > 0) copy(current, slots_at + (p.pairs(stride) ? nk : 0));
      if (kept > 0 && p.pairs(stride)) copy(old ? old : current, slots_at);
      if (iterations == 0) copy(current, x_at);
      if (iterations == 0 && out.gives_last) copy(old ? old : current, last_at);
      if (iterations == 1 && out.gives_last) copy(current, last_at);
      for (int64_t it = 0; it < iterations; ++it) {
        T* next = place(it + 1);
        sweep(current, old, data<T>(scale) + p.scale_at(batch, it),
              p.momentum ? data<T>(*momentum)[p.momentum_at(batch, it)] : T(0), next,
              mutable_data<T>(norms) + (batch * iterations + it) * p.k);
        if (p.momentum) old = current;
        current = next;
      }
    }
  });
  return {x, norms, iterates, last};
}

// The adjoint of Richardson sweeps with momentum, last to first (formulas: kernels/sweeps.h), on the
// columns that have a cotangent.

namespace {

// What is read and written for one matrix. Null: absent, or not needed.
template <class T>
struct SweepsAdjointOperands {
  const T *values, *b, *before, *slots, *norms, *gnorms, *gbefore;
  T* lambda;  // the cotangent of x on entry, that of x0 on exit
  T *ga, *gs, *gm, *gb, *before_out;
};

template <class T, class I>
class SweepsAdjoint {
 public:
  SweepsAdjoint(const Structure& S_, const Structure& St_, const SweepSizes& p_, int64_t stride_,
                int64_t batch_, const T* scale_, const T* momentum_, bool need_x0_,
                const SweepsAdjointOperands<T>& operands)
      : S(S_),
        St(St_),
        p(p_),
        stride(stride_),
        batch(batch_),
        scale(scale_),
        momentum(momentum_),
        need_x0(need_x0_),
        in(operands),
        columns(p_.n, p_.k) {}

  void run() {
    columns.look(in.gnorms, p.sweeps);
    columns.look(in.lambda, p.n);
    columns.look(in.gbefore, p.n);
    columns.choose();
    k = columns.count, nk = p.n * k;
    if (k == 0) return;
    b = in.b, lambda = in.lambda, gb = in.gb;
    if (columns.some()) {
      if (in.gs || in.gnorms || stride > 1) b = taken(in.b, own_b);
      lambda = taken(in.lambda, own_lambda);
      if (gb) own_gb.assign(nk, T(0)), gb = own_gb.data();
    }
    if (momentum) {
      own_later.assign(nk, T(0)), later = own_later.data();
      if (in.gbefore) columns.take(in.gbefore, later), factor = 1;
    }
    g.resize(nk), c.resize(k), sums.resize(S.n_blocks() * k);
    for (int64_t it = p.sweeps - 1; it >= 0; --it) step(it);
    if (in.before_out) {  // first: `later` may lie where lambda goes
      for (int64_t o = 0; o < nk; ++o) later[o] *= factor;
      columns.put(later, in.before_out);
    }
    if (columns.some()) {
      columns.put(lambda, in.lambda);
      if (gb) columns.put(gb, in.gb);
    } else if (lambda != in.lambda) {
      std::copy_n(lambda, nk, in.lambda);
    }
  }

 private:
  static constexpr int64_t kTogether = 512;
  const Structure &S, &St;
  const SweepSizes& p;
  const int64_t stride, batch;
  const T *scale, *momentum;
  const bool need_x0;
  const SweepsAdjointOperands<T> in;
  const Kernels<T, I>& table = kernels().get<T, I>();
  LearningColumns columns;
  int64_t k = 0, nk = 0;  // of these
  const T* b = nullptr;
  T *lambda = nullptr, *later = nullptr, *gb = nullptr;
  T factor = 0;  // `later` is multiplied by it
  std::vector<T> own_b, own_lambda, own_later, own_gb, g, c, sums, segment, iterates[2];
  std::vector<const T*> of_segment;  // iterates from the one before its first
  int64_t held[2] = {-2, -2};

  const T* taken(const T* from, std::vector<T>& to) {
    to.resize(nk);
    columns.take(from, to.data());
    return to.data();
  }
  T* taken(T* from, std::vector<T>& to) { return const_cast<T*>(taken(static_cast<const T*>(from), to)); }

  T momentum_of(int64_t it) const { return momentum ? momentum[p.momentum_at(batch, it)] : T(0); }
  const T* scale_of(int64_t it) const { return scale + p.scale_at(batch, it); }

  // Iterate i, -1 being the one before x0, or null where there is none.
  const T* iterate(int64_t i) {
    if (stride > 1) return of_segment[i + 1 - begin];
    const T* v = i < 0 ? in.before : in.slots + i * p.nk();
    if (!v || !columns.some()) return v;
    const int64_t slot = i & 1;
    if (held[slot] != i) taken(v, iterates[slot]), held[slot] = i;
    return iterates[slot].data();
  }

  // Run the sweeps of the segment of sweep `last` again, from its saved first iterate.
  int64_t begin = 0;  // of this segment
  void replay(int64_t last) {
    begin = last / stride * stride;
    const int64_t all = p.nk(), at = begin / stride;
    of_segment.assign(stride + 1, nullptr);
    segment.resize((stride - 1) * nk);
    of_segment[1] = in.slots + (momentum ? 2 * at + 1 : at) * all;
    if (momentum && (begin > 0 || in.before)) of_segment[0] = in.slots + 2 * at * all;
    if (columns.some())
      for (const int64_t i : {0, 1})
        if (of_segment[i]) of_segment[i] = taken(of_segment[i], iterates[i]);
    Sweeper<T, I> sweep{S, k, S.view<T, I>(in.values), b, {}};
    for (int64_t j = 0; begin + j < last; ++j) {
      T* next = segment.data() + j * nk;
      sweep(of_segment[j + 1], momentum ? of_segment[j] : nullptr, scale_of(begin + j),
            momentum_of(begin + j), next, nullptr);
      of_segment[j + 2] = next;
    }
  }

  // The cotangents of the norms over the norms. A norm has no derivative at zero; zero is its subgradient of
  // least norm.
  bool norm_cotangents(int64_t it) {
    bool any = false;
    for (int64_t j = 0; in.gnorms && j < k; ++j) {
      const int64_t at = it * p.k + (columns.some() ? columns.column(j) : j);
      const T norm = in.norms[at], bar = in.gnorms[at];
      c[j] = norm == T(0) || bar == T(0) ? T(0) : bar / norm;
      any = any || c[j] != T(0);
    }
    return any;
  }

  void step(int64_t it) {
    if (stride > 1 && (it == p.sweeps - 1 || (it + 1) % stride == 0)) replay(it);
    const bool norms = norm_cotangents(it), residual = norms || in.gs;
    const bool moving = momentum && (it > 0 || in.before);  // x_0 has no step before it
    const T* old = moving && in.gm ? iterate(it - 1) : nullptr;
    const T* x = residual || in.ga || old ? iterate(it) : nullptr;
    const T m = moving ? momentum_of(it) : T(0);
    const SweepAdjoint<T> operands{x,
                                   b,
                                   scale_of(it),
                                   lambda,
                                   norms ? c.data() : nullptr,
                                   g.data(),
                                   gb,
                                   in.gs ? in.gs + p.scale_at(batch, it) : nullptr,
                                   m,
                                   factor,
                                   later,
                                   old,
                                   sums.data()};
    const RowBlocks<I> blocks = S.row_blocks<I>();
    parallel_blocks<I>(S, k, [&](int64_t b0, int64_t b1) {
      for (int64_t end; b0 < b1; b0 = end) {  // rows that stay in the first cache
        for (end = b0 + 1; end < b1 && (blocks.table[2 * end] - blocks.table[2 * b0]) * k < kTogether;) ++end;
        if (residual) table.spmm(S.view<T, I>(in.values), blocks, b0, end, x, k, g.data(), false);
        table.richardson_adjoint(blocks, b0, end, operands, k);
      }
    });
    if (old) {
      double sum = 0;
      for (const T part : sums) sum += part;
      in.gm[p.momentum_at(batch, it)] += static_cast<T>(sum);
    }
    if (it == 0 && !in.ga && !need_x0) return;
    T* before = momentum ? later : lambda;
    if (in.ga)
      both_gradients<T, I>(S, St, in.values, g.data(), x, k, before, in.ga, true, true);
    else
      parallel_blocks<I>(St, k, [&](int64_t b0, int64_t b1) {
        table.spmm(St.view<T, I>(in.values), St.row_blocks<I>(), b0, b1, g.data(), k, before, true);
      });
    if (!momentum) return;
    std::swap(lambda, later);
    factor = -m;
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> csr_richardson_backward(
    const std::vector<Tensor>& A, const std::vector<Tensor>& At, const Tensor& values, const Tensor& scale,
    const std::optional<Tensor>& momentum, const Tensor& b, const std::optional<Tensor>& before,
    const std::vector<Tensor>& kept, const std::vector<Tensor>& cotangents, int64_t iterations,
    int64_t stride, const std::vector<bool>& needs_) {
  const char* name = "csr_richardson_backward";
  const Structure S(name, A), St(name, At);
  const SweepAdjointTensors in(name, values, scale, momentum, b, before, kept, cotangents);
  const SweepNeeds needs(name, needs_);
  const SweepSizes p(name, S, in.values, in.scale, in.momentum, in.b, iterations);
  const SweepAdjointSizes out(name, S, St, p, in, stride, needs);
  check_device(name, in.values, {&S.idx, &St.idx, &in.scale, &in.b, &in.iterates, &in.norms, &in.gx});
  for (const auto* t : {&in.momentum, &in.before, &in.gnorms, &in.gbefore})
    if (*t) check_device(name, in.values, {&**t});
  S.check_columns(p.n), St.check_columns(p.n);
  Tensor ga = new_zeros(in.values, out.values), gs = new_zeros(in.values, out.scale),
         gm = new_zeros(in.values, out.momentum), gb = new_zeros(in.values, out.b),
         gx0 = new_empty(in.values, out.x0), before_out = new_zeros(in.values, out.before);
  dispatch(name, in.values, S.idx, [&]<class T, class I>() {
    std::copy_n(data<T>(in.gx), in.gx.numel(), mutable_data<T>(gx0));
    const auto at = [](const std::optional<Tensor>& t, int64_t offset) {
      return t ? data<T>(*t) + offset : nullptr;
    };
    const auto to = [](Tensor& t, bool needed, int64_t offset) {
      return needed ? mutable_data<T>(t) + offset : nullptr;
    };
    for (int64_t i = 0; i < p.batch; ++i) {
      const int64_t at_values = p.bv == 1 ? 0 : i * S.nnz(), at_b = i * p.nk(),
                    at_norms = i * iterations * p.k;
      const SweepsAdjointOperands<T> operands{
          data<T>(in.values) + at_values,
          data<T>(in.b) + at_b,
          in.momentum ? at(in.before, at_b) : nullptr,
          data<T>(in.iterates) + i * out.slots * p.nk(),
          data<T>(in.norms) + at_norms,
          at(in.gnorms, at_norms),
          in.momentum ? at(in.gbefore, at_b) : nullptr,
          mutable_data<T>(gx0) + at_b,
          to(ga, needs.values, at_values),
          to(gs, needs.scale, 0),
          to(gm, out.gives_momentum, 0),
          to(gb, needs.b, at_b),
          to(before_out, out.gives_before, at_b),
      };
      SweepsAdjoint<T, I>(S, St, p, stride, i, data<T>(in.scale), at(in.momentum, 0), needs.x0, operands)
          .run();
    }
  });
  return {ga, gs, gm, gb, gx0, before_out};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_richardson", TORCH_BOX(&learnsolve::csr_richardson));
  m.impl("csr_richardson_backward", TORCH_BOX(&learnsolve::csr_richardson_backward));
}
