// Scaled Richardson (weighted Jacobi) sweeps in one call, and their adjoint in one more.
#include <cmath>
#include <cstring>

#include "ops/check.h"

namespace learnsolve {

namespace {

// Sizes shared by the forward and the adjoint. Leading batch axes are there or taken as 1.
struct Problem {
  int64_t bv, bs, batch, n, k, sweeps, per_sweep;  // per_sweep: 1 if every sweep has a scale of its own
  Problem(const char* name, const Structure& S, const Tensor& values, const Tensor& scale, const Tensor& b,
          int64_t iterations) {
    check_dense(name, "b", b, values);
    check_values(name, values, S.nnz());
    STD_TORCH_CHECK(iterations >= 0, name, ": iterations must not be negative, got ", iterations);
    STD_TORCH_CHECK(scale.dim() <= 3 && scale.scalar_type() == values.scalar_type(), name,
                    ": scale must have at most three dimensions and the dtype of values");
    const Dense d(b);
    bv = values.dim() == 2 ? values.size(0) : 1;
    bs = scale.dim() == 3 ? scale.size(0) : 1;
    batch = d.batch, n = d.n, k = d.k, sweeps = iterations;
    STD_TORCH_CHECK(n == S.rows(), name, ": b must have the rows of the structure");
    STD_TORCH_CHECK((bv == 1 || bv == batch) && (bs == 1 || bs == batch), name,
                    ": values and scale must have b's batch size or 1");
    STD_TORCH_CHECK(scale.dim() >= 1 && scale.size(scale.dim() - 1) == n, name,
                    ": scale must be (n) or (1 or iterations, n)");
    const int64_t rows = scale.dim() == 1 ? 1 : scale.size(scale.dim() - 2);
    STD_TORCH_CHECK(rows == 1 || rows == iterations, name, ": scale must have 1 or ", iterations,
                    " rows, got ", rows);
    per_sweep = rows == iterations && rows > 1 ? 1 : 0;
  }
  int64_t nk() const { return n * k; }
  int64_t scale_at(int64_t b, int64_t sweep) const {
    const int64_t rows = per_sweep ? sweeps : 1;
    return ((bs == 1 ? 0 : b) * rows + per_sweep * sweep) * n;
  }
};

// One sweep and, where wanted, the norms of the residual it began with.
template <class T, class I>
struct Sweeper {
  const Structure& S;
  const Problem& p;
  CsrView<T, I> A;
  const T* b;
  std::vector<T> squares;

  void operator()(const T* x, const T* s, T* next, T* norms) {
    squares.resize(S.n_blocks() * p.k);
    parallel_blocks<I>(S, p.k, [&](int64_t b0, int64_t b1) {
      kernels().get<T, I>().richardson_sweep(A, S.row_blocks<I>(), b0, b1, x, b, s, p.k, next,
                                             squares.data());
    });
    if (!norms) return;
    for (int64_t c = 0; c < p.k; ++c) {
      double sum = 0;
      for (int64_t block = 0; block < S.n_blocks(); ++block) sum += squares[block * p.k + c];
      norms[c] = static_cast<T>(std::sqrt(sum));
    }
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor> csr_richardson(const Tensor& ptr, const Tensor& idx, const Tensor& blocks,
                                                  const Tensor& values_, const Tensor& scale_,
                                                  const Tensor& b_, const Tensor& x0_, int64_t iterations,
                                                  int64_t stride) {
  const char* name = "csr_richardson";
  const Structure S(name, ptr, idx, std::nullopt, blocks);
  const Tensor values = dense(values_), scale = dense(scale_), b = dense(b_), x0 = dense(x0_);
  const Problem p(name, S, values, scale, b, iterations);
  STD_TORCH_CHECK(std::equal(x0.sizes().begin(), x0.sizes().end(), b.sizes().begin(), b.sizes().end()) &&
                      x0.scalar_type() == b.scalar_type(),
                  name, ": x0 must have the shape and dtype of b");
  const std::vector<int64_t> x_size(b.sizes().begin(), b.sizes().end());
  const int64_t saved = stride > 0 ? (iterations + stride - 1) / stride : 0;
  std::vector<int64_t> norms_size{iterations}, saved_size{saved, p.n};
  if (b.dim() >= 2) norms_size.push_back(p.k), saved_size.push_back(p.k);
  if (b.dim() == 3)
    norms_size.insert(norms_size.begin(), p.batch), saved_size.insert(saved_size.begin(), p.batch);
  Tensor x = new_empty(b, x_size), norms = new_empty(b, norms_size), iterates = new_empty(b, saved_size);
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    const size_t bytes = p.nk() * sizeof(T);
    std::vector<T> scratch[2];
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const T* bb = data<T>(b) + batch * p.nk();
      T* xb = mutable_data<T>(x) + batch * p.nk();
      T* slots = mutable_data<T>(iterates) + batch * saved * p.nk();
      Sweeper<T, I> sweep{S, p, S.view<T, I>(data<T>(values) + (p.bv == 1 ? 0 : batch * S.nnz())), bb, {}};
      const T* current = data<T>(x0) + batch * p.nk();
      if (saved > 0 && bytes > 0) std::memcpy(slots, current, bytes);
      for (int64_t it = 0; it < iterations; ++it) {
        T* next = xb;
        if (it + 1 < iterations) {
          if (stride > 0 && (it + 1) % stride == 0) {
            next = slots + (it + 1) / stride * p.nk();
          } else {
            std::vector<T>& buffer = scratch[it % 2];
            buffer.resize(p.nk());
            next = buffer.data();
          }
        }
        sweep(current, data<T>(scale) + p.scale_at(batch, it), next,
              mutable_data<T>(norms) + (batch * iterations + it) * p.k);
        current = next;
      }
      if (iterations == 0 && bytes > 0) std::memcpy(xb, current, bytes);
    }
  });
  return {x, norms, iterates};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> csr_richardson_backward(
    const Tensor& ptr, const Tensor& idx, const Tensor& blocks, const Tensor& tptr, const Tensor& tidx,
    const Tensor& tperm, const Tensor& tblocks, const Tensor& values_, const Tensor& scale_, const Tensor& b_,
    const Tensor& iterates_, const Tensor& norms_, const Tensor& gx_, const std::optional<Tensor>& gnorms_,
    int64_t iterations, int64_t stride, bool need_values, bool need_scale, bool need_b, bool need_x0) {
  const char* name = "csr_richardson_backward";
  const Structure S(name, ptr, idx, std::nullopt, blocks), St(name, tptr, tidx, tperm, tblocks);
  const Tensor values = dense(values_), scale = dense(scale_), b = dense(b_), iterates = dense(iterates_),
               norms = dense(norms_), gx = dense(gx_);
  const std::optional<Tensor> gnorms = gnorms_ ? std::optional<Tensor>(dense(*gnorms_)) : std::nullopt;
  const Problem p(name, S, values, scale, b, iterations);
  STD_TORCH_CHECK(stride > 0, name, ": the forward must have saved iterates (stride > 0)");
  const int64_t saved = (iterations + stride - 1) / stride;
  for (const Tensor* t : {&iterates, &norms, &gx, gnorms ? &*gnorms : &gx})
    STD_TORCH_CHECK(t->scalar_type() == values.scalar_type(), name, ": all operands must have one dtype");
  STD_TORCH_CHECK(!gnorms || gnorms->numel() == norms.numel(), name, ": gnorms must have the shape of norms");
  STD_TORCH_CHECK(St.nnz() == S.nnz(), name, ": both structures must hold the same entries");
  STD_TORCH_CHECK(gx.numel() == b.numel() && iterates.numel() == p.batch * saved * p.nk() &&
                      norms.numel() == p.batch * iterations * p.k && St.rows() == p.n,
                  name, ": gx, iterates and norms must be those of the forward");
  const auto size = [](const Tensor& t, bool needed) {
    return needed ? std::vector<int64_t>(t.sizes().begin(), t.sizes().end()) : std::vector<int64_t>{0};
  };
  Tensor ga = new_zeros(values, size(values, need_values)), gs = new_zeros(values, size(scale, need_scale)),
         gb = new_zeros(values, size(b, need_b)), lambda = new_empty(values, size(b, true));
  dispatch(name, values, S.idx, [&]<class T, class I>() {
    const auto& table = kernels().get<T, I>();
    std::copy_n(data<T>(gx), gx.numel(), mutable_data<T>(lambda));
    std::vector<T> g(p.nk()), segment(stride > 1 ? stride * p.nk() : 0), c(p.k);
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const int64_t at_values = p.bv == 1 ? 0 : batch * S.nnz();
      const CsrView<T, I> A = S.view<T, I>(data<T>(values) + at_values),
                          At = St.view<T, I>(data<T>(values) + at_values);
      const T* bb = data<T>(b) + batch * p.nk();
      T* lb = mutable_data<T>(lambda) + batch * p.nk();
      T* gbb = need_b ? mutable_data<T>(gb) + batch * p.nk() : nullptr;
      T* gab = need_values ? mutable_data<T>(ga) + at_values : nullptr;
      const T* slots = data<T>(iterates) + batch * saved * p.nk();
      Sweeper<T, I> sweep{S, p, A, bb, {}};
      for (int64_t it = iterations - 1; it >= 0; --it) {
        const int64_t begin = it / stride * stride;
        const T* x = slots + it / stride * p.nk();
        if (stride > 1) {
          // Entering a segment from its end: run its sweeps again, from its saved first iterate.
          if (it == iterations - 1 || (it + 1) % stride == 0) {
            const T* current = x;
            for (int64_t j = begin; j < it; ++j) {
              T* next = segment.data() + (j + 1 - begin) * p.nk();
              sweep(current, data<T>(scale) + p.scale_at(batch, j), next, nullptr);
              current = next;
            }
          }
          if (it > begin) x = segment.data() + (it - begin) * p.nk();
        }
        bool with_norms = false;
        for (int64_t j = 0; gnorms && j < p.k; ++j) {
          const int64_t at = (batch * iterations + it) * p.k + j;
          const T norm = data<T>(norms)[at], bar = data<T>(*gnorms)[at];
          // The norm has no derivative at zero; zero is its subgradient of least norm.
          c[j] = norm == T(0) || bar == T(0) ? T(0) : bar / norm;
          with_norms = with_norms || c[j] != T(0);
        }
        const int64_t at_scale = p.scale_at(batch, it);
        const T* s = data<T>(scale) + at_scale;
        T* gsb = need_scale ? mutable_data<T>(gs) + at_scale : nullptr;
        parallel_blocks<I>(S, p.k, [&](int64_t b0, int64_t b1) {
          table.richardson_adjoint(A, S.row_blocks<I>(), b0, b1, x, bb, s, lb,
                                   with_norms ? c.data() : nullptr, p.k, g.data(), gbb, gsb);
        });
        if (it == 0 && !need_values && !need_x0) continue;
        if (need_values && p.k > 0)
          both_gradients<T, I>(S, St, A.values, g.data(), x, p.k, lb, gab, true, true);
        else
          parallel_blocks<I>(St, p.k, [&](int64_t b0, int64_t b1) {
            table.spmm(At, St.row_blocks<I>(), b0, b1, g.data(), p.k, lb, true);
          });
      }
    }
  });
  return {ga, gs, gb, lambda};
}

}  // namespace learnsolve

STABLE_TORCH_LIBRARY_IMPL(learnsolve, CPU, m) {
  m.impl("csr_richardson", TORCH_BOX(&learnsolve::csr_richardson));
  m.impl("csr_richardson_backward", TORCH_BOX(&learnsolve::csr_richardson_backward));
}
