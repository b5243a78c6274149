// csr_pcg_backward: checks, results, and the adjoint of each matrix of a batch.
#include "ops/pcg_adjoint.h"

#include "ops/pcg_adjoint_sizes.h"

namespace learnsolve {

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
